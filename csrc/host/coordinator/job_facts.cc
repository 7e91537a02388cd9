#include "host/coordinator/job_facts.h"

#include <string>
#include <utility>

#include "core/session/observer_fields.h"
#include "os/loop/clock.h"

namespace elastic::host {

ObservedJob describe_job(const Rendezvous* machine, const core::JobHistory& history,
                         const HangDesk& hangs, const DrainDesk& drain, Instant now) {
  ObservedJob job;
  job.now = now;
  job.wall_time = os::wall_time(now);
  job.began = history.began();
  job.running = history.running(now);
  job.rounds = history.rounds();
  for (hang::Straggler& one : hangs.stragglers()) {
    if (job.stragglers.size() == core::kStragglersObserved) break;
    job.stragglers.push_back({one.rank, std::move(one.node), one.step, now - one.progressed});
  }
  if (auto hang = hangs.hang()) {
    job.hang = {now - hang->progressed, hang->step, hang->suspect, std::move(hang->place)};
  }
  if (const auto pace = hangs.pace()) {
    job.progress = {pace->newest, pace->oldest, pace->ranks, pace->step_time};
  }
  if (machine == nullptr) {
    job.description = "no node has joined";
    return job;
  }
  job.phase = machine->phase();
  job.description = machine->describe(now);
  if (const std::string stop = drain.describe(); !stop.empty()) job.description += "; " + stop;
  job.settings = machine->settings();
  job.record = machine->record();
  job.waiting_nodes = machine->waiting_nodes();
  job.spare_nodes = machine->spare_nodes();
  if (machine->result() != nullptr) job.result = *machine->result();
  return job;
}

std::vector<ObservedNode> describe_nodes(const Rendezvous& machine, Instant now) {
  std::vector<ObservedNode> nodes;
  const std::vector<RoundMember>& members = machine.members();
  for (NodeStatus& status : machine.nodes(now)) {
    ObservedNode node;
    node.id = status.id;
    node.name = std::move(status.name);
    node.phase = status.phase;
    node.rank = status.rank;
    node.is_suspect = status.is_suspect;
    node.silence = status.silence;
    const auto rank = static_cast<std::size_t>(status.rank);
    if (status.rank >= 0 && rank < members.size() && members[rank].id == status.id) {
      node.address = members[rank].address;
      node.role = members[rank].role;
      node.local_world_size = members[rank].local_world_size;
      node.hosts_coordinator = machine.record().coordinator_rank == status.rank;
    }
    nodes.push_back(std::move(node));
  }
  return nodes;
}

}  // namespace elastic::host
