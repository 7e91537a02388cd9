// Runs the job's machine with model agents under faults, seed by seed. A failure prints the line
// that replays it with a trace. Seeds that found a fault are in seeds.txt and run for ever.
//
// One job on a few machines, from one seed: first with faults, then healed, when it must come to an
// end within a bounded time.
//
//   standalone    a coordinator on a machine of its own
//   hosted        in the process of the first agent, and dying with it
//   stored        as standalone, and it stores its state in a file
//   …+timings     each of these with timings that differ between nodes
//   …+steps       each of these with workers that report steps, and continue in the next round:
//                 nodes join at an agreed step, or leave at one, and the whole job stops at one
//   crash-points  a coordinator that stores its state crashes at random instants, and otherwise
//                 only workers fail: no node may be declared lost, and no round may be waited for
//                 longer than kStartHold
//   two-jobs      two jobs at one endpoint, whose coordinator is in an agent of the first job and
//                 ends with it: when that agent crashes, and when its own job has ended
//
// The timings of the last two differ, too.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "sim/kernel/seeds.h"
#include "sim/sim_agent.h"
#include "sim/sim_coordinator.h"

namespace elastic::test {
namespace {

using namespace std::chrono_literals;

constexpr Duration kGrace = 2s;        // of every node
constexpr Duration kHostMargin = 10s;  // how much longer a host waits for its own nodes
constexpr Duration kStopMax = 20s;     // of workers that cannot be killed for long
constexpr Duration kFindOut = 15s;     // for an agent to detect that its session is dead
constexpr Duration kLatency = 200ms;   // of messages and of workers that are stopped
constexpr Duration kNodeTimeoutMax = 30s;
constexpr Duration kStoreGraceMax = 40s;
constexpr Duration kConvergeWithin = 400s;  // after everything has healed

JobSettings draw_settings(Dice* dice) {
  JobSettings settings;
  settings.min_nodes = dice->between(1, 4);
  settings.max_nodes = settings.min_nodes + dice->between(0, 3);
  settings.max_restarts = dice->chance(0.3) ? 0 : dice->between(1, 8);
  settings.max_membership_changes = dice->chance(0.8) ? -1 : dice->between(0, 4);
  if (dice->chance(0.15)) {
    settings.static_ranks = true;
    settings.max_nodes = settings.min_nodes;
  }
  if (dice->chance(0.1)) settings.on_loss = LossPolicy::kFail;
  settings.join_timeout = 60s;
  settings.last_call_timeout = dice->chance(0.5) ? 2s : 10s;
  settings.settle = dice->chance(0.3) ? 0s : dice->between(Duration(10ms), Duration(3s));
  settings.shrink_delay =
      dice->chance(0.7) ? Duration(0s) : dice->between(Duration(1s), Duration(8s));
  settings.node_timeout = 5s;
  settings.reconnect_grace = dice->chance(0.7) ? Duration(50ms) : Duration(2s);
  settings.store_grace = 20s;
  return settings;
}

// Timings of one node. The coordinator uses those of the first node that joins.
void draw_timings(Dice* dice, JobSettings* settings) {
  constexpr Duration kNodeTimeouts[] = {2s, 3s, 5s, 12s, kNodeTimeoutMax};
  settings->node_timeout = kNodeTimeouts[dice->between(0, 4)];
  settings->store_grace = dice->between(Duration(10s), kStoreGraceMax);
  settings->join_timeout = dice->between(Duration(30s), Duration(90s));
  settings->reconnect_grace = dice->chance(0.5) ? Duration(50ms) : Duration(2s);
  settings->settle = dice->between(Duration(0s), Duration(3s));
}

enum class SimMode : std::uint8_t { kStandalone, kHosted, kStored, kGuest };
struct NamedMode {
  std::string_view name;
  SimMode mode;
};
constexpr NamedMode kModes[] = {{"standalone", SimMode::kStandalone},
                                {"hosted", SimMode::kHosted},
                                {"stored", SimMode::kStored}};

enum class Faults : std::uint8_t { kAll, kCoordinatorCrashes };

struct WorldOptions {
  SimMode mode = SimMode::kStandalone;
  bool has_equal_timings = false;
  bool has_steps = false;
  Faults faults = Faults::kAll;
  std::uint64_t seed = 0;
  bool is_traced = false;
  const char* name = "node";  // of its nodes, before the number
};

// One job: its agents, and what decides for them.
class World : public SimAgentWorld {
 public:
  // `endpoint` serves other jobs too; `beside` is the world of another one.
  World(const WorldOptions& options, SimEndpoint* endpoint, World* beside = nullptr)
      : SimAgentWorld(options.seed, options.is_traced, beside),
        mode_(options.mode),
        has_equal_timings_(options.has_equal_timings),
        has_steps_(options.has_steps),
        faults_(options.faults),
        name_(options.name),
        endpoint_(endpoint),
        settings_(draw_settings(&dice_)) {
    if (Dice(~options.seed).chance(0.5)) settings_.restart_backoff = 0s;
    if (faults_ == Faults::kCoordinatorCrashes) {
      settings_.max_restarts = 100;
      settings_.shrink_delay = settings_.restart_backoff = 0s;  // only the start hold is left
    }
    coordinator_ = std::make_unique<SimCoordinator>(this, settings_);
    endpoint_->add(coordinator_.get());
    if (!has_equal_timings_) coordinator_->enable_timings();
    if (mode_ == SimMode::kStored) {
      coordinator_->store_state_after(dice_.between(Duration(1ms), Duration(200ms)));
    }
  }

  // Boots the machines, and plans the faults. Returns when everything must heal.
  Instant begin() {
    if (is_coordinator_alone()) endpoint_->each(&SimCoordinator::start);
    const int machines = settings_.max_nodes + (settings_.static_ranks ? 0 : dice_.between(0, 2));
    for (int machine = 0; machine < machines; ++machine) {
      clock_.after(dice_.between(Duration(0s), Duration(4s)), [this, machine] { boot(machine); });
    }
    const Instant heal_at = clock_.now() + dice_.between(Duration(20s), Duration(90s));
    if (faults_ == Faults::kAll) {
      plan_fault();
    } else {
      plan_crash();
    }
    return heal_at;
  }

  void heal() {
    log_progress("-", "---- everything heals");
    has_healed_ = true;
    for (const auto& agent : agents_) {
      agent->path()->unblock();
      agent->unpause();
    }
    endpoint_->each(&SimCoordinator::unstall);
    if (is_coordinator_alone()) endpoint_->each(&SimCoordinator::start);
    for (int machine = 0; machine < settings_.min_nodes; ++machine) boot_somewhere();
  }

  void check() {
    for (const std::string& one : coordinator_->checker().violations()) violate(one);
    if (!coordinator_->fault().empty()) violate(coordinator_->fault());
    for (const auto& agent : agents_) {
      // A rerun on a machine whose agent lives on elsewhere in the cluster is refused its static
      // rank.
      const bool is_expected = settings_.static_ranks && agent->fate() == "refused";
      if (!agent->fault().empty() && !is_expected) {
        violate(agent->name() + ": " + agent->fault());
      }
    }
    if (faults_ == Faults::kCoordinatorCrashes) check_after_crash();
    if (mode_ == SimMode::kHosted && endpoint_->is_shared()) check_host();
  }

  SimReport report() {
    if (is_good() && !has_converged()) report_no_end();
    check_results();
    count("rounds", coordinator_->checker().rounds_seen());
    count("crashes", static_cast<std::uint64_t>(std::max(coordinator_->lives() - 1, 0)));
    return std::move(report_);
  }

  std::shared_ptr<SimLink> connect(SimAgent* agent, const std::string&) override {
    return coordinator_->connect(agent->path());
  }

  SimWork draw_work() override {
    SimWork work;
    work.length = dice_.between(Duration(2s), Duration(40s));
    work.fails = !has_healed_ && dice_.chance(0.25);
    work.stop = dice_.between(Duration(1ms), Duration(500ms));
    if (faults_ != Faults::kAll) return work;
    if (dice_.chance(0.1)) work.stop = kGrace;
    if (!has_healed_ && dice_.chance(0.02)) work.stop = kStopMax;
    return work;
  }

  void workers_gone(const SimAgent& agent) override {
    const std::vector<Instant>& began = coordinator_->rounds_began();
    const auto next = std::upper_bound(began.begin(), began.end(), agent.round_heard_at());
    if (next == began.end()) return;
    // Each coordinator that restarts without state may accept the older round for a while.
    const Duration store_grace = has_equal_timings_ ? settings_.store_grace : kStoreGraceMax;
    const Duration find_out = has_equal_timings_ ? kFindOut : 2 * kNodeTimeoutMax;
    check_overlap(agent, *next,
                  store_grace * (2 * coordinator_->lives() - 1) + find_out + kStopMax +
                      agent.time_paused() + coordinator_->time_stalled());
  }

  void collective_broke(const SimAgent& agent) override {
    for (const auto& other : agents_) other->break_collective(agent);
  }

 private:
  void log_progress(const std::string& who, const std::string& what) { trace(who + "  " + what); }

  void boot(int machine) {
    SimAgentOptions options;
    options.settings = settings_;
    if (!has_equal_timings_) draw_timings(&dice_, &options.settings);
    // Crashes in a row can be one outage for a node, and no node may give up.
    if (faults_ == Faults::kCoordinatorCrashes) options.settings.store_grace = 100s;
    options.has_steps = has_steps_;
    options.info.id = {dice_.next(), dice_.next()};
    const auto incarnation = agents_.size();
    options.info.name = name_ + std::to_string(machine) + "_" + std::to_string(incarnation) + "_0";
    options.info.address = "10.0.0." + std::to_string(machine);
    options.info.store_port = static_cast<std::uint16_t>(20'000 + 100 * incarnation);
    options.info.local_world_size = 1 + machine % 3;
    options.info.role = machine % 2 == 0 ? "trainer" : "reader";
    if (settings_.static_ranks) options.info.static_rank = machine;
    if (mode_ == SimMode::kHosted && machine == 0) {
      options.info.hosts_coordinator = true;
      endpoint_->each(&SimCoordinator::start);
    }
    options.info.stop_grace = options.info.failure_grace = kGrace;
    SimAgent* const agent = add_agent(options);
    if (options.info.hosts_coordinator) host_ = agent;
    machines_.push_back(machine);
    log_progress(options.info.name, "starts");
    if (dice_.chance(0.1) && faults_ == Faults::kAll) {
      agent->path()->delay_max = 300ms;  // a slow machine
    }
    agent->start();
  }

  SimAgent* some_agent() {
    std::vector<SimAgent*> alive;
    for (const auto& agent : agents_) {
      if (agent->is_alive()) alive.push_back(agent.get());
    }
    if (alive.empty()) return nullptr;
    return alive[static_cast<std::size_t>(dice_.between(0, static_cast<int>(alive.size()) - 1))];
  }

  void plan_fault() {
    clock_.after(dice_.between(Duration(100ms), Duration(9s)), [this] {
      if (has_healed_) return;
      cause_fault();
      plan_fault();
    });
  }

  void plan_crash() {
    clock_.after(dice_.between(Duration(1ms), Duration(6s)), [this] {
      if (has_healed_) return;
      if (!coordinator_->has_stored_state()) {  // newcomers alone could form another first round
        plan_crash();
        return;
      }
      endpoint_->each(&SimCoordinator::crash, false);
      clock_.after(dice_.between(Duration(1ms), Duration(5s)), [this] {
        endpoint_->each(&SimCoordinator::start);
        if (!has_healed_) plan_crash();
      });
    });
  }

  // Nodes that join, or are to leave: at a step, unless another fault comes between.
  void change_members(SimAgent* agent) {
    boot_somewhere();
    const Duration limit = dice_.between(Duration(2s), Duration(30s));
    if (agent == nullptr || agent->info().hosts_coordinator || dice_.chance(0.6)) return;
    if (dice_.chance(0.9)) {
      agent->depart(limit);
    } else {
      agent->stop_job(limit);
    }
  }

  void cause_fault() {
    SimAgent* agent = some_agent();
    if (has_steps_ && dice_.chance(0.5)) return change_members(agent);
    const Duration length = dice_.chance(0.5) ? dice_.between(Duration(1ms), Duration(1s))
                                              : dice_.between(Duration(1s), Duration(30s));
    switch (dice_.between(0, 11)) {
      case 0:
      case 1: crash(agent, dice_.chance(0.5)); break;
      case 2:
        // The agent that hosts the coordinator does not leave before the others.
        if (agent != nullptr && !agent->info().hosts_coordinator) agent->leave();
        break;
      case 3:
        if (agent == nullptr) break;
        agent->pause();
        clock_.after(length, [agent] { agent->unpause(); });
        break;
      case 4:
        if (agent != nullptr) agent->fail_workers();
        break;
      case 5:
      case 6: lose_connection(agent, false); break;
      case 7: lose_connection(agent, true); break;
      case 8:
      case 9: partition(agent, length); break;
      case 10: stall(length); break;
      case 11: restart_coordinator(length); break;
    }
    if (dice_.chance(0.2)) boot_somewhere();
  }

  void lose_connection(SimAgent* agent, bool silently) {
    if (agent == nullptr || agent->link() == nullptr) return;
    log_progress(agent->name(), silently ? "connection is lost silently" : "connection is cut");
    if (silently) {
      agent->link()->vanish();
    } else {
      agent->link()->cut();
    }
  }

  void stall(Duration length) {
    endpoint_->each(&SimCoordinator::stall);
    clock_.after(length, [this] { endpoint_->each(&SimCoordinator::unstall); });
  }

  void restart_coordinator(Duration length) {
    if (!is_coordinator_alone()) return;
    endpoint_->each(&SimCoordinator::crash, dice_.chance(0.3));
    clock_.after(dice_.chance(0.8) ? length : Duration(25s),
                 [this] { endpoint_->each(&SimCoordinator::start); });
  }

  void crash(SimAgent* agent, bool is_host_dead) {
    if (agent == nullptr) return;
    agent->crash(is_host_dead);
    const bool is_host = mode_ == SimMode::kHosted && agent->info().hosts_coordinator;
    if (is_host) endpoint_->each(&SimCoordinator::crash, is_host_dead);
    if (!is_host && dice_.chance(0.3)) return;
    const int machine = machine_of(agent);
    clock_.after(dice_.between(Duration(1ms), Duration(12s)), [this, machine] {
      if (!has_healed_ || agents_.size() < 200) boot(machine);
    });
  }

  int machine_of(const SimAgent* agent) const {
    for (std::size_t i = 0; i < agents_.size(); ++i) {
      if (agents_[i].get() == agent) return machines_[i];
    }
    return 0;
  }

  // A machine that has no live agent gets one.
  void boot_somewhere() {
    std::set<int> busy;
    for (std::size_t i = 0; i < agents_.size(); ++i) {
      if (agents_[i]->is_alive()) busy.insert(machines_[i]);
    }
    for (int machine = 0; machine < settings_.max_nodes; ++machine) {
      if (busy.contains(machine)) continue;
      boot(machine);
      return;
    }
  }

  void partition(SimAgent* agent, Duration length) {
    if (agent == nullptr) return;
    const std::shared_ptr<SimPath> path = agent->path();
    const int way = dice_.between(0, 2);
    if (way != 1) path->is_blocked[0] = true;
    if (way != 0) path->is_blocked[1] = true;
    const char* const names[] = {"cannot send", "cannot receive", "is cut off"};
    log_progress(agent->name(), names[way]);
    clock_.after(length, [path] { path->unblock(); });
  }

  // The process of the host ends with its agent: at once after a fault, otherwise when the nodes of
  // its own job have ended too.
  void check_host() {
    if (host_ == nullptr || host_->is_alive() || !endpoint_->is_up()) return;
    if (host_->fate() == "closed" && !has_converged() && !host_ended_at_) {
      host_ended_at_ = clock_.now();
    }
    const bool must_wait =
        host_ended_at_ && !has_converged() && clock_.now() < *host_ended_at_ + kGrace + kHostMargin;
    if (must_wait) return;
    host_ended_at_.reset();
    count("leaves");
    endpoint_->each(&SimCoordinator::leave,
                    "the agent of another job that hosted the coordinator has ended");
  }

  // Nothing but the coordinator has crashed: its nodes live, and none of them keeps others waiting.
  void check_after_crash() {
    for (const auto& agent : agents_) {
      if (agent->evictions() == 0) continue;
      violate(agent->name() + " was declared lost although it lives");
      return;
    }
    const core::RendezvousMachine* machine = coordinator_->machine();
    const bool is_waiting =
        machine != nullptr && machine->record().round > 0 &&
        (machine->phase() == RendezvousPhase::kForming || has_missing(*machine));
    if (!is_waiting) {
      waiting_since_.reset();
      return;
    }
    if (!waiting_since_) waiting_since_ = clock_.now();
    const Duration waited = clock_.now() - *waiting_since_;
    if (waited <= core::kStartHold + kLatency) return;
    violate("waited " + std::to_string(to_seconds(waited)) +
            " s for a round: " + coordinator_->describe());
  }

  static bool has_missing(const core::RendezvousMachine& machine) {
    const auto& members = machine.members();
    return std::any_of(members.begin(), members.end(), [](const core::RoundMember& member) {
      return member.fate == core::MemberFate::kMissing;
    });
  }

  bool is_coordinator_alone() const {
    return mode_ == SimMode::kStandalone || mode_ == SimMode::kStored;
  }

  void report_no_end() {
    std::string who;
    for (const auto& agent : agents_) {
      if (agent->is_alive()) who += " " + agent->name();
    }
    violate("no end within " + std::to_string(to_seconds(kConvergeWithin)) +
            " s after the last fault: " + coordinator_->describe() + "; still there:" + who);
  }

  // All agents receive the same result, unless the id began a new generation.
  void check_results() {
    std::set<std::string> results;
    for (const auto& agent : agents_) {
      if (agent->result()) results.insert(agent->result()->message);
    }
    const bool may_differ = coordinator_->generation() > 1;
    if (results.size() > 1 && !may_differ && coordinator_->lives() == 1) {
      violate("agents received different results");
    }
  }

  SimMode mode_;
  bool has_equal_timings_;
  bool has_steps_;
  Faults faults_;
  std::string name_;
  std::optional<Instant> waiting_since_;  // a round is formed, or rebuilt
  SimEndpoint* endpoint_;
  JobSettings settings_;
  std::unique_ptr<SimCoordinator> coordinator_;
  std::vector<int> machines_;  // of each agent
  bool has_healed_ = false;
  SimAgent* host_ = nullptr;              // the last agent that hosted the coordinator
  std::optional<Instant> host_ended_at_;  // it waits for the nodes of its job
};

// Worlds that share a clock. The report is that of the first.
SimReport play(const std::vector<World*>& worlds) {
  const auto are_all = [&](bool (World::*is)() const) {
    return std::all_of(worlds.begin(), worlds.end(), [&](World* one) { return (one->*is)(); });
  };
  const auto run_next = [&](Instant end) {
    if (!are_all(&World::is_good) || !worlds.front()->clock().run_next(end)) return false;
    for (World* one : worlds) one->check();
    return true;
  };
  Instant heal_at{};
  for (World* one : worlds) heal_at = std::max(heal_at, one->begin());
  while (run_next(heal_at)) {
  }
  for (World* one : worlds) one->heal();
  const Instant end = worlds.front()->clock().now() + kConvergeWithin;
  while (!are_all(&World::has_converged) && run_next(end)) {
  }
  SimReport report = worlds.front()->report();
  for (std::size_t i = 1; i < worlds.size(); ++i) {
    const SimReport other = worlds[i]->report();
    for (const std::string& one : other.violations) report.violations.push_back("guest: " + one);
    std::uint64_t& rounds = report.counts["rounds"];
    rounds = std::min(rounds, other.counts.at("rounds"));
  }
  return report;
}

SimReport simulate_rendezvous(const std::string& scene, std::uint64_t seed, bool is_traced) {
  SimEndpoint endpoint;
  WorldOptions options{.seed = seed, .is_traced = is_traced};
  if (scene == "two-jobs") {
    options.mode = SimMode::kHosted;
    World hosting(options, &endpoint);
    World guest({.mode = SimMode::kGuest, .seed = ~seed, .name = "guest"}, &endpoint, &hosting);
    return play({&hosting, &guest});
  }
  if (scene == "crash-points") {
    options.mode = SimMode::kStored;
    options.faults = Faults::kCoordinatorCrashes;
  } else {
    options.mode = scene_named(kModes, scene.substr(0, scene.find('+'))).mode;
    options.has_equal_timings = scene.find("+timings") == std::string::npos;
    options.has_steps = scene.find("+steps") != std::string::npos;
  }
  World world(options, &endpoint);
  return play({&world});
}

constexpr Simulation kRendezvous = {"RendezvousSim", simulate_rendezvous};

void sweep_faults(const std::string& scene, std::uint64_t count) {
  const Totals total = sweep(kRendezvous, scene, count);
  if (!total.can_be_judged()) return;
  EXPECT_GT(total["rounds"], 2 * total.seeds) << "the faults leave the job time to form rounds";
}

TEST(RendezvousSim, KeepsItsInvariantsWithASeparateCoordinator) {
  sweep_faults("standalone", 1000);
}
TEST(RendezvousSim, KeepsItsInvariantsWithTheCoordinatorInAnAgent) { sweep_faults("hosted", 500); }

TEST(RendezvousSim, KeepsItsPromisesWithAStoredState) { sweep_faults("stored", 300); }

TEST(RendezvousSim, KeepsItsInvariantsIfTimingsDifferBetweenNodes) {
  for (const char* scene : {"standalone+timings", "hosted+timings", "stored+timings"}) {
    sweep_faults(scene, 100);
  }
}

TEST(RendezvousSim, NodesJoinAndLeaveWhereEveryRankWaitsWhateverElseHappens) {
  for (const char* scene : {"standalone+steps", "hosted+steps", "stored+steps+timings"}) {
    const Totals total = sweep(kRendezvous, scene, 150);
    if (!total.can_be_judged()) continue;
    EXPECT_GT(total["grown at a step"], total.seeds / 5);
    EXPECT_GT(total["left at a step"], total.seeds / 10);
  }
}

TEST(RendezvousSim, KeepsTheInvariantsOfEachOfTwoJobsAtOneEndpoint) {
  const Totals total = sweep(kRendezvous, "two-jobs", 150);
  if (!total.can_be_judged()) return;
  EXPECT_GT(total["rounds"], total.seeds);
  EXPECT_GT(total["leaves"], total.seeds / 2) << "hosts end while the other job runs";
}

TEST(RendezvousSim, LosesNoLiveNodeWhenTheCoordinatorContinuesFromAnOldState) {
  const Totals total = sweep(kRendezvous, "crash-points", 250);
  if (!total.can_be_judged()) return;
  EXPECT_GT(total["crashes"], 4 * total.seeds);
}

TEST(RendezvousSim, RegressionSeedsPass) {
  std::ifstream file(ELASTIC_SIM_SEEDS);
  int seeds = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.front() == '#') continue;
    std::istringstream words(line);
    std::string scene;
    std::uint64_t seed = 0;
    ASSERT_TRUE(words >> scene >> seed) << line;
    is_good(kRendezvous, scene, seed, simulate_rendezvous(scene, seed, false));
    ++seeds;
  }
  EXPECT_GT(seeds, 0);
}

TEST(RendezvousSim, OneSeedIsOneRun) {
  for (const char* scene :
       {"standalone", "hosted", "stored", "stored+timings", "crash-points", "two-jobs"}) {
    expect_same_run(kRendezvous, scene);
  }
}

TEST(RendezvousSim, Replay) { replay(kRendezvous); }

}  // namespace
}  // namespace elastic::test
