// What can happen to the processes of a simulated job, and to the network between them.

#include <utility>

#include "sim/succession_world_impl.h"

namespace elastic::test {

void SuccessionWorld::crash(std::size_t slot, bool is_host_dead) {
  Process& process = processes_[slot];
  if (!process.is_alive) return;
  trace(name(slot) + (is_host_dead ? "  ---- its host is lost" : "  ---- its process ends"));
  process.is_alive = false;
  if (is_host_dead) hosts_down_.insert(slot);
  if (process.agent != nullptr) process.agent->crash(is_host_dead);
  if (process.server != nullptr) process.server->end(is_host_dead);
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
  for (std::size_t to = 0; to < kSlots; ++to) {
    if (to != slot) cut_both(slot, to, is_cut);
  }
}

void SuccessionWorld::mend() {
  for (std::size_t a = 0; a < kSlots; ++a) {
    for (std::size_t b = 0; b < kSlots; ++b) cut(a, b, false);
  }
}

void SuccessionWorld::heal() {
  trace("---- everything heals");
  mend();
  is_healed_ = true;
}

SuccessionWorld::SuccessionWorld(const Scene& scene, std::uint64_t seed, bool is_traced,
                                 ServiceRule deleted)
    : SimProcesses(seed, is_traced), scene_(scene), nodes_(scene_.nodes), deleted_(deleted) {
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
