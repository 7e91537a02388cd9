// The checks of a node, as its agent follows them: what is reported, when it joins, and how a bad
// node leaves.

#include <string>
#include <utility>

#include "core/agent/agent_machine.h"
#include "core/base/text.h"
#include "core/gate/node_checks.h"

namespace elastic::core {

void AgentMachine::end_checks() {
  unfit_.reset();
  unfit_until_.reset();
  feed(node_event::Ended{});
}

void AgentMachine::apply(const gate::check_action::Report& action) {
  unsent_findings_.push_back(action.finding);
  AgentEvent event = event_of(AgentEvent::Kind::kNodeCheck, policy_.state(), now_);
  event.message = gate::describe(action.finding);
  event.check = AgentCheck{action.finding.host, action.finding.check,
                           gate::to_string(action.finding.verdict), action.finding.reason};
  act(Report{std::move(event)});
  if (is_reached_) report_findings();
}

void AgentMachine::report_findings() {
  for (gate::Finding& finding : std::exchange(unsent_findings_, {})) {
    act(agent_action::Observe{std::move(finding)});
  }
}

void AgentMachine::apply(const gate::check_action::Reject& action) {
  unfit_ = gate::describe(action.finding);
  unfit_until_ = now_ + kFindingLimit;
  if (is_reached_) report_unfit();
}

// A coordinator learns what was found also of a node that does not join, and refuses it.
void AgentMachine::report_unfit() {
  if (has_joined_ || options_.policy.settings.max_nodes == 1) return leave_unfit();
  ready_.reset();
  join_at_.reset();
  act(agent_action::ReportOnly{policy_.node()});
  if (!serves_others()) return;
  const Duration limit = options_.policy.settings.last_call_timeout + kFindingLimit;
  unfit_until_ = add_saturating(now_, limit);
  report(AgentEvent::Kind::kProgress,
         *unfit_ + "; the coordinator on this host tells it to the other nodes for " +
             duration_text(limit));
}

// Nodes that wait for no replacement would wait for a coordinator that has gone with its bad host.
bool AgentMachine::serves_others() const {
  return hosts_coordinator_ && options_.policy.settings.on_loss == LossPolicy::kFail;
}

void AgentMachine::on(const rdzv::Refused& event) {
  if (unfit_ && serves_others()) return;
  if (unfit_) return leave_unfit();
  decide(event);
}

// One whose part in the job is over has nothing left to leave.
void AgentMachine::leave_unfit() {
  unfit_until_.reset();
  ready_.reset();
  join_at_.reset();
  const std::string why = *std::exchange(unfit_, std::nullopt);
  const bool has_part = !is_finished_ && !policy_.is_done() && !policy_.is_being_stopped();
  if (has_part) on(NodeUnfit{why, has_joined_});
}

}  // namespace elastic::core
