// What observers see of a job: the part of CoordinatorJob that answers them.

#include <algorithm>
#include <string>
#include <utility>

#include "core/session/observer_fields.h"
#include "host/coordinator/coordinator_job.h"
#include "os/loop/clock.h"

namespace elastic::host {

void CoordinatorJob::add_observer(SessionPeer* peer, const session::ObserverRequest& request) {
  peer->observed = this;
  if (observers_ == nullptr) {
    observers_ = std::make_unique<JobObservers>(
        context_.loop, JobObservers::Source{.facts = [this] { return observed_facts(); },
                                            .nodes = [this] { return observed_nodes(); },
                                            .watch_workers =
                                                [this](bool is_on) {
                                                  for (const auto& [id, node] : sessions_) {
                                                    node->send(session::WatchWorkers{is_on});
                                                  }
                                                }});
  }
  observers_->add(peer, request);
}

void CoordinatorJob::remove_observer(SessionPeer* peer) {
  peer->observed = nullptr;
  std::erase_if(stacks_asked_, [peer](const auto& asked) { return asked.second == peer; });
  std::erase_if(drain_asked_, [peer](const auto& asked) { return asked.second == peer; });
  observers_->remove(peer);
  if (observers_->empty()) observers_.reset();
}

Status CoordinatorJob::on_observer_message(SessionPeer* peer,
                                           const session::ClientMessage& message) {
  if (std::holds_alternative<session::RequestStacks>(message)) {
    stacks_asked_[++stacks_requests_] = peer;
    hangs_.feed(core::hang_event::Requested{stacks_requests_});
    return {};
  }
  if (const auto* request = std::get_if<session::RequestDrain>(&message)) {
    return request_drain(peer, *request);
  }
  return observers_->on_message(peer, message);
}

void CoordinatorJob::send_stacks(std::uint64_t asked, std::string text) {
  const auto found = stacks_asked_.find(asked);
  if (found == stacks_asked_.end()) return;
  found->second->send(session::StacksReport{std::move(text)});
  stacks_asked_.erase(found);
}

void CoordinatorJob::end_observation(const std::string& reason) {
  if (observers_ == nullptr) return;
  stacks_asked_.clear();
  drain_asked_.clear();
  observers_->end(reason);
  observers_.reset();
}

Status CoordinatorJob::on(SessionPeer* peer, session::Workers& workers) {
  if (observers_ == nullptr || !observers_->watches_workers()) {
    peer->send(session::WatchWorkers{false});  // requested by an earlier coordinator
  } else {
    observers_->on_report(peer->node, std::move(workers.report));
  }
  return {};
}

Status CoordinatorJob::on(SessionPeer*, session::ObserverReady&) {
  return Status(StatusCode::kPeerViolation, "a node may send no messages of an observer");
}

Status CoordinatorJob::on(SessionPeer*, session::RequestStacks&) {
  return Status(StatusCode::kPeerViolation, "a node may send no messages of an observer");
}

ObservedJob CoordinatorJob::observed_facts() {
  const Instant now = context_.loop->now();
  // The job may have changed in this iteration, and the history follows only at its end.
  if (machine_ != nullptr) history_.update(machine_->phase(), machine_->record(), now);
  ObservedJob job;
  job.id = id_;
  job.coordinator = context_.incarnation;
  job.incumbent =
      incumbent_
          ? succession::describe(*incumbent_)
          : CoordinatorInfo{.address = context_.address, .lineage = {}, .term = 1, .voters = {}};
  job.now = now;
  job.wall_time = os::wall_time(now);
  job.began = history_.began();
  job.running = history_.running(now);
  job.rounds = history_.rounds();
  for (hang::Straggler& one : hangs_.stragglers()) {
    if (job.stragglers.size() == core::kStragglersObserved) break;
    job.stragglers.push_back({one.rank, std::move(one.node), one.step, now - one.progressed});
  }
  if (auto hang = hangs_.hang()) {
    job.hang = {now - hang->progressed, hang->step, hang->suspect, std::move(hang->place)};
  }
  if (machine_ == nullptr) {
    job.description = "no node has joined";
    return job;
  }
  job.phase = machine_->phase();
  job.description = machine_->describe(now);
  if (const std::string stop = drain_.describe(); !stop.empty()) job.description += "; " + stop;
  job.settings = machine_->settings();
  job.record = machine_->record();
  job.term = std::max(job.record.term, term_);
  job.incumbent->term = job.term;
  job.waiting_nodes = machine_->waiting_nodes();
  job.spare_nodes = machine_->spare_nodes();
  if (machine_->result() != nullptr) job.result = *machine_->result();
  return job;
}

std::vector<ObservedNode> CoordinatorJob::observed_nodes() const {
  std::vector<ObservedNode> nodes;
  if (machine_ == nullptr) return nodes;
  const std::vector<RoundMember>& members = machine_->members();
  for (NodeStatus& status : machine_->nodes(context_.loop->now())) {
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
      node.hosts_coordinator = machine_->record().coordinator_rank == status.rank;
    }
    nodes.push_back(std::move(node));
  }
  return nodes;
}

}  // namespace elastic::host
