#pragma once

// What the guardian does with the pages and channels of its workers: it observes their progress,
// collects their stacks on request, and executes its part of an agreed step and of a change of
// rounds. The callers pass the workers, which belong to the guardian's loop.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/workers/guardian_protocol.h"
#include "elastic/time.h"
#include "guardian/worker.h"

namespace elastic::guardian {

// Reads the pages of workers that report steps, or wait in collective operations.
class ProgressSampler {
 public:
  void set_interval(Duration interval) { interval_ = interval; }
  // When take() must be called; nullopt: no running worker reports anything.
  std::optional<Instant> next(const std::vector<Worker>& workers) const;
  // An event if something has changed since the last sample.
  std::optional<ProgressEvent> take(std::vector<Worker>* workers, Instant now);
  // A worker has reported its first step. If it is the first worker, its step is not left to the
  // next sample, so that the time of the round's first step is known.
  std::optional<ProgressEvent> take_first(std::vector<Worker>* workers, Instant now);

 private:
  Duration interval_{};  // zero: none
  Instant sampled_;
  ProgressEvent last_;
  std::optional<Instant> waits_since_;  // of the last sample
};

// Reads the signatures that workers publish about their collective operations, and appends the
// events of those that are new. Workers publish at the same time, so they are reported together,
// once no page has changed from look to look. Call it with every sample of the ProgressSampler.
void take_signatures(std::vector<Worker>* workers, std::string* events);

// Writes why they are stopped to the pages of the workers that run.
void set_stop_reason(std::vector<Worker>* workers, std::string_view text);

// Collects the stacks of all running workers for one request, or what they have worked.
class StackCollector {
 public:
  // Signals the workers that can write their stacks.
  void begin(std::vector<Worker>* workers, Instant now, const StacksRequest& request);
  // When advance() must be called at the latest; nullopt: nothing is collected.
  std::optional<Instant> deadline() const { return deadline_; }
  // True once the events of all workers are appended: every worker has replied, or time is over.
  bool advance(const std::vector<Worker>& workers, Instant now, std::string* events);

 private:
  std::optional<Instant> deadline_;
  bool measures_ = false;
};

// The guardian's part of an agreed step: writes the step to the workers' pages, and observes who
// has stopped.
class StopSteps {
 public:
  // The reply, if the request has one.
  std::optional<drain::StopStepEvent> handle(const drain::StopStepRequest& request,
                                             std::vector<Worker>* workers);
  // Call after messages and exits of workers. An event if all workers that take part wait, have
  // stopped, or exited, or one has passed the step at which all were to wait, since the last call.
  std::optional<drain::StopStepEvent> advance(const std::vector<Worker>& workers);
  // The step at which the worker has stopped; -1: it has not.
  std::int64_t stop_step(const Worker& worker) const;
  // The round is over, so no worker needs to wait for the decision. The cut tells a member of the
  // job that its round is over; until then the member waits.
  void withdraw(std::vector<Worker>* workers);
  // The workers of the generation are gone, or in another round.
  void clear();

 private:
  drain::StopStepEvent ask(const std::vector<Worker>& workers) const;
  bool all_wait(const std::vector<Worker>& workers) const;
  bool has_passed(const std::vector<Worker>& workers) const;

  std::uint64_t proposal_ = 0;
  std::int64_t awaited_ = -1;  // the tentative step, if it is to be reported that all wait there
  bool is_passed_ = false;     // reported: a worker has passed it
  bool is_committed_ = false;
  bool is_reached_ = false;  // reported
  bool is_ended_ = false;    // reported
};

// The guardian's part of a change of rounds in which workers keep their processes: passes the end
// of a round and the next round to the workers, and observes who has left.
class RoundChange {
 public:
  // Call advance() after it.
  void cut(const CutRequest& request);
  // True: the worker has the round. False: it has ended, or cannot be given one.
  bool give(const ContinueRequest& request, std::vector<Worker>* workers, Instant now);
  // Call after messages of workers and after cut(). Returns the marks that are new.
  std::vector<MarkEvent> advance(std::vector<Worker>* workers, Instant now);
  // The workers of the generation are gone.
  void clear() { *this = {}; }

 private:
  std::uint64_t cut_ = 0;  // the round of the last CutRequest plus 1; 0: none
};

}  // namespace elastic::guardian
