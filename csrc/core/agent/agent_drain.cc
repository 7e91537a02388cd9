// The agreed step on a node, as its agent follows it: what a notice leads to, what is sent to the
// coordinator, and what follows if no step was agreed on in time.

#include <csignal>
#include <string>
#include <utility>

#include "core/agent/agent_machine.h"
#include "core/base/text.h"

namespace elastic::core {

void AgentMachine::on(const agent_event::DrainRequested& event) {
  const bool has_round = round_ != nullptr && !is_finished_;
  const bool leaves_alone = has_round && can_leave_alone();
  notice_.give(event.signal, leaves_alone, now_);
  // Without workers it has no rank that could reach a step.
  if (!has_round || policy_.is_evicted() || (leaves_alone && !policy_.has_processes())) {
    return on(StopRequested{SIGTERM});
  }
  drain::Notice notice{event.limit, signal_text(event.signal) + " on " + options_.host_name};
  if (leaves_alone) notice.departure = {{policy_.node()}, true};
  act(agent_action::RequestDrain{std::move(notice)});
  notice_.wait(event.limit, policy_.state() == AgentState::kInit && !policy_.has_processes(), now_);
  if (notice_.has_ended_worker()) give_up_drain(notice_.describe_echo());
}

bool AgentMachine::can_leave_alone() const {
  // From its end until the next round is formed, the size of the last one says nothing.
  const bool is_over =
      policy_.state() == AgentState::kInit || policy_.state() == AgentState::kUnhealthy;
  const bool has_others =
      round_->group_world_size > 1 || (is_over && options_.policy.settings.max_nodes > 1);
  return options_.policy.agent.inplace_grace && has_others &&
         !options_.policy.settings.static_ranks;
}

void AgentMachine::apply(const DrainMember::Answer& answer) {
  if (answer.reply) {
    drain::Reply reply = *answer.reply;
    if (reply.kind == drain::Reply::Kind::kSteps || reply.kind == drain::Reply::Kind::kWaiting) {
      reply.can_continue = policy_.can_continue();
    }
    act(agent_action::Observe{std::move(reply)});
  }
  if (answer.request) {
    agent_action::SetStopStep set{*answer.request};
    if (set.request.kind == drain::Order::Kind::kCommit) {
      set.why = StopReason{
          .cause = StopCause::kDrained,
          .text = "stopped at step " + std::to_string(set.request.step) + ": " + answer.reason};
    }
    act(std::move(set));
  }
  if (answer.leaves_at) decide(LeaveAtStep{*answer.leaves_at});
}

void AgentMachine::end_by_notice(WorkerExited event) {
  if (!policy_.is_being_stopped() && !drain_.is_reached()) {
    give_up_drain(notice_.describe_echo());
  }
  event.exit.stopped_by_us = policy_.is_being_stopped();
  note_exit(event);
  decide(event);
}

// The node was to leave at a step that its workers no longer reach.
void AgentMachine::leave_if_done() {
  const bool is_pending = notice_.is_waiting() && notice_.leaves_alone() && !is_finished_;
  if (!is_pending || !policy_.is_done() || drain_.is_reached()) return;
  notice_.end_wait();
  on(StopRequested{SIGTERM});
}

void AgentMachine::give_up_drain(const std::string& why) {
  notice_.end_wait();
  if (is_finished_ || drain_.is_reached() || policy_.is_being_stopped()) return;
  report(AgentEvent::Kind::kDrain, why);
  on(StopRequested{SIGTERM});
}

}  // namespace elastic::core
