#include "sim/succession_world.h"

#include <utility>

#include "sim/succession_world_impl.h"

namespace elastic::test {

void SuccessionWorld::start() {
  if (is_standalone_) boot(kCoordinatorSlot);
  if (has_witness_) boot(kWitnessSlot);
  for (std::size_t slot = 0; slot < nodes_; ++slot) boot(slot);
  const std::size_t voters = nodes_ >= 5 ? 5 : 3;
  if (!advance_until(10s, [&] { return runs_round_of(nodes_) && has_voters(voters); })) {
    violate("the job does not start with " + std::to_string(voters) + " voters");
  }
  advance(1s);
}

void SuccessionWorld::expect_next_round(std::size_t nodes, Duration within) {
  const Instant began = clock_.now();
  const std::uint64_t next = checker_.last_round().round + 1;
  const bool is_there = advance_until(within, [&] { return runs_round_of(nodes, next); });
  report_.recovery = clock_.now() - began;
  if (!is_there) violate("no round of the survivors within the limit");
}

void SuccessionWorld::lose_coordinator() {
  const RoundRecord before = checker_.last_round();
  switch (scene_) {
    case SuccessionScene::kHostLost:
      crash(0, true);
      expect_next_round(2, 3 * kNodeTimeout);
      break;
    case SuccessionScene::kProcessLost:
      crash(0, false);
      advance(1ms);
      expect_next_round(2, 300ms);
      break;
    case SuccessionScene::kTwoOfFive:
      crash(0, true);
      crash(1, true);
      expect_next_round(3, 4s);
      break;
    case SuccessionScene::kStandaloneLost:
    case SuccessionScene::kStandaloneAgain: {
      crash(kCoordinatorSlot, false);
      if (scene_ == SuccessionScene::kStandaloneAgain) {
        clock_.after(dice_.between(Duration(1ms), Duration(300ms)),
                     [this] { boot(kCoordinatorSlot); });
      }
      const bool is_elected =
          advance_until(2s, [this] { return report_.elections > 0 && has_voters(3); });
      if (!is_elected) violate("no coordinator was elected");
      advance(5s);
      if (checker_.num_rounds() != 1) violate("the loss of the coordinator alone ended the round");
      break;
    }
    case SuccessionScene::kHandOver:
      feed(0, succession::Resign{});
      if (!advance_until(300ms, [this] { return report_.elections == 1 && has_voters(3); })) {
        violate("no coordinator succeeds the one that resigned");
      }
      advance(5s);
      if (checker_.num_rounds() != 1) violate("handing over ended the round");
      break;
    case SuccessionScene::kPartition:
      for (const std::size_t inside : {0u, 1u}) {
        for (const std::size_t outside : {2u, 3u, 4u}) {
          cut_both(inside, outside, true);
        }
      }
      if (!advance_until(4s, [this] { return checker_.last_round().nodes == 3; })) {
        violate("the majority forms no round");
      }
      advance(4s);
      heal();
      break;
    case SuccessionScene::kWitness: lose_one_of_two(); break;
    case SuccessionScene::kFaults:
    case SuccessionScene::kWitnessFaults:
      plan_fault();
      advance(dice_.between(Duration(10s), Duration(40s)));
      break;
  }
  const RoundRecord& after = checker_.last_round();
  if (!has_random_faults() && after.restarts != before.restarts) {
    violate("a restart was charged for a lost host");
  }
}

void SuccessionWorld::restart_witness() {
  crash(kWitnessSlot, false);
  boot(kWitnessSlot);
}

// Two nodes and a witness: any one of them, or the links between them, may be lost.
void SuccessionWorld::lose_one_of_two() {
  const bool is_host_dead = dice_.chance(0.5);
  const Duration limit = is_host_dead ? 3 * kNodeTimeout : Duration(500ms);
  switch (dice_.between(0, 5)) {
    case 0:  // the witness was started again, and has forgotten what it promised
      restart_witness();
      if (!advance_until(3 * kNodeTimeout, [this] { return !has_voters(3); }) ||
          !advance_until(5s, [this] { return has_voters(3); })) {
        return violate("a witness that was started again gets no vote");
      }
      advance(100ms);
      [[fallthrough]];
    case 1:
      crash(0, is_host_dead);
      expect_next_round(1, limit);
      if (report_.elections != 1) violate("the remaining node was not elected");
      break;
    case 2:
      crash(1, is_host_dead);
      expect_next_round(1, limit);
      break;
    case 3:  // the witness is lost, then the other node
      crash(kWitnessSlot, is_host_dead);
      if (!advance_until(3 * kNodeTimeout, [this] { return !has_voters(3); })) {
        return violate("a witness that is lost still counts");
      }
      advance(100ms);
      crash(1, is_host_dead);
      expect_next_round(1, limit);
      break;
    case 4:
      cut_off(0, true);
      if (!advance_until(4s, [this] { return checker_.last_round().nodes == 1; })) {
        violate("the side of the witness forms no round");
      }
      advance(4s);
      break;
    default:  // the nodes do not reach each other, and both reach the witness
      cut_both(0, 1, true);
      if (!advance_until(4s, [this] { return checker_.last_round().nodes == 1; })) {
        violate("the coordinator forms no round with the witness");
      }
      advance(4s);
      if (report_.elections > 0) violate("R4: one bad link ended the coordinator's authority");
      break;
  }
}

SuccessionReport SuccessionWorld::run() {
  start();
  if (report_.violations.empty()) lose_coordinator();
  if (report_.violations.empty()) {
    heal();
    // Workers that were to run long end, so that the job can.
    for (Process& process : processes_) {
      if (process.is_alive && process.agent != nullptr && process.agent->is_alive()) {
        process.agent->fail_workers();
        break;
      }
    }
    if (!advance_until(kConvergeWithin, [this] { return has_converged(); })) {
      violate("the job has not ended within the limit after everything has healed");
    }
  }
  report_.rounds = checker_.num_rounds();
  return std::move(report_);
}

SuccessionReport simulate_succession(SuccessionScene scene, std::uint64_t seed,
                                     const SuccessionOptions& options) {
  return SuccessionWorld(scene, seed, options).run();
}

}  // namespace elastic::test
