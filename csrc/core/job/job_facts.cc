#include "core/job/job_facts.h"

#include <string>
#include <utility>

#include "core/session/observer_fields.h"

namespace elastic::core {

ObservedJob describe_job(const Job* job, Instant now) {
  ObservedJob facts;
  facts.now = now;
  if (job == nullptr) {
    facts.description = "no node has joined";
    return facts;
  }
  facts.began = job->history().began();
  facts.running = job->history().running(now);
  facts.rounds = job->history().rounds();
  for (hang::Straggler& one : job->hangs().stragglers()) {
    if (facts.stragglers.size() == kStragglersObserved) break;
    facts.stragglers.push_back({one.rank, std::move(one.node), one.step, now - one.progressed});
  }
  if (auto hang = job->hangs().hang()) {
    facts.hang = {now - hang->progressed, hang->step, hang->suspect, std::move(hang->place)};
  }
  if (const auto pace = job->hangs().pace()) {
    facts.progress = {pace->newest, pace->oldest, pace->ranks, pace->step_time};
  }
  const RendezvousMachine& rendezvous = job->rendezvous();
  facts.phase = rendezvous.phase();
  facts.description = rendezvous.describe(now);
  if (const std::string stop = job->describe_drain(); !stop.empty()) {
    facts.description += "; " + stop;
  }
  facts.settings = rendezvous.settings();
  facts.record = rendezvous.record();
  facts.waiting_nodes = rendezvous.waiting_nodes();
  facts.spare_nodes = rendezvous.spare_nodes();
  if (rendezvous.result() != nullptr) facts.result = *rendezvous.result();
  return facts;
}

std::vector<ObservedNode> describe_nodes(const RendezvousMachine& rendezvous, Instant now) {
  std::vector<ObservedNode> nodes;
  const std::vector<RoundMember>& members = rendezvous.members();
  for (NodeStatus& status : rendezvous.nodes(now)) {
    ObservedNode node;
    node.id = status.id;
    node.name = std::move(status.name);
    node.phase = status.phase;
    node.rank = status.rank;
    node.is_suspect = status.is_suspect;
    node.silence = status.silence;
    node.hosts_coordinator = status.hosts_coordinator;
    const auto rank = static_cast<std::size_t>(status.rank);
    if (status.rank >= 0 && rank < members.size() && members[rank].id == status.id) {
      node.address = members[rank].address;
      node.role = members[rank].role;
      node.local_world_size = members[rank].local_world_size;
    }
    nodes.push_back(std::move(node));
  }
  return nodes;
}

}  // namespace elastic::core
