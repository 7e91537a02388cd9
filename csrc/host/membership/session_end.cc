// The end of a session: the final messages, the coordinator in this process, and its office.

#include <algorithm>
#include <utility>
#include <variant>

#include "host/membership/session.h"

namespace elastic::host {
namespace {

// A final message is acknowledged within a round trip. A coordinator that cannot be reached detects
// the silence, for which a node that was asked to stop does not wait.
constexpr Duration kFinalMessageTimeout = std::chrono::seconds(1);
// How long the end waits for a store to take the office back. The next coordinator asks otherwise.
constexpr Duration kReleaseTimeout = std::chrono::seconds(1);

}  // namespace

void Session::drain(Duration limit, std::function<void()> done) {
  on_drained_ = std::move(done);
  voter_.end();
  drain_deadline_ = add_saturating(loop_->now(), limit);
  drain_timer_.arm(std::min(drain_deadline_, loop_->now() + kFinalMessageTimeout));
  feed(Machine::Flush{});
}

// The reason that nodes receive when the coordinator of this process ends before their job.
CoordinatorEnd Session::end_of_host() const {
  if (const auto* timed_out = std::get_if<rdzv::TimedOut>(&machine_.end())) {
    return {"the agent that hosts the coordinator gave up: " + timed_out->message, true};
  }
  std::string reason = machine_.leave_reason();
  if (const auto* closed = std::get_if<rdzv::Closed>(&machine_.end())) {
    const bool is_success = closed->result->outcome == JobOutcome::kSucceeded;
    reason = "its job " + run_id_ + (is_success ? " has succeeded" : " has ended");
  }
  const std::string what = "the agent that hosted the coordinator has ended";
  return {reason.empty() ? what : what + ": " + reason, false};
}

void Session::advance_drain() {
  const bool is_through = on_drained_ && !is_host_draining_ && machine_.is_flushed();
  if (is_through) drain_timer_.arm(loop_->now());
}

void Session::finish_drain() {
  // The coordinator waits until its sessions have ended; this node's own is closed first.
  timer_.disarm();
  attempt_.reset();
  if (link_ != nullptr) link_->close();
  const Duration left = drain_deadline_ - loop_->now();
  if (hosting_.is_host() && left > Duration::zero() && !std::exchange(is_host_draining_, true)) {
    drain_timer_.arm(drain_deadline_);
    hosting_.drain(left, end_of_host(), [this] { drain_timer_.arm(loop_->now()); });
  } else if (voter_.keeper() != nullptr && left > Duration::zero() &&
             !std::exchange(is_record_released_, true)) {
    drain_timer_.arm(std::min(drain_deadline_, loop_->now() + kReleaseTimeout));
    voter_.release([this] { drain_timer_.arm(loop_->now()); });
  } else if (const auto done = std::exchange(on_drained_, nullptr)) {
    done();
  }
}

}  // namespace elastic::host
