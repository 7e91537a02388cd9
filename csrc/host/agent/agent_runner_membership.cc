// What the membership delivers to the agent.

#include <utility>
#include <variant>

#include "host/agent/agent_runner.h"
#include "host/membership/membership.h"
#include "host/membership/node_identity.h"

namespace elastic::host {

void AgentRunner::on_membership_event(const MembershipEvent& event) {
  struct Reader {
    AgentRunner* node;
    void operator()(const MembershipReady& ready) const { node->on_membership_ready(ready); }
    void operator()(const MembershipProgress& log_progress) const {
      node->feed(core::Progress{log_progress.message, log_progress.deadline});
    }
    void operator()(const MembershipWatch& watch) const { node->on_watch(watch.is_on); }
    void operator()(const MembershipCoordinatorLog& log) const {
      node->report_message(AgentEvent::Kind::kCoordinatorLog, log.line);
    }
    void operator()(const MembershipCoordinator& now) const { node->on_coordinator(now); }
    void operator()(const rdzv::Waiting& waiting) const {
      core::Progress progress{waiting.message};
      if (waiting.remaining) {
        progress.deadline = add_saturating(node->loop_->now(), *waiting.remaining);
      }
      node->feed(progress);
    }
    void operator()(const MembershipStoreClients& clients) const {
      node->store_.allow(clients.round, clients.addresses);
    }
    void operator()(const MembershipLost& lost) const {
      node->feed(core::RendezvousLost{lost.exit_code, lost.message});
      node->end_round();
    }
    void operator()(const rdzv::RoundOver& over) const {
      if (node->round_ && over.round == node->round_->round) node->end_round();
    }
    void operator()(const rdzv::Round& one) const { node->on_round(one); }
    void operator()(const rdzv::Restart& one) const { node->feed(one); }
    void operator()(const rdzv::Evicted& one) const { node->feed(one); }
    void operator()(const rdzv::Refused& one) const { node->feed(one); }
    void operator()(const rdzv::TimedOut& one) const { node->feed(one); }
    void operator()(const rdzv::Closed& one) const { node->feed(one); }
    void operator()(const hang::StacksWanted& one) const { node->on_stacks_wanted(one); }
    void operator()(const hang::Verdict& one) const { node->feed(one); }
    void operator()(const drain::Order& one) const { node->feed(one); }
    void operator()(const drain::News& one) const {
      node->report_message(AgentEvent::Kind::kDrain, one.text);
    }
  };
  std::visit(Reader{this}, event);
}

// Without one the coordinator waits for the agent of a closed session to resume, as it does without
// proof that it has ended.
void AgentRunner::open_liveness_port() {
  const RendezvousOptions& rendezvous = options_.rendezvous;
  if (rendezvous.is_single_node()) return;
  auto port = LivenessPort::open(loop_);
  if (port.ok()) liveness_port_ = *std::move(port);
}

void AgentRunner::on_membership_ready(const MembershipReady& ready) {
  bind_host_ = store_host(options_.rendezvous, ready.address);
  hosts_coordinator_ = ready.hosts_coordinator;
  is_store_at_endpoint_ =
      ready.hosts_coordinator && options_.share_store && is_endpoint_port(options_.master_port);
  feed(core::RendezvousReady{make_node_name(ready.address), ready.address});
}

void AgentRunner::execute(core::agent_action::AwaitTemplate) {
  supervisor_->when_warm([this] { feed(core::agent_event::TemplateReady{}); });
}

void AgentRunner::execute(core::agent_action::Observe action) {
  if (membership_ == nullptr) return;
  std::visit([this](const auto& one) { membership_->report(one); }, action.message);
}

void AgentRunner::execute(core::agent_action::RequestDrain action) {
  membership_->report(action.notice);
}

void AgentRunner::on_coordinator(const MembershipCoordinator& now) {
  coordinator_ = now.coordinator;
  hosts_coordinator_ = now.is_here;
  if (!now.moved) return;
  AgentEvent event;
  event.kind = AgentEvent::Kind::kCoordinatorMoved;
  event.state = machine_.state();
  event.at = loop_->now();
  event.coordinator = coordinator_;
  event.moved = now.moved;
  event.message = now.message;
  report(std::move(event));
}

bool AgentRunner::is_endpoint_port(std::uint16_t port) const {
  const RendezvousOptions& rendezvous = options_.rendezvous;
  return rendezvous.settings.static_ranks && port != 0 && port == rendezvous.endpoint_port;
}

void AgentRunner::on_round(rdzv::Round round) {
  const bool is_at_endpoint =
      round.record->coordinator_rank == 0 && is_endpoint_port(round.record->master_port);
  if (is_at_endpoint) {
    auto record = std::make_shared<RoundRecord>(*round.record);
    record->master_addr = options_.rendezvous.endpoint_host;
    round.record = std::move(record);
  }
  feed(round);
}

void AgentRunner::end_round() {
  store_.end_round();
  feed(core::agent_event::RoundOver{});
}

}  // namespace elastic::host
