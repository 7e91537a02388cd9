#include "core/snapshot/node_snapshots.h"

#include <algorithm>
#include <utility>

#include "core/snapshot/snapshot_plan.h"

// Theory of operation. Every rank of a round continues from one step, which the rendezvous has
// chosen by what its nodes had joined with. So a node that lacks a state of that step gets it from
// another node before it starts a worker, and if it cannot, no node runs the round: the next one
// continues from another step.

namespace elastic::snapshot {

void NodeSnapshots::on(const HeldEvent& event, Instant now) {
  has_saved_ = true;
  saved_ = event.held;
  std::int64_t step = -1;
  if (round_ != nullptr && !round_->workers.empty()) {
    const WorkerAssignment& first = round_->workers.front();
    const auto ranks = static_cast<int>(round_->workers.size());
    step = newest_step(saved_, first.world_size, first.rank, ranks);
  }
  if (step != saved_step_) saved_at_ = now;
  saved_step_ = step;
}

// The last step that it had reported, or -1.
void NodeSnapshots::on(const core::node_event::WorkerEnded& event, Instant) {
  last_step_ = std::max(last_step_, event.exit.last_step);
}

void NodeSnapshots::join(bool has_processes, Out* out) {
  if (std::exchange(is_out_of_memory_, false)) {
    release(has_processes, "a worker was killed for lack of memory", out);
  }
  if (std::exchange(is_displaced_, false)) {
    release(has_processes, "they are of the job that has dissolved", out);
  }
}

// Their memory is charged to the group in which the next workers must fit.
void NodeSnapshots::release(bool has_processes, const std::string& why, Out* out) {
  if (!has_saved_ || has_processes) return;
  out->emplace_back(node_action::Keep{});
  copies_.held.clear();
  if (std::exchange(saved_, {}).empty()) return;
  out->emplace_back(node_action::Say{"the snapshots of this node were released: " + why});
}

std::vector<HeldState> NodeSnapshots::holdings(bool has_processes) const {
  if (has_processes) return {kKeepsProcesses};
  std::vector<HeldState> all = saved_;
  all.insert(all.end(), copies_.held.begin(), copies_.held.end());
  all.insert(all.end(), unreached_.begin(), unreached_.end());
  return all;
}

// States that this node needs for the round and that are not here: of its ranks, or one for all.
int NodeSnapshots::num_missing() const {
  const ResumePoint& point = round_->resume;
  if (point.step < 0) return 0;
  const auto is_held = [&](int rank, int world_size) {
    return std::any_of(saved_.begin(), saved_.end(), [&](const HeldState& one) {
      return one.rank == rank && one.world_size == world_size && one.step == point.step &&
             (point.round < 0 || one.round == point.round);
    });
  };
  const auto missing = static_cast<int>(
      std::count_if(round_->workers.begin(), round_->workers.end(),
                    [&](const auto& worker) { return !is_held(worker.rank, worker.world_size); }));
  if (point.kind != ResumeKind::kReplicated) return missing;
  const bool is_shared = std::any_of(sources_.begin(), sources_.end(), [&](const auto& one) {
    return one.address.empty() && is_held(one.rank, one.world_size);
  });
  return is_shared ? 0 : std::min(missing, 1);
}

void NodeSnapshots::plan(Out* out) {
  const RoundInfo& round = *round_;
  missing_ = num_missing();
  is_fetching_ = false;
  const std::int64_t last = std::exchange(last_step_, -1);
  if (!has_saved_ && round.resume.kind != ResumeKind::kReplicated) return;
  const int ranks = static_cast<int>(round.workers.size());
  const int base_rank = ranks > 0 ? round.workers.front().rank : 0;
  const int world_size = ranks > 0 ? round.workers.front().world_size : 0;
  KeepRequest kept{round.resume, world_size, base_rank, ranks};
  for (const HeldSource& one : sources_) {
    if (!one.is_shared || !one.address.empty()) continue;
    kept.shared_rank = one.rank;
    kept.shared_world_size = one.world_size;
  }
  out->emplace_back(node_action::Keep{kept});
  const auto held = std::exchange(saved_, {});  // the guardian reports what it has kept
  if (held.empty()) return;
  if (round.resume.step >= 0 && round.group_rank != 0) return;
  out->emplace_back(
      node_action::Say{"round " + std::to_string(shown_round(round.round)) + ": " +
                       describe_plan(round.resume, last, held, world_size, base_rank, ranks)});
}

void NodeSnapshots::fetch(Out* out) {
  std::vector<HeldSource> sources = std::exchange(sources_, {});
  if (missing_ == 0) return;
  if (static_cast<int>(sources.size()) < missing_ || sources.front().address.empty()) {
    out->emplace_back(node_action::Abandon{"the node that had it is gone"});
    return;
  }
  is_fetching_ = true;
  std::string ranks;
  for (const HeldSource& one : sources) {
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(one.rank);
  }
  out->emplace_back(node_action::Say{"waiting for the state after step " +
                                         std::to_string(round_->resume.step) + " of rank " + ranks +
                                         " from " + sources.front().address,
                                     true});
  out->emplace_back(node_action::Fetch{round_->resume.step, round_->workers.front().world_size,
                                       std::move(sources)});
}

std::string NodeSnapshots::give_up(const std::string& why) {
  const std::int64_t step = round_->resume.step;
  const std::int32_t world_size = round_->workers.front().world_size;
  unreached_.push_back({.rank = -1, .world_size = world_size, .step = step});
  return "the state after step " + std::to_string(step) +
         " cannot be had, and an older one follows if there is one: " + why;
}

}  // namespace elastic::snapshot
