// What observers see of a job: the part of CoordinatorJob that answers them.

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "core/job/job_facts.h"
#include "host/coordinator/coordinator_job.h"
#include "os/loop/clock.h"

namespace elastic::host {

ObserverDesk::Job CoordinatorJob::observed_job() {
  return {.source = {.facts = [this] { return observed_facts(); },
                     .nodes =
                         [this] {
                           if (job_ == nullptr) return std::vector<ObservedNode>();
                           return core::describe_nodes(*rendezvous(), context_.loop->now());
                         },
                     .watch_workers =
                         [this](bool is_on) {
                           for (const auto& [id, node] : sessions_) {
                             node->send(session::WatchWorkers{is_on});
                           }
                         }},
          .request_stacks =
              [this](std::uint64_t number) {
                if (job_ == nullptr || is_offered()) {
                  return observers_.reply(number, hang::kNoRound);
                }
                step(core::hang_event::Requested{number});
              },
          .request_drain =
              [this](const session::RequestDrain& request, std::uint64_t number) {
                if (job_ == nullptr || is_offered()) {
                  return observers_.reply({number, false, hang::kNoRound});
                }
                step(core::job_event::DrainRequested{number, request.notice, request.node});
              }};
}

Status CoordinatorJob::on(SessionPeer* peer, session::Workers& workers) {
  if (!observers_.watches_workers()) {
    peer->send(session::WatchWorkers{false});  // requested by an earlier coordinator
  } else {
    observers_.on_report(peer->node, std::move(workers.report));
  }
  return {};
}

Status CoordinatorJob::on(SessionPeer*, session::ObserverReady&) {
  return Status(StatusCode::kPeerViolation, "a node may send no messages of an observer");
}

Status CoordinatorJob::on(SessionPeer*, session::RequestStacks&) {
  return Status(StatusCode::kPeerViolation, "a node may send no messages of an observer");
}

Status CoordinatorJob::on(SessionPeer*, session::RequestDrain&) {
  return Status(StatusCode::kPeerViolation, "a node may send no messages of an observer");
}

ObservedJob CoordinatorJob::observed_facts() {
  const Instant now = context_.loop->now();
  ObservedJob job = core::describe_job(job_.get(), now);
  job.wall_time = os::wall_time(now);
  job.id = id_;
  job.coordinator = context_.incarnation;
  job.incumbent =
      incumbent_
          ? succession::describe(*incumbent_)
          : CoordinatorInfo{.address = context_.address, .lineage = {}, .term = 1, .voters = {}};
  if (job_ == nullptr) return job;
  job.term = std::max(job.record.term, term_);
  job.incumbent->term = job.term;
  return job;
}

}  // namespace elastic::host
