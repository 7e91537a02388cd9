#include "core/drain/node_notice.h"

#include <algorithm>

#include "core/base/earliest.h"
#include "core/base/text.h"

namespace elastic::drain {

void NodeNotice::on(const core::node_event::RoundBegan&, Instant, Out*) {
  last_killed_.reset();
  idle_until_.reset();
}

void NodeNotice::on(const core::node_event::WorkerEnded& event, Instant, Out*) {
  const WorkerExit& exit = event.exit;
  const bool is_unexplained =
      exit.kind == ExitKind::kSignaled && exit.verdict.empty() && !exit.stopped_by_us;
  if (is_unexplained) last_killed_ = Signalled{exit.signal, exit.at};
}

void NodeNotice::give(int signal, bool leaves_alone, Instant now) {
  given_ = Signalled{signal, now};
  leaves_alone_ = leaves_alone;
}

// While no worker exists here only the coordinator's answer is worth waiting for.
void NodeNotice::wait(Duration limit, bool is_idle, Instant now) {
  const Duration margin = leaves_alone_ ? kDepartureMargin : kNoticeMargin;
  until_ = add_saturating(add_saturating(now, limit), margin);
  if (is_idle) idle_until_ = std::min(*until_, add_saturating(now, kNoticeMargin));
}

void NodeNotice::end_wait() {
  until_.reset();
  idle_until_.reset();
}

bool NodeNotice::has_ended_worker() const {
  return given_ && last_killed_ && last_killed_->signal == given_->signal &&
         given_->at - last_killed_->at <= kNoticeEcho;
}

bool NodeNotice::is_of_notice(const WorkerExit& exit) const {
  return given_ && !exit.stopped_by_us && exit.verdict.empty() &&
         exit.kind == ExitKind::kSignaled && exit.signal == given_->signal &&
         exit.at - given_->at <= kNoticeEcho;
}

std::string NodeNotice::describe_echo() const {
  return core::signal_text(given_->signal) +
         " has also ended a worker, so no step can be agreed on: stopping this node";
}

std::optional<Instant> NodeNotice::next_deadline() const {
  return core::earliest({until_, idle_until_});
}

const char* NodeNotice::why_over(Instant now) const {
  if (idle_until_ && now >= *idle_until_) return "no worker runs on this node: stopping it";
  if (!until_ || now < *until_) return nullptr;
  return leaves_alone_ ? "this node could not leave at an agreed step in time: stopping it"
                       : "the coordinator has not stopped the job in time: stopping this node";
}

}  // namespace elastic::drain
