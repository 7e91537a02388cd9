// Hosts without which a job continues: the part of CoordinatorJob that carries findings, requests
// and decisions about them.

#include <cstddef>
#include <memory>
#include <utility>
#include <variant>

#include "host/coordinator/coordinator_job.h"
#include "os/loop/clock.h"

namespace elastic::host {
namespace {

constexpr std::size_t kHostMemoriesMax = 256;  // of jobs that have ended

}  // namespace

std::unique_ptr<core::Job> CoordinatorJob::make_job(const JobSettings& settings,
                                                    Duration start_hold) {
  const Instant now = context_.loop->now();
  auto job = std::make_unique<core::Job>(id_, settings, now, start_hold);
  gate::HostMemory hosts;
  if (auto kept = context_.hosts.extract(id_); !kept.empty()) hosts = std::move(kept.mapped());
  hosts.set_epoch(os::wall_time(now) - now.time_since_epoch().count());
  job->take_hosts(std::move(hosts));
  return job;
}

void CoordinatorJob::keep_hosts() {
  const bool has_excluded = !job_->hosts().excluded(context_.loop->now()).empty();
  if (has_excluded && context_.hosts.size() < kHostMemoriesMax) context_.hosts[id_] = job_->hosts();
}

void CoordinatorJob::execute(const gate::HostAction& action) {
  log(gate::describe(action));
  const auto* const excluded = std::get_if<gate::Excluded>(&action);
  if (excluded != nullptr) exclude_command_.run(id_, *excluded);
}

Status CoordinatorJob::on(SessionPeer* peer, gate::Finding& finding) {
  if (job_ != nullptr) step(core::job_event::Found{peer->node, std::move(finding)});
  return {};
}

void CoordinatorJob::request_host(const session::RequestHost& request, std::uint64_t number) {
  if (job_ == nullptr || is_offered()) {
    return observers_.reply(core::gate_action::Inform{number, false, "no node of the job is here"});
  }
  step(
      core::job_event::HostRequested{number, request.host, request.reason, request.is_readmission});
}

}  // namespace elastic::host
