// The agent's part in the check of the network between the nodes, before its first round.

#include <string>
#include <utility>
#include <variant>

#include "core/gate/node_checks.h"
#include "host/agent/agent_runner.h"
#include "host/gate/network_prober.h"

namespace elastic::host {

void AgentRunner::execute(core::Send action) {
  if (auto* const join = std::get_if<rdzv::Join>(&action.statement)) {
    join->node.probe_port = probe_port();
  }
  membership_->send(action.statement);
}

// 0: this node takes no part. A node that has had a round joins at once.
std::uint16_t AgentRunner::probe_port() {
  if (!options_.network_check || round_ != nullptr) return 0;
  if (prober_ != nullptr || std::exchange(has_tried_prober_, true)) {
    return prober_ == nullptr ? std::uint16_t{0} : prober_->port();
  }
  const auto log = [this](const std::string& text) {
    report_message(AgentEvent::Kind::kNotice, text);
  };
  if (options_.rendezvous.is_single_node()) {
    log("the network is not checked: the job has one node");
    return 0;
  }
  const bool is_range = options_.worker_ports.first != options_.worker_ports.last;
  auto opened = NetworkProber::open(loop_,
                                    {.job_id = options_.run_id,
                                     .bind_host = bind_host_,
                                     .ports = is_range ? options_.worker_ports : PortRange{},
                                     .token = options_.rendezvous.token},
                                    {.report =
                                         [this](const gate::ProbeReport& report) {
                                           if (membership_ != nullptr) membership_->report(report);
                                         },
                                     .log = log});
  if (!opened.ok()) {
    log("the network of this node is not checked: " + std::string(opened.status().message()));
    return 0;
  }
  prober_ = *std::move(opened);
  return prober_->port();
}

void AgentRunner::on_network_finding(const gate::Finding& finding) {
  AgentEvent event = make_event(AgentEvent::Kind::kNodeCheck);
  event.message = gate::describe(finding);
  event.check =
      AgentCheck{finding.host, finding.check, gate::to_string(finding.verdict), finding.reason};
  report(std::move(event));
}

}  // namespace elastic::host
