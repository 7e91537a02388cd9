// Hosts without which a job continues: the part of CoordinatorJob that carries findings, requests
// and decisions about them.

#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "core/gate/node_checks.h"
#include "core/session/node_reports.h"
#include "host/coordinator/coordinator_job.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

std::unique_ptr<core::Job> CoordinatorJob::make_job(const JobSettings& settings,
                                                    Duration start_hold) {
  const Instant now = context_.loop->now();
  auto job = std::make_unique<core::Job>(id_, settings, now, start_hold);
  job->take_hosts(context_.hosts.take(id_, now));
  return job;
}

void CoordinatorJob::keep_hosts() { context_.hosts.keep(id_, job_->hosts(), context_.loop->now()); }

void CoordinatorJob::execute(const gate::HostAction& action) {
  const std::string text = gate::describe(action);
  log(text);
  const auto* const excluded = std::get_if<gate::Excluded>(&action);
  using About = drain::News::About;
  announce({text, excluded != nullptr ? About::kExclusion : About::kReadmission});
  if (excluded != nullptr) exclude_command_.run(id_, *excluded);
}

Status CoordinatorJob::on(SessionPeer* peer, gate::Finding& finding) {
  const bool is_turned_away = !peer->has_joined && finding.verdict == gate::Verdict::kBad;
  const Status why(StatusCode::kFailedPrecondition, gate::describe(finding));
  if (job_ != nullptr) {
    step(core::job_event::Found{peer->node, std::move(finding)});
  } else if (early_findings_.size() < core::kFindingsKept) {
    log(std::string(why.message()) + "; no node has joined yet");
    early_findings_.emplace_back(context_.loop->now(),
                                 core::job_event::Found{peer->node, std::move(finding)});
  }
  if (is_turned_away) peer->send(rdzv::Refused{peer->node, why, true});
  return {};
}

void CoordinatorJob::pass_early_findings() {
  const Instant now = context_.loop->now();
  for (auto& [at, one] : std::exchange(early_findings_, {})) {
    if (now < add_saturating(at, rendezvous()->settings().join_timeout)) step(std::move(one));
  }
}

Status CoordinatorJob::on(SessionPeer* peer, gate::ProbeReport& report) {
  if (job_ != nullptr && peer->has_joined) {
    step(core::job_event::Probed{peer->node, std::move(report)});
  }
  return {};
}

void CoordinatorJob::execute(const gate::NetworkAction& action) {
  if (const auto* const order = std::get_if<gate::network_action::Order>(&action)) {
    if (SessionPeer* const peer = session_of(order->to)) peer->send(order->order);
  } else if (const auto* const inform = std::get_if<gate::network_action::Inform>(&action)) {
    SessionPeer* const peer = session_of(inform->to);
    if (peer != nullptr) peer->send(gate::NetworkFinding{inform->finding});
  } else {
    log(std::get<gate::network_action::Log>(action).text);
  }
}

void CoordinatorJob::request_host(const session::RequestHost& request, std::uint64_t number) {
  if (job_ == nullptr) {
    return observers_.reply(core::gate_action::Inform{number, false, "no node of the job is here"});
  }
  step(
      core::job_event::HostRequested{number, request.host, request.reason, request.is_readmission});
}

}  // namespace elastic::host
