#pragma once

// An agreed step, on the pages of the workers. The callers pass the workers, which belong to the
// guardian's loop.

#include <cstdint>
#include <optional>
#include <vector>

#include "core/drain/drain_types.h"
#include "guardian/worker.h"

namespace elastic::guardian {

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

}  // namespace elastic::guardian
