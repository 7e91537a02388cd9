// The start of a simulated job, and what can happen to its processes and to the network between
// them.

#include <utility>

#include "sim/succession_world_impl.h"

namespace elastic::test {

void SuccessionWorld::crash(std::size_t slot, bool is_host_dead) {
  Process& process = processes_[slot];
  if (!process.is_alive) return;
  trace(name(slot) + (is_host_dead ? "  ---- its host is lost" : "  ---- its process ends"));
  process.is_alive = false;
  process.store.reset();
  process.on_stopped = nullptr;
  if (is_host_dead) hosts_down_.insert(slot);
  if (process.agent != nullptr) process.agent->crash(is_host_dead);
  if (slot == kCoordinatorSlot) file_.end_writer();
  if (process.server != nullptr) std::exchange(process.server, nullptr)->end(is_host_dead);
  if (has(kWitness) && !is_host_dead) close_connections_with_witness(slot);
}

// The end of a connection arrives behind the frames that were sent on it.
void SuccessionWorld::close_connections_with_witness(std::size_t slot) {
  if (is_witness(slot)) {
    for (std::size_t to = 0; to < nodes_; ++to) {
      if (cuts_.has(slot, to)) continue;
      clock_.after(2ms, [this, to, address = voter_address(slot)] {
        feed(to, succession::Unreachable{address});
      });
    }
  } else if (!cuts_.has(slot, kWitnessSlot)) {
    clock_.after(2ms, [this, connection = processes_[slot].life * 10 + slot] {
      feed(kWitnessSlot, succession::ConnectionEnded{connection});
    });
  }
}

void SuccessionWorld::cut(std::size_t a, std::size_t b, bool is_cut) {
  cuts_.cut(a, b, is_cut);
  for (const auto& [pair, one] : paths_) {
    if (pair.first == a && pair.second == b) one->is_blocked[0] = is_cut;
    if (pair.first == b && pair.second == a) one->is_blocked[1] = is_cut;
    if (!is_cut && one->is_open()) one->unblock();
  }
}

void SuccessionWorld::cut_both(std::size_t a, std::size_t b, bool is_cut) {
  cut(a, b, is_cut);
  cut(b, a, is_cut);
}

void SuccessionWorld::cut_off(std::size_t slot, bool is_cut) {
  for (std::size_t to = 0; to <= kStoreSlot; ++to) {
    if (to != slot) cut_both(slot, to, is_cut);
  }
}

void SuccessionWorld::mend() {
  for (std::size_t a = 0; a <= kStoreSlot; ++a) {
    for (std::size_t b = 0; b <= kStoreSlot; ++b) cut(a, b, false);
  }
}

void SuccessionWorld::heal() {
  trace("---- everything heals");
  mend();
  store_.set_faulty(false);
  file_.set_full(false);
  file_.set_slow(false);
  is_healed_ = true;
}

void SuccessionWorld::restart_coordinator(Duration away) {
  crash(kCoordinatorSlot, false);
  clock_.after(away, [this] {
    if (!processes_[kCoordinatorSlot].is_alive) boot(kCoordinatorSlot);
  });
}

void SuccessionWorld::start() {
  if (has(kStandalone)) boot(kCoordinatorSlot);
  if (has(kWitness) && !processes_[kWitnessSlot].is_alive) boot(kWitnessSlot);
  for (std::size_t slot = 0; slot < nodes_; ++slot) {
    boot(slot);
    // The node at the first slot coordinates.
    if (slot == 0 && has_store() && !has(kTogether)) run_until(10s, [&] { return has_voters(1); });
  }
  const std::size_t voters = nodes_ >= 5 ? 5 : 3;
  const auto has_keeper = [&] { return has(kOneVoter) || has_voters(voters); };
  if (!run_until(10s, [&] { return runs_round_of(nodes_) && has_keeper(); })) {
    violate("the job does not start with " + std::to_string(voters) + " voters");
  }
  run(1s);
  elections() = 0;
}

void SuccessionWorld::expect_next_round(std::size_t nodes, Duration within) {
  expect_round(nodes, within, checker_.last_round().round + 1);
}

// A store proves no loss: the former coordinator's node has more time to resume.
void SuccessionWorld::expect_round(std::size_t nodes, Duration within, std::uint64_t next) {
  if (has_store()) within += kNodeTimeout;
  const Instant began = clock_.now();
  const bool is_there = run_until(within, [&] { return runs_round_of(nodes, next); });
  report_.recovery = clock_.now() - began;
  if (!is_there) violate("no round of the survivors within the limit");
}

void SuccessionWorld::plan_fault() {
  clock_.after(dice_.between(Duration(200ms), Duration(6s)), [this] {
    if (is_healed_) return;
    cause_fault();
    plan_fault();
  });
}

std::size_t SuccessionWorld::any_process() {
  const int last = static_cast<int>(nodes_) - (has(kWitness) ? 0 : 1);
  const auto slot = static_cast<std::size_t>(dice_.between(0, last));
  return slot == nodes_ ? kWitnessSlot : slot;
}

void SuccessionWorld::cause_fault() {
  if (has(kSteps) && dice_.chance(0.5)) {
    if (dice_.chance(0.6)) return boot_newcomer();
    return depart(static_cast<std::size_t>(dice_.between(0, 4)));
  }
  const std::size_t slot = any_process();
  const std::size_t other = any_process();
  const Duration length = dice_.between(Duration(10ms), Duration(9s));
  if (has_store() && dice_.chance(0.1)) {
    trace("---- " + name(slot) + " is cut off from the store");
    cut_both(slot, kStoreSlot, true);
    clock_.after(length, [this, slot] { cut_both(slot, kStoreSlot, false); });
    return;
  }
  if (keeper_ == Keeper::kFile && dice_.chance(0.25)) return restart_coordinator(length);
  const std::size_t alive = num_alive();
  switch (dice_.between(0, 7)) {
    case 0:
      if (may_crash(alive)) {
        ++crashes_;
        crash(slot, dice_.chance(0.5));
      }
      break;
    case 1:
    case 2:
      if (slot == other) break;
      trace("---- cut between " + name(slot) + " and " + name(other));
      cut(slot, other, true);
      if (dice_.chance(0.7)) cut(other, slot, true);
      clock_.after(length, [this, slot, other] { cut_both(slot, other, false); });
      break;
    case 3:
      trace("---- " + name(slot) + " is cut off");
      cut_off(slot, true);
      clock_.after(length, [this, slot] { cut_off(slot, false); });
      break;
    case 4:
      if (is_witness(slot)) {
        restart_witness();
      } else if (processes_[slot].is_alive) {
        processes_[slot].agent->fail_workers();
      }
      break;
    case 5:
      if (processes_[slot].machine->is_coordinator() && has_voters(3) && may_resign(alive)) {
        resign(slot);
      }
      break;
    case 6:
      // A node that coordinates ends with its service, which a leave does not.
      if (!is_witness(slot) && processes_[slot].is_alive && alive > 3 && !is_serving(slot) &&
          dice_.chance(0.3)) {
        processes_[slot].agent->leave();
      }
      break;
    case 7:
      if (!is_witness(slot) && processes_[slot].is_alive && dice_.chance(0.3)) {
        processes_[slot].agent->finish_workers();
      }
      break;
  }
}

// Voters lose no majority; with a store one process is enough.
bool SuccessionWorld::may_crash(std::size_t alive) const {
  return has_store() ? alive > 1 : alive > 2 && crashes_ < 2;
}

// Another node can take its place.
bool SuccessionWorld::may_resign(std::size_t alive) const { return !has_store() || alive > 2; }

void SuccessionWorld::restart_witness() {
  crash(kWitnessSlot, false);
  boot(kWitnessSlot);
}

std::size_t SuccessionWorld::any_process_but(std::size_t slot) {
  std::size_t other = slot;
  while (other == slot) other = any_process();
  return other;
}

SuccessionWorld::SuccessionWorld(const Scene& scene, Keeper keeper, std::uint64_t seed,
                                 bool is_traced, ServiceRule deleted)
    : SimProcesses(seed, is_traced),
      scene_(scene),
      keeper_(keeper),
      nodes_(scene_.nodes),
      deleted_(deleted) {
  if (nodes_ == 0) nodes_ = static_cast<std::size_t>(dice_.between(3, 5));
  settings_.min_nodes = 1;
  settings_.max_nodes = static_cast<int>(has(kReturn) || has(kSteps) ? 5 : nodes_);
  // Newcomers are spares where the round has no room for them.
  if (has(kSteps) && has(kRandomFaults)) settings_.max_nodes -= dice_.between(0, 2);
  settings_.max_restarts = 50;
  settings_.settle = 100ms;
  settings_.last_call_timeout = 1s;
  settings_.node_timeout = kNodeTimeout;
  settings_.store_grace = kStoreGrace;
  settings_.join_timeout = 30s;
  settings_.restart_backoff = 0s;
}

}  // namespace elastic::test
