// The stop at an agreed step: the part of AgentRunner between the coordinator and the guardian.

#include <chrono>
#include <csignal>
#include <utility>

#include "core/base/signal_name.h"
#include "host/agent/agent_runner.h"

namespace elastic::host {
namespace {

// The coordinator ends the job at the deadline. Without an answer of it this node leaves.
constexpr Duration kDrainMargin = std::chrono::seconds(5);
// It does not stop a node that could not leave at an agreed step: that has to leave all the same.
constexpr Duration kDepartureMargin = std::chrono::milliseconds(500);

}  // namespace

void AgentRunner::request_drain(int signal, Duration limit) {
  const bool has_round = round_ != nullptr && !is_finished_ && membership_ != nullptr;
  const std::string name = core::signal_text(signal);
  drain::Notice notice{limit, name + " on " + host_name_};
  const bool leaves_alone = has_round && options_.inplace_grace && round_->group_world_size > 1 &&
                            !options_.rendezvous.settings.static_ranks;
  // It has no rank that could reach a step.
  if (leaves_alone && !policy_.has_processes()) return request_stop(SIGTERM);
  if (leaves_alone) notice.departure = {{policy_.node()}, true};
  if (!has_round) return request_stop(SIGTERM);
  membership_->request_drain(notice);
  const Duration margin = leaves_alone ? kDepartureMargin : kDrainMargin;
  drain_timer_.arm(add_saturating(add_saturating(loop_->now(), limit), margin));
}

void AgentRunner::give_up_drain() {
  if (is_finished_ || drain_.is_reached()) return;
  report_message(AgentEvent::Kind::kDrain,
                 options_.inplace_grace
                     ? "this node could not leave at an agreed step in time: stopping it"
                     : "the coordinator has not stopped the job in time: stopping this node");
  request_stop(SIGTERM);
}

void AgentRunner::on_drain_order(const drain::Order& order) { answer_drain(drain_.on(order)); }

void AgentRunner::answer_drain(const core::DrainMember::Answer& answer) {
  if (answer.reply && membership_ != nullptr) {
    drain::Reply reply = *answer.reply;
    if (reply.kind == drain::Reply::Kind::kSteps || reply.kind == drain::Reply::Kind::kWaiting) {
      reply.can_continue = policy_.can_continue();
    }
    membership_->observe(reply);
  }
  if (answer.request) {
    supervisor_->set_stop_step(*answer.request, [this](const drain::StopStepEvent& event) {
      answer_drain(drain_.on(event));
    });
  }
  if (answer.leaves_at) feed(core::LeaveAtStep{*answer.leaves_at});
}

}  // namespace elastic::host
