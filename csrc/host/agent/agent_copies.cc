// The agent's part in snapshots, which outlive the workers, and in their copies on other nodes.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "host/agent/agent_runner.h"
#include "host/base/framed_peer.h"
#include "host/snapshot/copies.h"

namespace elastic::host {

void AgentRunner::on_extension(const snapshot::HeldEvent& event) {
  if (!event.notice.empty()) {
    report_message(AgentEvent::Kind::kNotice, std::string(event.notice));
  }
  feed(event);
  memory_ = {.own = event.bytes,
             .copies = copies_ == nullptr ? 0 : copies_->bytes(),
             .needed = event.needed,
             .limit = event.left};
  // A node that joins gets a replicated state from here.
  const bool is_replicated = std::any_of(event.held.begin(), event.held.end(),
                                         [](const HeldState& one) { return one.is_replicated; });
  const bool has_others = round_ != nullptr && (round_->group_world_size > 1 || is_replicated);
  SnapshotCopies* const copies = has_others && !event.held.empty() ? this->copies() : copies_.get();
  if (copies != nullptr) copies->on_held(event.held);
}

// With copies, as much again for each node whose buddy this one is: its ranks have as large a
// state.
snapshot::MemoryUse AgentRunner::snapshot_memory() const {
  snapshot::MemoryUse use = memory_;
  if (use.limit > 0) use.limit += use.own + use.copies;
  if (copies_ == nullptr) return use;
  use.copies = copies_->bytes();
  const std::uint64_t copies = options_.snapshot_memory;
  const std::uint64_t of_others =
      use.needed * static_cast<std::uint64_t>(options_.snapshot_buddies);
  use.needed += copies > 0 ? std::min(copies, of_others) : of_others;
  return use;
}

SnapshotCopies* AgentRunner::copies() {
  if (copies_ != nullptr || options_.snapshot_buddies == 0 ||
      options_.rendezvous.is_single_node() || std::exchange(has_tried_copies_, true)) {
    return copies_.get();
  }
  const auto log = [this](const std::string& text) {
    report_message(AgentEvent::Kind::kNotice, text);
  };
  auto tokens = open_tokens(options_.rendezvous.token, log);
  if (!tokens.ok()) {
    log("the snapshots of this node are not copied: " + std::string(tokens.status().message()));
    return nullptr;
  }
  const bool is_range = options_.worker_ports.first != options_.worker_ports.last;
  copies_ = std::make_unique<SnapshotCopies>(
      loop_,
      SnapshotCopies::Options{.job_id = options_.run_id,
                              .address = address_,
                              .bind_host = bind_host_,
                              .ports = is_range ? options_.worker_ports : PortRange{},
                              .tokens = *std::move(tokens),
                              .host = host_name_,
                              .domain = options_.rendezvous.topology,
                              .rate = options_.snapshot_rate,
                              .memory_max = options_.snapshot_memory,
                              .buddies = options_.snapshot_buddies},
      SnapshotCopies::Sink{.report =
                               [this](const snapshot::CopyReport& report) {
                                 if (membership_ != nullptr) membership_->report(report);
                               },
                           .changed = [this](const snapshot::CopiesEvent& event) { feed(event); },
                           .attach =
                               [this](os::UniqueFd socket) {
                                 supervisor_->request(snapshot::ConnectRequest{},
                                                      std::move(socket));
                               },
                           .log = log});
  begin_copies();
  return copies_.get();
}

void AgentRunner::begin_copies() {
  if (round_ == nullptr || round_->workers.empty()) return;
  const WorkerAssignment& first = round_->workers.front();
  copies_->begin_round(round_->round, round_->group_rank,
                       {.point = round_->resume,
                        .world_size = first.world_size,
                        .base_rank = first.rank,
                        .ranks = static_cast<std::int32_t>(round_->workers.size())});
}

void AgentRunner::execute(snapshot::node_action::Fetch action) {
  SnapshotCopies* const copies = this->copies();
  if (copies == nullptr) {
    return feed(core::agent_event::SnapshotsFetched{
        Status(StatusCode::kFailedPrecondition, "copies are off on this node")});
  }
  copies->fetch(action.step, action.world_size, std::move(action.sources), [this](Status status) {
    feed(core::agent_event::SnapshotsFetched{std::move(status)});
  });
}

}  // namespace elastic::host
