#include "sim/sim_world.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>

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

enum class Faults : std::uint8_t { kAll, kCoordinatorCrashes };

struct WorldOptions {
  SimMode mode = SimMode::kStandalone;
  SimTimings timings = SimTimings::kEqual;
  Faults faults = Faults::kAll;
  std::uint64_t seed = 0;
  bool with_trace = false;
  const char* name = "node";  // of its nodes, before the number
};

// One job: its agents, and what decides for them.
class World {
 public:
  // `endpoint` serves other jobs too.
  World(const WorldOptions& options, SimClock* clock, SimEndpoint* endpoint,
        std::vector<std::string>* trace)
      : mode_(options.mode),
        timings_(options.timings),
        faults_(options.faults),
        name_(options.name),
        dice_(options.seed),
        clock_(clock),
        start_(clock->now()),
        endpoint_(endpoint),
        trace_(options.with_trace ? trace : nullptr),
        settings_(draw_settings(&dice_)) {
    if (Dice(~options.seed).chance(0.5)) settings_.restart_backoff = 0s;
    if (faults_ == Faults::kCoordinatorCrashes) {
      settings_.max_restarts = 100;
      settings_.shrink_delay = settings_.restart_backoff = 0s;  // only the start hold is left
    }
    const auto log_event = [this](const std::string& what) { log_progress("-", what); };
    auto coordinator = std::make_unique<SimCoordinator>(clock_, &dice_, settings_, log_event);
    coordinator_ = coordinator.get();
    endpoint_->add(coordinator_);
    if (timings_ == SimTimings::kPerNode) coordinator_->enable_timings();
    if (mode_ == SimMode::kStored) {
      coordinator_->store_state_after(dice_.between(Duration(1ms), Duration(1s)));
    }
    authority_ = std::move(coordinator);
    agent_world_.clock = clock_;
    agent_world_.dice = &dice_;
    agent_world_.connect = [this](SimAgent* agent) { return authority_->connect(agent); };
    agent_world_.work = [this](const SimAgent& agent) { return draw_work(agent); };
    agent_world_.log_progress = [this](const SimAgent& agent, const std::string& what) {
      log_progress(agent.name(), what);
    };
    agent_world_.workers_gone = [this](const SimAgent& agent) { workers_gone(agent); };
    agent_world_.collective_broke = [this](const SimAgent& agent) {
      for (const auto& other : agents_) other->break_collective(agent);
    };
  }

  // Boots the machines, and plans the faults. Returns when everything must heal.
  Instant begin() {
    if (is_coordinator_alone()) endpoint_->start();
    const int machines = settings_.max_nodes + (settings_.static_ranks ? 0 : dice_.between(0, 2));
    for (int machine = 0; machine < machines; ++machine) {
      clock_->after(dice_.between(Duration(0s), Duration(4s)), [this, machine] { boot(machine); });
    }
    const Instant heal_at = clock_->now() + dice_.between(Duration(20s), Duration(90s));
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
    if (coordinator_ != nullptr) endpoint_->unstall();
    if (is_coordinator_alone()) endpoint_->start();
    for (int machine = 0; machine < settings_.min_nodes; ++machine) boot_somewhere();
  }

  void check() {
    for (const std::string& one : authority_->checker().violations()) violations_.push_back(one);
    if (!authority_->fault().empty()) violations_.push_back(authority_->fault());
    for (const auto& agent : agents_) {
      // A rerun on a machine whose agent lives on elsewhere in the cluster is refused its static
      // rank.
      const bool is_expected = settings_.static_ranks && agent->fate() == "refused";
      if (!agent->fault().empty() && !is_expected) {
        violations_.push_back(agent->name() + ": " + agent->fault());
      }
    }
    if (faults_ == Faults::kCoordinatorCrashes) check_after_crash();
    if (mode_ == SimMode::kHosted && endpoint_->is_shared()) check_host();
  }

  bool has_converged() const {
    return std::none_of(agents_.begin(), agents_.end(),
                        [](const auto& agent) { return agent->is_alive(); });
  }
  bool is_good() const { return violations_.empty(); }

  SimReport report() {
    if (is_good() && !has_converged()) report_no_end();
    check_results();
    SimReport report;
    report.violations = violations_;
    report.steps = authority_->steps();
    report.rounds = authority_->checker().rounds_seen();
    report.crashes = static_cast<std::uint64_t>(std::max(authority_->lives() - 1, 0));
    report.leaves = leaves_;
    report.end = end_;
    return report;
  }

 private:
  void log_progress(const std::string& who, const std::string& what) {
    if (trace_ == nullptr) return;
    char at[32];
    std::snprintf(at, sizeof at, "%9.4f  ", to_seconds(clock_->now() - start_));
    trace_->push_back(at + who + "  " + what);
  }

  void boot(int machine) {
    SimAgentOptions options;
    options.settings = settings_;
    if (timings_ == SimTimings::kPerNode) draw_timings(&dice_, &options.settings);
    // Crashes in a row can be one outage for a node, and no node may give up.
    if (faults_ == Faults::kCoordinatorCrashes) options.settings.store_grace = 100s;
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
      endpoint_->start();
    }
    options.info.stop_grace = options.info.failure_grace = kGrace;
    agents_.push_back(std::make_unique<SimAgent>(&agent_world_, options));
    if (options.info.hosts_coordinator) host_ = agents_.back().get();
    machines_.push_back(machine);
    log_progress(options.info.name, "starts");
    if (dice_.chance(0.1) && faults_ == Faults::kAll) {
      agents_.back()->path()->delay_max = 300ms;  // a slow machine
    }
    agents_.back()->start();
  }

  SimWork draw_work(const SimAgent&) {
    SimWork work;
    work.length = dice_.between(Duration(2s), Duration(40s));
    work.fails = !has_healed_ && dice_.chance(0.25);
    work.stop = dice_.between(Duration(1ms), Duration(500ms));
    if (faults_ != Faults::kAll) return work;
    if (dice_.chance(0.1)) work.stop = kGrace;
    if (!has_healed_ && dice_.chance(0.02)) work.stop = kStopMax;
    return work;
  }

  // I1 for processes: workers of an older and a newer round overlap only for a bounded time.
  void workers_gone(const SimAgent& agent) {
    const std::vector<Instant>& began = authority_->rounds_began();
    const auto next = std::upper_bound(began.begin(), began.end(), agent.round_heard_at());
    if (next == began.end()) return;
    const Duration overlap = clock_->now() - *next;
    // Each coordinator that restarts without state may accept the older round for a while.
    const bool is_equal = timings_ == SimTimings::kEqual;
    const Duration store_grace = is_equal ? settings_.store_grace : kStoreGraceMax;
    const Duration find_out = is_equal ? kFindOut : 2 * kNodeTimeoutMax;
    const Duration allowed = store_grace * (2 * authority_->lives() - 1) + find_out + kStopMax +
                             agent.time_paused() + authority_->time_stalled();
    if (overlap <= allowed) return;
    violations_.push_back("I1: workers of round " + std::to_string(agent.round()) + " on " +
                          agent.name() + " ended " + std::to_string(to_seconds(overlap)) +
                          " s after the next round had begun");
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
    clock_->after(dice_.between(Duration(100ms), Duration(9s)), [this] {
      if (has_healed_) return;
      cause_fault();
      plan_fault();
    });
  }

  void plan_crash() {
    clock_->after(dice_.between(Duration(1ms), Duration(6s)), [this] {
      if (has_healed_) return;
      if (!coordinator_->has_stored_state()) {  // newcomers alone could form another first round
        plan_crash();
        return;
      }
      endpoint_->crash(false);
      clock_->after(dice_.between(Duration(1ms), Duration(5s)), [this] {
        endpoint_->start();
        if (!has_healed_) plan_crash();
      });
    });
  }

  void cause_fault() {
    SimAgent* agent = some_agent();
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
        clock_->after(length, [agent] { agent->unpause(); });
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
    if (coordinator_ == nullptr) return;
    endpoint_->stall();
    clock_->after(length, [this] { endpoint_->unstall(); });
  }

  void restart_coordinator(Duration length) {
    if (!is_coordinator_alone()) return;
    endpoint_->crash(dice_.chance(0.3));
    clock_->after(dice_.chance(0.8) ? length : Duration(25s), [this] { endpoint_->start(); });
  }

  void crash(SimAgent* agent, bool is_host_dead) {
    if (agent == nullptr) return;
    agent->crash(is_host_dead);
    const bool is_host = mode_ == SimMode::kHosted && agent->info().hosts_coordinator;
    if (is_host) endpoint_->crash(is_host_dead);
    if (!is_host && dice_.chance(0.3)) return;
    const int machine = machine_of(agent);
    clock_->after(dice_.between(Duration(1ms), Duration(12s)), [this, machine] {
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
    clock_->after(length, [path] { path->unblock(); });
  }

  // The process of the host ends with its agent: at once after a fault, otherwise when the nodes of
  // its own job have ended too.
  void check_host() {
    if (host_ == nullptr || host_->is_alive() || !endpoint_->is_up()) return;
    if (host_->fate() == "closed" && !has_converged() && !host_ended_at_) {
      host_ended_at_ = clock_->now();
    }
    const bool must_wait = host_ended_at_ && !has_converged() &&
                           clock_->now() < *host_ended_at_ + kGrace + kHostMargin;
    if (must_wait) return;
    host_ended_at_.reset();
    ++leaves_;
    endpoint_->leave("the agent of another job that hosted the coordinator has ended");
  }

  // Nothing but the coordinator has crashed: its nodes live, and none of them keeps others waiting.
  void check_after_crash() {
    for (const auto& agent : agents_) {
      if (agent->evictions() == 0) continue;
      violations_.push_back(agent->name() + " was declared lost although it lives");
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
    if (!waiting_since_) waiting_since_ = clock_->now();
    const Duration waited = clock_->now() - *waiting_since_;
    if (waited <= core::kStartHold + kLatency) return;
    violations_.push_back("waited " + std::to_string(to_seconds(waited)) +
                          " s for a round: " + authority_->describe());
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
    violations_.push_back("no end within " + std::to_string(to_seconds(kConvergeWithin)) +
                          " s after the last fault: " + authority_->describe() +
                          "; still there:" + who);
  }

  // All agents receive the same result, unless the id began a new generation.
  void check_results() {
    std::set<std::string> results;
    for (const auto& agent : agents_) {
      if (agent->result()) results.insert(agent->result()->message);
    }
    end_ = results.empty() ? "no agent received a result" : *results.begin();
    const bool may_differ = authority_->generation() > 1;
    if (results.size() > 1 && !may_differ && authority_->lives() == 1) {
      violations_.push_back("agents received different results");
    }
  }

  SimMode mode_;
  SimTimings timings_;
  Faults faults_;
  std::string name_;
  std::optional<Instant> waiting_since_;  // a round is formed, or rebuilt
  Dice dice_;
  SimClock* clock_;
  Instant start_;
  SimEndpoint* endpoint_;
  std::vector<std::string>* trace_;  // null: without a trace
  JobSettings settings_;
  std::unique_ptr<SimAuthority> authority_;
  SimCoordinator* coordinator_ = nullptr;  // the authority
  SimAgent::World agent_world_;
  std::vector<std::unique_ptr<SimAgent>> agents_;
  std::vector<int> machines_;  // of each agent
  bool has_healed_ = false;
  std::string end_;
  std::vector<std::string> violations_;
  SimAgent* host_ = nullptr;              // the last agent that hosted the coordinator
  std::optional<Instant> host_ended_at_;  // it waits for the nodes of its job
  std::uint64_t leaves_ = 0;
};

SimReport run_one(const WorldOptions& options) {
  SimClock clock(options.seed);
  SimEndpoint endpoint;
  std::vector<std::string> trace;
  World world(options, &clock, &endpoint, &trace);
  const Instant heal_at = world.begin();
  while (world.is_good() && clock.run_next(heal_at)) world.check();
  world.heal();
  const Instant end = clock.now() + kConvergeWithin;
  while (world.is_good() && !world.has_converged() && clock.run_next(end)) world.check();
  SimReport report = world.report();
  report.trace = std::move(trace);
  return report;
}

}  // namespace

SimReport simulate(SimMode mode, SimTimings timings, std::uint64_t seed, bool with_trace) {
  return run_one({.mode = mode, .timings = timings, .seed = seed, .with_trace = with_trace});
}

SimReport simulate_crash_points(std::uint64_t seed, bool with_trace) {
  return run_one({.mode = SimMode::kStored,
                  .timings = SimTimings::kPerNode,
                  .faults = Faults::kCoordinatorCrashes,
                  .seed = seed,
                  .with_trace = with_trace});
}

SimReport simulate_two_jobs(std::uint64_t seed, bool with_trace) {
  SimClock clock(seed);
  SimEndpoint endpoint;
  std::vector<std::string> trace;
  World hosting({.mode = SimMode::kHosted,
                 .timings = SimTimings::kPerNode,
                 .seed = seed,
                 .with_trace = with_trace},
                &clock, &endpoint, &trace);
  World guest({.mode = SimMode::kGuest,
               .timings = SimTimings::kPerNode,
               .seed = ~seed,
               .with_trace = with_trace,
               .name = "guest"},
              &clock, &endpoint, &trace);
  const auto is_good = [&] { return hosting.is_good() && guest.is_good(); };
  const auto check = [&] {
    hosting.check();
    guest.check();
  };
  const Instant heal_at = std::max(hosting.begin(), guest.begin());
  while (is_good() && clock.run_next(heal_at)) check();
  hosting.heal();
  guest.heal();
  const Instant end = clock.now() + kConvergeWithin;
  while (is_good() && !(hosting.has_converged() && guest.has_converged()) && clock.run_next(end)) {
    check();
  }
  SimReport report = hosting.report();
  const SimReport second = guest.report();
  for (const std::string& one : second.violations) report.violations.push_back("guest: " + one);
  report.steps += second.steps;
  report.rounds = std::min(report.rounds, second.rounds);
  report.trace = std::move(trace);
  return report;
}

}  // namespace elastic::test
