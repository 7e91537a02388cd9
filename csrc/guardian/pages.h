#pragma once

// What the guardian reads in the pages of its workers: their progress, their collective operations,
// and their stacks on request. The callers pass the workers, which belong to the guardian's loop.

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

}  // namespace elastic::guardian
