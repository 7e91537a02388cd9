#pragma once

// What the guardian observes of running workers: their progress, and their stacks on request.

#include <optional>
#include <vector>

#include "core/workers/guardian_protocol.h"
#include "elastic/time.h"
#include "guardian/worker.h"

namespace elastic::guardian {

// Reads the pages of workers that report steps.
class ProgressSampler {
 public:
  void set_interval(Duration interval) { interval_ = interval; }
  // When take() must be called; nullopt: no running worker reports.
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
};

// Collects the stacks of all running workers for one request.
class StackCollector {
 public:
  // Signals the workers that can write their stacks.
  void begin(std::vector<Worker>* workers, Instant now, Duration limit);
  // When advance() must be called at the latest; nullopt: nothing is collected.
  std::optional<Instant> deadline() const { return deadline_; }
  // True once the events of all workers are appended: every worker has replied, or time is over.
  bool advance(const std::vector<Worker>& workers, Instant now, std::string* events);

 private:
  std::optional<Instant> deadline_;
};

}  // namespace elastic::guardian
