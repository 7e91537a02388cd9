// What a function of the user says about the failed workers of this node: when it is asked, and how
// long the end of the round waits for the answers. Without them the failure is decided as if there
// were no function.

#include <string>
#include <utility>

#include "core/agent/agent_machine.h"
#include "core/base/text.h"

namespace elastic::core {

void AgentMachine::ask_for_advice(const WorkerExited& found) {
  const WorkerFailure* const failure = policy_.failure_of(found.local_rank);
  const bool decides = failure != nullptr && policy_.state() == AgentState::kUnhealthy &&
                       !policy_.is_being_stopped();
  if (!decides || !questions_.ask(found, now_)) return;
  AgentEvent event = event_of(AgentEvent::Kind::kAdviceAsked, policy_.state(), now_);
  event.local_rank = found.local_rank;
  event.failure = *failure;
  act(Report{std::move(event)});
}

void AgentMachine::on(const agent_event::Advised& event) {
  if (round_ == nullptr || event.round != round_->round) return;
  if (auto found = questions_.answer(event.local_rank, event.advice)) {
    decide(FailureFound{*std::move(found)});
  }
  end_examined_round();
}

void AgentMachine::apply(const Unanswered& action) {
  const Duration limit = advice_limit(options_.policy.settings.node_timeout);
  for (const int local_rank : action.local_ranks) {
    const int rank = round_->workers[static_cast<std::size_t>(local_rank)].rank;
    report(AgentEvent::Kind::kNotice, "the policy function has not answered about rank " +
                                          std::to_string(rank) + " within " + duration_text(limit) +
                                          ": its failure is decided without it");
  }
  end_examined_round();
}

// The job, or this node's part in it, is over: nothing is left to decide.
void AgentMachine::drop_questions() {
  questions_.clear();
  end_examined_round();
}

void AgentMachine::end_examined_round() {
  if (questions_.is_waiting() || !std::exchange(is_examined_, false)) return;
  on(GroupGone{});
}

}  // namespace elastic::core
