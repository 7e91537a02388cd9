#include "sim/succession_world.h"

#include <utility>

#include "sim/succession_world_impl.h"

namespace elastic::test {

// After everything has healed no coordinator is replaced any more.
constexpr Duration kSettleWithin = 15s;

class SuccessionScenes : public SuccessionWorld {
 public:
  using SuccessionWorld::Keeper;
  using SuccessionWorld::SuccessionWorld;

  SimReport play() {
    start();
    if (is_good()) lose_coordinator();
    if (is_good()) {
      heal();
      if (is_alone() && !processes_[kCoordinatorSlot].is_alive) boot(kCoordinatorSlot);
      clock_.after(kSettleWithin, [this] { elections_settled_ = elections(); });
      // Workers that were to run long end, so that the job can. Not those that a node runs whose
      // round is over.
      SimAgent* newest = nullptr;
      for (const auto& one : agents_) {
        if (!one->is_alive() || !one->has_workers()) continue;
        if (newest == nullptr || one->round() > newest->round()) newest = one.get();
      }
      if (newest != nullptr) newest->fail_workers();
      if (!run_until(kConvergeWithin, [this] { return has_converged(); })) {
        violate("the job has not ended within the limit after everything has healed");
      }
      if (elections_settled_ && elections() != *elections_settled_) {
        violate("another coordinator began without need");
      }
    }
    for (const auto& agent : agents_) {
      if (!agent->fault().empty()) violate(agent->name() + ": " + agent->fault());
    }
    return std::move(report_);
  }

  struct NamedKeeper {
    std::string_view name;
    Keeper keeper;
    For kind;
  };
  static const std::vector<NamedKeeper>& keepers() {
    static const std::vector<NamedKeeper> keepers = {{"", Keeper::kVoters, kForVoters},
                                                     {"+store", Keeper::kStore, kForStores},
                                                     {"+polled", Keeper::kPolled, kForStores},
                                                     {"+file", Keeper::kFile, kForFile},
                                                     {"+one", Keeper::kOne, kForOne}};
    return keepers;
  }

  static const std::vector<Scene>& scenes() {
    using World = SuccessionScenes;
    static const std::vector<Scene> scenes = {
        {"start", 0, &World::begin_together, kTogether, kElected | kAlone},
        {"host-lost", 3, &World::lose_host, 0, kElected | kAlone},
        {"process-lost", 3, &World::lose_process, 0, kElected | kAlone},
        {"done-lost", 3, &World::lose_done_host},
        {"standalone-lost", 4, &World::lose_standalone, kStandalone, kForVoters},
        {"standalone-again", 4, &World::restart_standalone, kStandalone, kForVoters},
        {"standalone-first", 4, &World::restart_standalone_first, kStandalone, kForVoters},
        {"standalone-next", 3, &World::begin_next_job, kStandalone | kSameId, kForVoters},
        {"one-by-one", 0, &World::lose_one_by_one},
        {"standalone-few", 0, &World::lose_one_by_one, kStandalone, kForVoters | kAlone},
        {"hand-over", 3, &World::hand_over},
        {"hand-over-killed", 0, &World::kill_during_hand_over},
        {"hand-over-one", 3, &World::hand_over_twice, kOneVoter, kForVoters},
        {"one-killed", 0, &World::kill_one_voter, kOneVoter, kForVoters},
        {"growth", 3, &World::disturb_growth, kSteps, kElected | kAlone},
        {"partition", 5, &World::part_for_a_while, 0, kElected | kAlone},
        {"minority", 5, &World::outlast_minority, 0, kElected | kAlone},
        {"leave", 5, &World::leave_minority},
        {"leave-together", 0, &World::leave_together, 0, kElected | kAlone},
        {"two-of-five", 5, &World::lose_two_hosts, 0, kElected | kAlone},
        {"cut-off", 0, &World::cut_off_coordinator, 0, kForStores},
        {"alone", 0, &World::cut_off_from_store, 0, kForStores},
        {"witness", 2, &World::lose_one_of_two, kWitness, kForVoters},
        {"same-id", 2, &World::use_id_again, kWitness | kSameId, kForVoters},
        {"next-job", 0, &World::continue_id, kSameId, kForStores | kForFile},
        {"keeper-lost", 0, &World::lose_keeper, 0, kElected | kForFile},
        {"again", 0, &World::restart_alone, 0, kAlone},
        {"older-file", 0, &World::restart_with_former_file, 0, kForFile},
        {"slow-disk", 0, &World::leave_on_slow_disk, 0, kForFile},
        {"return", 3, &World::return_host, kReturn},
        {"second-job", 3, &World::begin_second_job, kReturn, kForVoters},
        {"faults", 0, &World::cause_faults, kRandomFaults, kElected | kAlone},
        {"witness-faults", 2, &World::cause_faults, kWitness | kRandomFaults, kForVoters},
        {"growth-faults", 3, &World::cause_faults, kSteps | kRandomFaults, kElected | kAlone},
        {"witness-growth", 2, &World::cause_faults, kWitness | kSteps | kRandomFaults, kForVoters},
        {"growth-lost", 3, &World::lose_keeper_at_a_step, kSteps}};
    return scenes;
  }

 private:
  // ---- Scenes.

  void lose_coordinator() {
    const RoundRecord before = checker_.last_round();
    (this->*scene_.play)();
    const bool is_same_job = !has(kRandomFaults) && !has(kSameId) && !has(kSteps);
    if (is_same_job && checker_.last_round().restarts != before.restarts) {
      violate("a restart was charged for a lost host");
    }
  }

  void lose_host() {
    crash(0, true);
    expect_next_round(2, 3 * kNodeTimeout);
  }

  void lose_process() {
    crash(0, false);
    run(1ms);
    expect_next_round(2, 300ms);
  }

  void lose_two_hosts() {
    crash(0, true);
    crash(1, true);
    expect_next_round(3, 4s);
  }

  void cause_faults() {
    store_.set_faulty(true);
    plan_fault();
    run(dice_.between(Duration(10s), Duration(40s)));
  }

  void lose_standalone() {
    crash(kCoordinatorSlot, false);
    const bool is_elected = run_until(2s, [this] { return elections() > 0 && has_voters(3); });
    if (!is_elected) violate("no coordinator was elected");
    run(5s);
    if (checker_.num_rounds() != 1) violate("the loss of the coordinator alone ended the round");
  }

  void restart_standalone() {
    clock_.after(dice_.between(Duration(1ms), Duration(300ms)), [this] { boot(kCoordinatorSlot); });
    lose_standalone();
  }

  // No voter is elected before the nodes reach the coordinator that was started again.
  void restart_standalone_first() {
    for (std::size_t a = 0; a < nodes_; ++a) {
      for (std::size_t b = 0; b < a; ++b) cut_both(a, b, true);
    }
    clock_.after(1s, [this] { mend(); });
    restart_standalone();
  }

  // With two hosts left, the loss of the one that coordinates ends the job, unless a store keeps
  // the record.
  void lose_one_by_one() {
    for (std::size_t left = nodes_ - 1; left > 0 && is_good(); --left) {
      std::vector<std::size_t> slots;
      for (std::size_t slot = 0; slot < nodes_; ++slot) {
        const Process& process = processes_[slot];
        const bool is_needed = left == 1 && process.machine->is_coordinator() && !has_store();
        if (process.is_alive && !is_needed) slots.push_back(slot);
      }
      const auto last = static_cast<int>(slots.size()) - 1;
      crash(slots[static_cast<std::size_t>(dice_.between(0, last))], dice_.chance(0.5));
      expect_next_round(left, 4 * kNodeTimeout);
      run(2 * kNodeTimeout);
    }
  }

  // The coordinator is cut off for a while, and the voters elect another one; or a majority of the
  // voters is lost. Then all nodes are started again.
  void begin_next_job() {
    if (dice_.chance(0.5)) {
      cut_off(kCoordinatorSlot, true);
      if (!run_until(4s, [this] { return elections() > 0 && has_voters(3); })) {
        return violate("no coordinator was elected");
      }
      cut_off(kCoordinatorSlot, false);
    } else {
      crash(1, true);
      crash(2, true);
      run(kStoreGrace + kNodeTimeout);
    }
    run(dice_.between(Duration(1ms), Duration(6s)));
    for (std::size_t slot = 0; slot < nodes_; ++slot) crash(slot, dice_.chance(0.5));
    hosts_down_.clear();
    elections() = 0;
    checker_ = SuccessionChecker(&report_.violations);
    for (std::size_t slot = 0; slot < nodes_; ++slot) boot(slot);
    const auto runs = [this] { return runs_round_of(nodes_) && has_voters(3); };
    if (!run_until(10s, runs)) violate("the next job of the id does not begin");
  }

  void hand_over() {
    const std::uint64_t next = checker_.last_round().round + 1;
    resign(0);
    if (!run_until(300ms, [this] { return elections() == 1 && has_voters(3); })) {
      violate("no coordinator succeeds the one that resigned");
    }
    if (has_store()) return expect_round(2, 1s, next);  // its node has left
    run(5s);
    if (checker_.num_rounds() != 1) violate("handing over ended the round");
  }

  // With one voter: to a node, whose coordinator then hands over to the next one.
  void hand_over_twice() {
    for (std::uint64_t count = 1; count <= 2 && is_good(); ++count) {
      const auto coordinates = [](const Process& one) {
        return one.server != nullptr && one.server->is_serving();
      };
      const auto from = std::find_if(processes_.begin(), processes_.end(), coordinates);
      resign(static_cast<std::size_t>(from - processes_.begin()));
      if (!run_until(300ms, [&] { return elections() == count && has_voters(1); })) {
        return violate("no coordinator succeeds the one that resigned");
      }
      run(2s);
    }
    if (checker_.num_rounds() != 1) violate("handing over ended the round");
  }

  // The process that ends, or the one that may succeed it: the job goes on with one coordinator, or
  // with none, and then its nodes give up.
  void kill_one_voter() {
    resign(0);
    run(dice_.between(Duration(0), Duration(12ms)));
    crash(dice_.chance(0.3) ? any_process_but(0) : 0, dice_.chance(0.5));
    run(kStoreGrace + kAttemptLimit + 4 * kNodeTimeout);
    const auto works = [](const Process& one) {
      return one.is_alive && one.agent != nullptr && one.agent->has_workers();
    };
    const bool is_lost = std::none_of(processes_.begin(), processes_.end(), works);
    if (is_lost) count("lost");
  }

  void kill_during_hand_over() {
    const std::uint64_t next = checker_.last_round().round + 1;
    resign(0);
    run(dice_.between(Duration(0), Duration(12ms)));
    const bool is_successor_lost = dice_.chance(0.3);
    crash(is_successor_lost ? any_process_but(0) : 0, dice_.chance(0.5));
    const std::size_t lost = is_successor_lost && has_store() ? 2 : 1;
    expect_round(nodes_ - lost, 4 * kNodeTimeout, next);
  }

  // ---- Nodes that join and leave at an agreed step.

  void disturb_growth() {
    boot_newcomer();
    const auto holds = [this] {
      return std::any_of(agents_.begin(), agents_.end(), [](const auto& one) {
        return one->has_workers() && one->ranks().tentative() >= 0;
      });
    };
    if (dice_.chance(0.6)) run_until(1500ms, holds);
    run(dice_.between(Duration(0), Duration(500ms)));
    disturb();
    run(dice_.between(Duration(0), Duration(1s)));
    if (dice_.chance(0.3)) disturb();
    run(dice_.between(Duration(1s), Duration(8s)));
    mend();
    expect_progress();
  }

  // No rank waits for ever at a step of a coordinator that is gone.
  void expect_progress() {
    if (!run_until(90s, [this] { return runs_all(); })) {
      return violate("the nodes that are left do not run one round");
    }
    std::map<const SimAgent*, std::pair<std::uint64_t, std::int64_t>> before;
    for (const auto& one : agents_) before[one.get()] = {one->round(), one->ranks().slowest_step()};
    const auto progresses = [&] {
      return std::all_of(agents_.begin(), agents_.end(), [&](const auto& one) {
        const auto& [round, step] = before[one.get()];
        return !one->has_workers() || one->round() > round || one->ranks().slowest_step() > step;
      });
    };
    if (!run_until(90s, progresses)) violate("a rank makes no further step");
  }

  void disturb() {
    const Duration length = dice_.between(Duration(10ms), Duration(5s));
    switch (dice_.between(0, 7)) {
      case 0:
      case 1:
        if (++crashes_ == 1) crash(0, dice_.chance(0.5));
        break;
      case 2:
        if (processes_[0].machine->is_coordinator()) resign(0);
        // Then only the nodes that wait at the step know of it.
        if (dice_.chance(0.5)) crash(3, dice_.chance(0.5));
        break;
      case 3:
        trace("---- node0 is cut off");
        cut_off(0, true);
        clock_.after(length, [this] { cut_off(0, false); });
        break;
      case 4: crash(3, dice_.chance(0.5)); break;
      case 5:
        processes_[static_cast<std::size_t>(dice_.between(0, 2))].agent->fail_workers();
        break;
      case 6: depart(static_cast<std::size_t>(dice_.between(1, 3))); break;
      default: boot_newcomer(); break;
    }
  }

  // Of five hosts, the coordinator's and another one do not reach the others, nor a store, nor a
  // separate coordinator.
  void part() {
    for (const std::size_t inside : {std::size_t{0}, std::size_t{1}}) {
      for (std::size_t outside = 2; outside <= kStoreSlot; ++outside) {
        cut_both(inside, outside, true);
      }
    }
  }

  void cut_off_minority() {
    part();
    if (!run_until(4s, [this] { return checker_.last_round().nodes == 3; })) {
      violate("the majority forms no round");
    }
  }

  void part_for_a_while() {
    cut_off_minority();
    run(4s);
  }

  // The coordinator has lost the majority of its voters, whose workers are done, so that its round
  // goes on until it gives up after store_grace. Its nodes count from the same moment: they have
  // time for one attempt to reach another one, and not for store_grace again.
  void outlast_minority() {
    for (const std::size_t done : {2u, 3u, 4u}) processes_[done].agent->finish_workers();
    run(1s);
    part();
    const auto has_ended = [this] { return !processes_[0].agent->is_alive(); };
    if (!run_until(kStoreGrace + 2 * kNodeTimeout, has_ended)) {
      return violate("R5: the coordinator does not give up without a majority");
    }
    crash(0, false);
    run(kAttemptLimit + kNodeTimeout);
    if (processes_[1].agent->has_workers()) violate("R5: node1 works on without a majority");
  }

  // The coordinator has lost its majority when the node says that it leaves.
  void leave_minority() {
    processes_[1].agent->leave();
    cut_off_minority();
    if (processes_[1].agent->was_acknowledged()) {
      violate("R6: a leave was acknowledged that no majority had recorded");
    }
  }

  // Each process ends as soon as its leave is acknowledged, and its vote with it.
  void leave_together() {
    const std::uint64_t next = checker_.last_round().round + 1;
    const auto staying = static_cast<std::size_t>(dice_.between(1, static_cast<int>(nodes_) - 2));
    for (std::size_t slot = staying; slot < nodes_; ++slot) processes_[slot].agent->leave();
    const auto all_have_left = [&] {
      bool is_any_left = false;
      for (std::size_t slot = staying; slot < nodes_; ++slot) {
        const Process& process = processes_[slot];
        if (process.is_alive && !process.agent->is_alive()) crash(slot, false);
        is_any_left |= process.is_alive;
      }
      return !is_any_left;
    };
    const Instant began = clock_.now();
    if (!run_until(2 * kNodeTimeout, all_have_left)) violate("a node that leaves has not ended");
    if (clock_.now() - began > kNodeTimeout) violate("a leave was acknowledged late");
    const auto goes_on = [&] { return runs_round_of(staying, next); };
    if (!run_until(3 * kNodeTimeout, goes_on)) violate("no round of the nodes that stay");
  }

  void workers_gone(const SimAgent& agent) override {
    // Workers of a job that dissolves are those of another round.
    if (has(kReturn) && agent.info().id.high != 2) return;
    check_overlap(agent, checker_.next_round_after(agent.round_heard_at()), kOverlapMax);
  }

  void begin_together() {
    if (has_store() && report_.counts["beginnings"] != 1) {
      violate("several processes began the job");
    }
    if (checker_.num_rounds() != 1) violate("the job has not begun with all nodes");
  }

  // ---- Only with a store.

  // It reaches the store, where it answers the others: it goes on.
  void cut_off_coordinator() {
    for (std::size_t other = 1; other < kSlots; ++other) cut_both(0, other, true);
    run(dice_.between(Duration(1ms), kStoreGrace - kNodeTimeout));
    mend();
    expect_same_coordinator();
  }

  // It keeps its sessions, and decides nothing.
  void cut_off_from_store() {
    cut_both(0, kStoreSlot, true);
    run(dice_.between(Duration(1ms), kStoreGrace - kNodeTimeout));
    if (checker_.num_rounds() != 1) violate("a round began without the store");
    mend();
    expect_same_coordinator();
  }

  void expect_same_coordinator() {
    if (!run_until(15s, [&] { return runs_round_of(nodes_); })) {
      violate("the nodes do not run one round");
    }
    if (elections() > 0) violate("a coordinator that reaches the store was replaced");
  }

  // All processes end, and others begin with the record that they leave. With a file they continue
  // the job, once its former nodes have had time to resume.
  void continue_id() {
    for (int runs = dice_.between(1, 3); runs > 0 && is_good(); --runs) {
      for (std::size_t slot = 0; slot < nodes_; ++slot) crash(slot, dice_.chance(0.5));
      if (is_alone()) crash(kCoordinatorSlot, false);
      hosts_down_.clear();
      run(dice_.between(Duration(1ms), Duration(20s)));
      const std::uint64_t next = checker_.last_round().round + 1;
      const std::uint32_t former = checker_.last_round().generation;
      if (is_alone()) boot(kCoordinatorSlot);
      for (std::size_t slot = 0; slot < nodes_; ++slot) boot(slot);
      if (!run_until(15s, [&] { return runs_round_of(nodes_, next); })) {
        violate("the next job of the id does not begin");
      }
      const bool continues = checker_.last_round().generation == former;
      if (has_store() && continues) violate("it continues the former job");
    }
  }

  // ---- Only where the coordinator's process alone keeps the record.

  void restart_alone() {
    restart_coordinator(dice_.between(Duration(1ms), Duration(3s)));
    run(6s);
    if (checker_.num_rounds() != 1) violate("the loss of the coordinator alone ended the round");
    if (!runs_round_of(nodes_)) violate("a node has not resumed");
  }

  // A version of the file from before the last rounds. The nodes know them.
  void restart_with_former_file() {
    for (int changes = dice_.between(1, 3); changes > 0 && is_good(); --changes) {
      crash(1, false);
      expect_next_round(nodes_ - 1, 3 * kNodeTimeout);
      boot(1);
      expect_next_round(nodes_, 3 * kNodeTimeout);
    }
    crash(kCoordinatorSlot, false);
    if (!file_.restore_former()) violate("no former version of the file");
    const bool is_any_lost = dice_.chance(0.5);
    if (is_any_lost) crash(any_process(), dice_.chance(0.5));
    run(dice_.between(Duration(1ms), Duration(3s)));
    boot(kCoordinatorSlot);
    const std::uint64_t last = checker_.last_round().round;
    run(kStoreGrace + 4 * kNodeTimeout);
    if (!runs_round_of(nodes_ - (is_any_lost ? 1 : 0), last)) violate("the nodes do not go on");
  }

  // A node that leaves waits for the file, and so does the next round.
  void leave_on_slow_disk() {
    file_.set_full(true);
    SimAgent& leaving = *processes_[1].agent;
    leaving.leave();
    run(dice_.between(Duration(100ms), Duration(3s)));
    if (checker_.num_rounds() != 1) violate("a round began that is in no file");
    if (leaving.was_acknowledged()) violate("R6: a leave was acknowledged that is in no file");
    if (dice_.chance(0.5)) restart_coordinator(dice_.between(Duration(1ms), Duration(2s)));
    run(100ms);
    file_.set_full(false);
    file_.set_slow(true);
    expect_round(nodes_ - 1, 25s, 2);
  }

  // ---- A majority of the voters, or the store, is lost at once, for good.

  void lose_keeper() {
    if (is_alone()) return fill_disk();
    if (has_store()) {
      for (std::size_t slot = 0; slot < kSlots; ++slot) cut_both(slot, kStoreSlot, true);
      run(10ms);  // what was written before is in force
      if (dice_.chance(0.5)) crash(0, dice_.chance(0.5));
      return expect_end();
    }
    const std::size_t lost = nodes_ / 2 + 1;
    std::vector<std::size_t> slots;
    for (std::size_t slot = 0; slot < nodes_; ++slot) slots.push_back(slot);
    for (std::size_t i = 0; i < lost; ++i) {
      const auto at = static_cast<std::size_t>(
          dice_.between(static_cast<int>(i), static_cast<int>(nodes_) - 1));
      std::swap(slots[i], slots[at]);
      crash(slots[i], dice_.chance(0.5));
    }
    expect_end();
  }

  // The nodes work on, and the next round begins when it can be written.
  void fill_disk() {
    file_.set_full(true);
    crash(0, dice_.chance(0.5));
    run(kStoreGrace + 4 * kNodeTimeout);
    if (checker_.num_rounds() != 1) violate("a round began that is in no file");
    file_.set_full(false);
    expect_round(nodes_ - 1, 3 * kNodeTimeout, 2);
  }

  // While the ranks agree on a step for a node that joins.
  void lose_keeper_at_a_step() {
    boot_newcomer();
    if (dice_.chance(0.3)) depart(2);
    run(dice_.between(Duration(0), Duration(2500ms)));
    if (has_store()) return lose_keeper();
    crash(0, dice_.chance(0.5));
    crash(1, dice_.chance(0.5));
    if (checker_.last_round().nodes > 3) return;  // the newcomer may have become a voter
    expect_end();
  }

  // The nodes that are left give up after store_grace, and begin no round without the others.
  void expect_end() {
    const std::uint64_t last = checker_.last_round().round;
    const auto have_ended = [this] {
      return std::none_of(processes_.begin(), processes_.end(), [](const Process& one) {
        return one.is_alive && one.agent != nullptr && one.agent->is_alive();
      });
    };
    // A newcomer that was in no round waits for join_timeout.
    const Duration longest = std::max(kStoreGrace, settings_.join_timeout);
    if (!run_until(longest + kAttemptLimit + 4 * kNodeTimeout, have_ended)) {
      violate("R5: a node goes on without a majority of the voters");
    }
    if (checker_.last_round().round != last) violate("a round began without a majority");
    mend();
    is_healed_ = true;
  }

  // Two nodes and a witness: any one of them, or the links between them, may be lost.
  void lose_one_of_two() {
    const bool is_host_dead = dice_.chance(0.5);
    const Duration limit = is_host_dead ? 3 * kNodeTimeout : Duration(500ms);
    switch (dice_.between(0, 5)) {
      case 0:  // the witness was started again, and has forgotten what it promised
        restart_witness();
        if (!run_until(3 * kNodeTimeout, [this] { return !has_voters(3); }) ||
            !run_until(5s, [this] { return has_voters(3); })) {
          return violate("a witness that was started again gets no vote");
        }
        run(100ms);
        [[fallthrough]];
      case 1:
        crash(0, is_host_dead);
        expect_next_round(1, limit);
        if (elections() != 1) violate("the remaining node was not elected");
        break;
      case 2:
        crash(1, is_host_dead);
        expect_next_round(1, limit);
        break;
      case 3:  // the witness is lost, then the other node
        crash(kWitnessSlot, is_host_dead);
        if (!run_until(3 * kNodeTimeout, [this] { return !has_voters(3); })) {
          return violate("a witness that is lost still counts");
        }
        run(100ms);
        crash(1, is_host_dead);
        expect_next_round(1, limit);
        break;
      case 4:
        cut_off(0, true);
        if (!run_until(4s, [this] { return checker_.last_round().nodes == 1; })) {
          violate("the side of the witness forms no round");
        }
        run(4s);
        break;
      default:  // the nodes do not reach each other, and both reach the witness
        cut_both(0, 1, true);
        if (!run_until(4s, [this] { return checker_.last_round().nodes == 1; })) {
          violate("the coordinator forms no round with the witness");
        }
        run(4s);
        if (elections() > 0) violate("R4: one bad link ended the coordinator's authority");
        break;
    }
  }

  // A requeued job, on the same hosts, while the witness still knows the former one.
  void use_id_again() {
    for (int runs = dice_.between(1, 3); runs > 0 && is_good(); --runs) {
      crash(0, false);
      crash(1, false);
      elections() = 0;
      run(dice_.between(Duration(1ms), Duration(20s)));
      checker_ = SuccessionChecker(&report_.violations);
      start();
    }
    if (is_good()) lose_one_of_two();
  }

  // The host of the endpoint is replaced while the job goes on elsewhere, and newcomers know the
  // endpoint only. Where the two sides do not reach each other, a second job begins and runs.
  void return_host() {
    crash(0, dice_.chance(0.5));
    const std::size_t newcomers = static_cast<std::size_t>(dice_.between(0, 2));
    const double split = dice_.chance(0.4) ? 0 : dice_.chance(0.7) ? 1 : 0.6;
    for (const std::size_t outside : {0u, 3u, 4u}) {
      for (const std::size_t inside : {1u, 2u}) {
        if (dice_.chance(split)) cut_both(outside, inside, true);
      }
    }
    clock_.after(dice_.between(Duration(1ms), Duration(3s)), [this] {
      hosts_down_.erase(0);
      boot(0);
      // The second job may elect a coordinator, too.
      if (!dice_.chance(0.3)) return;
      clock_.after(dice_.between(Duration(1s), Duration(6s)), [this] { crash(0, false); });
      clock_.after(dice_.between(Duration(6s), Duration(8s)), [this] { boot(0); });
    });
    for (std::size_t slot = 3; slot < 3 + newcomers; ++slot) {
      clock_.after(dice_.between(Duration(1ms), Duration(5s)), [this, slot] { boot(slot); });
    }
    // The store names one coordinator: a node that does not reach it gives up after store_grace.
    run(dice_.between(Duration(3s), has_store() ? kStoreGrace - kNodeTimeout : Duration(12s)));
    mend();
    expect_one_job(3 + newcomers);
  }

  void expect_one_job(std::size_t all) {
    const auto is_complete = [&](const SuccessionChecker& job) {
      return job.num_rounds() > 0 && job.last_round().nodes == static_cast<int>(all) &&
             runs_round_of(all, job.last_round().round);
    };
    const bool is_one = run_until(25s, [&] {
      return is_complete(checker_) ||
             std::any_of(other_jobs_.begin(), other_jobs_.end(), is_complete);
    });
    if (!is_one) violate("R8: the replaced host and the newcomers do not join the job");
  }

  // Both sides run rounds when they meet.
  void begin_second_job() {
    crash(0, true);
    cut_off(0, true);
    expect_next_round(2, 3 * kNodeTimeout);
    hosts_down_.erase(0);
    boot(0);
    const auto runs = [this] { return !other_jobs_.empty() && other_jobs_[0].num_rounds() > 0; };
    if (!run_until(10s, runs)) return violate("the replaced host begins no job");
    mend();
    expect_one_job(3);
  }

  // The work of a node that is done is not repeated, whoever else is lost with it.
  void lose_done_host() {
    processes_[0].agent->finish_workers();
    if (dice_.chance(0.4)) processes_[1].agent->finish_workers();
    run(dice_.between(Duration(50ms), Duration(3s)));
    crash(0, dice_.chance(0.5));
    const auto is_elected = [this] { return elections() == 1; };
    if (!run_until(4s, is_elected)) return violate("no node succeeds the coordinator");
    if (!run_until(kConvergeWithin, [this] { return has_converged(); })) return;
    if (checker_.num_rounds() != 1) violate("the loss of a node that is done ended the round");
    if (!checker_.has_result()) violate("the job has no result");
  }

  std::optional<std::uint64_t> elections_settled_;
};

SimReport simulate_succession(const std::string& scene, std::uint64_t seed, bool is_traced,
                              ServiceRule deleted) {
  using Scenes = SuccessionScenes;
  const std::size_t end = std::min(scene.find('+'), scene.size());
  const auto& keeper = scene_named(Scenes::keepers(), scene.substr(end));
  const auto& one = scene_named(Scenes::scenes(), scene.substr(0, end));
  return Scenes(one, keeper.keeper, seed, is_traced, deleted).play();
}

std::vector<std::string> keepers_of(const std::string& scene) {
  using Scenes = SuccessionScenes;
  const unsigned keepers = scene_named(Scenes::scenes(), scene).keepers;
  std::vector<std::string> all;
  for (const auto& one : Scenes::keepers()) {
    if ((keepers & one.kind) != 0) all.emplace_back(one.name);
  }
  return all;
}

}  // namespace elastic::test
