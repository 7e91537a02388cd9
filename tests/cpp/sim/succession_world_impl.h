#pragma once

// The processes of a simulated job, the network between them, and its faults. The scenes are in
// succession_world.cc.

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "core/register/register_machine.h"
#include "core/succession/store_keeper.h"
#include "core/succession/voter_keeper.h"
#include "core/succession/witnessed_job.h"
#include "sim/kernel/seeds.h"
#include "sim/sim_store.h"
#include "sim/succession_world.h"

namespace elastic::test {
using namespace std::chrono_literals;

inline constexpr std::size_t kSlots = 6;  // the last one is a separate coordinator's
inline constexpr std::size_t kCoordinatorSlot = kSlots - 1;
inline constexpr std::size_t kWitnessSlot = kSlots - 2;  // of jobs with a witness
inline constexpr std::size_t kStoreSlot = kSlots;        // no process, and links lead there
inline constexpr Duration kNodeTimeout = 1s;
inline constexpr Duration kStoreGrace = 8s;
inline constexpr Duration kAttemptLimit = 5s;  // of a session to connect
inline constexpr Duration kConvergeWithin = 200s;
// Workers of a node that is cut off end when its session is given up and they are stopped.
inline constexpr Duration kOverlapMax = kStoreGrace + 3 * kNodeTimeout + 6s;

class SuccessionScenes;

class SuccessionWorld : public SimProcesses {
 public:
  // Of a scene.
  enum Trait : unsigned {
    kStandalone = 1,     // a separate coordinator, and not in the first node's process
    kWitness = 2,        // two nodes have a witness
    kReturn = 4,         // the coordinator's host is replaced
    kSameId = 8,         // one job follows another one
    kRandomFaults = 16,  // and workers that fail
    kSteps = 32,         // workers report steps, and nodes join and leave at one
    kTogether = 64,      // all processes begin at once
    kOneVoter = 128,     // voters=1
  };
  // What keeps the job's record.
  enum class Keeper : std::uint8_t {
    kVoters,
    kStore,   // one that reports changes
    kPolled,  // one that does not
    kFile,    // the state file of a separate coordinator
    kOne,     // nothing but the separate coordinator's memory
  };
  // With which keepers a scene makes sense.
  enum For : unsigned { kForVoters = 1, kForStores = 2, kForFile = 4, kForOne = 8 };
  static constexpr unsigned kElected = kForVoters | kForStores;
  static constexpr unsigned kAlone = kForFile | kForOne;
  struct Scene {
    std::string_view name;
    std::size_t nodes;  // 0: drawn
    void (SuccessionScenes::*play)();
    unsigned traits = 0;
    unsigned keepers = kElected;
  };

  SuccessionWorld(const Scene& scene, Keeper keeper, std::uint64_t seed, bool is_traced,
                  ServiceRule deleted);

 protected:
  using Step = std::function<void(std::vector<succession::Action>* actions)>;
  struct Process {
    std::uint64_t life = 0;
    bool is_alive = false;
    NodeId id;
    SimAgent* agent = nullptr;
    std::unique_ptr<succession::Machine> machine;  // of a witness: unused
    succession::StoreKeeper* kept = nullptr;       // the same, if a store keeps the record
    std::shared_ptr<SimStore::Caller> store;
    std::unique_ptr<succession::WitnessedJob> witness;
    SimServer* server = nullptr;  // the last one
    std::deque<Step> steps;
    std::function<void()> on_stopped;  // its coordinator
    bool is_busy = false;
    Alarm alarm;
    std::uint64_t servers = 0;
    SuccessionChecker* checker = nullptr;  // of the job that its server coordinates
  };

  bool has(Trait trait) const {
    if (trait == kStandalone && is_alone()) return true;
    return (scene_.traits & trait) != 0;
  }
  bool has_store() const { return keeper_ == Keeper::kStore || keeper_ == Keeper::kPolled; }
  // No other process can become the coordinator.
  bool is_alone() const { return keeper_ == Keeper::kFile || keeper_ == Keeper::kOne; }
  // A witness keeps its address when it is started again.
  std::string voter_address(std::size_t slot) const {
    if (is_witness(slot)) return "v" + std::to_string(slot) + ".0";
    return "v" + std::to_string(slot) + "." + std::to_string(processes_[slot].life);
  }
  static std::size_t slot_of(const SimAgent& agent) {
    return static_cast<std::size_t>(agent.info().id.high - 1);
  }
  bool is_witness(std::size_t slot) const { return has(kWitness) && slot == kWitnessSlot; }
  // "v2.1" -> 2, if that life is the current one.
  std::size_t slot_at(const std::string& address) const {
    const auto slot = static_cast<std::size_t>(address[1] - '0');
    const auto& process = processes_[slot];
    const std::uint64_t life = std::stoull(address.substr(3));
    const bool is_current = life == process.life || (life == 0 && is_witness(slot));
    return process.is_alive && is_current ? slot : kSlots;
  }

  void boot(std::size_t slot) {
    Process& process = processes_[slot];
    ++process.life;
    process.alarm.cancel();
    process.is_alive = true;
    process.id = {slot + 1, process.life};
    begin_machine(slot);
    const bool is_host = slot == 0 && !has(kStandalone) && !has_store() &&
                         (process.life == 1 || has(kReturn) || has(kSameId));
    if (slot == kCoordinatorSlot || is_host) {
      open_server(slot, nullptr);
      endpoint_ = address_of_server(slot);
      feed(slot, succession::CoordinatorStarted{endpoint_, true});
    }
    if (slot == kCoordinatorSlot || is_witness(slot)) return;
    if (has(kWitness)) feed(slot, succession::Witnesses{{voter_address(kWitnessSlot)}});
    SimAgentOptions agent;
    agent.settings = settings_;
    agent.has_steps = has(kSteps);
    agent.info.id = process.id;
    agent.info.name = name(slot) + "_" + std::to_string(process.life);
    agent.info.address = "10.0.0." + std::to_string(slot);
    agent.info.store_port = static_cast<std::uint16_t>(20'000 + slot);
    agent.info.hosts_coordinator = is_host;
    agent.info.stop_grace = agent.info.failure_grace = 2s;
    process.agent = add_agent(agent);
    process.agent->start();
    if (has_store()) feed(slot, succession::Tick{});
  }

  // `lineage`: of the job that the process has left its own one for.
  void begin_machine(std::size_t slot, const std::optional<reg::LineageId>& lineage = {});
  void open_store(std::size_t slot);

  std::string address_of_server(std::size_t slot) const {
    return "c" + std::to_string(slot) + "." + std::to_string(processes_[slot].life) + "." +
           std::to_string(processes_[slot].servers);
  }

  // `continued`: null: it begins a job. Where a host returns, that is another job until both meet.
  void open_server(std::size_t slot, const succession::StartCoordinator* continued) {
    Process& process = processes_[slot];
    const bool is_endpoint = endpoint_ == address_of_server(slot);
    ++process.servers;
    if (is_endpoint) endpoint_ = address_of_server(slot);  // its process listens there already
    process.checker = &checker_;
    if (continued != nullptr && other_lineages_.contains(continued->lineage)) {
      process.checker = other_lineages_.at(continued->lineage);
    } else if (continued == nullptr && has(kReturn) && process.life > 1) {
      process.checker = &other_jobs_.emplace_back(&report_.violations);
    }
    process.server =
        &servers_.emplace_back(this, slot, process.checker, deleted_, slot == kCoordinatorSlot);
    if (is_alone()) process.server->keep_alone(keeper_ == Keeper::kFile ? &file_ : nullptr);
  }

  std::shared_ptr<SimLink> connect(SimAgent* agent, const std::string& address) override {
    const std::string& to = address.empty() ? endpoint_ : address;
    const std::size_t slot = server_at(to);
    const std::size_t from = slot_of(*agent);
    if (slot == kSlots || cuts_.has_any(from, slot)) return nullptr;
    return processes_[slot].server->accept(path(from, slot));
  }
  // Of the process that listens at this address.
  std::size_t server_at(const std::string& address) const {
    const std::size_t slot = slot_at(address.substr(0, address.rfind('.')));
    const bool is_there =
        slot != kSlots && processes_[slot].server != nullptr && address == address_of_server(slot);
    return is_there ? slot : kSlots;
  }

  std::shared_ptr<SimPath> path(std::size_t agent, std::size_t server) {
    auto& one = paths_[{agent, server}];
    if (one == nullptr) one = std::make_shared<SimPath>();
    return one;
  }

  bool has_succession() const override { return !is_alone(); }
  std::optional<session::SuccessionHello> hello(const SimAgent& agent) override {
    if (is_alone()) return std::nullopt;
    const std::size_t slot = slot_of(agent);
    session::SuccessionHello hello{voter_address(slot), {}, false};
    if (const auto& known = incumbent(slot)) {
      hello.lineage = known->lineage;
      hello.is_replicated = has_store() || known->is_replicated();
    }
    return hello;
  }
  void informed(const SimAgent& agent, const succession::Incumbent& incumbent) override {
    feed(slot_of(agent), succession::Informed{incumbent});
  }
  void lost(const SimAgent& agent) override { feed(slot_of(agent), succession::IncumbentLost{}); }
  void returned(const SimAgent& agent) override {
    feed(slot_of(agent), succession::IncumbentReturned{});
  }
  void displaced(const SimAgent& agent, const succession::Incumbent& by) override {
    begin_machine(slot_of(agent), by.lineage);
  }

  // ---- Where a store keeps the record (succession_keepers.cc).

  std::optional<std::string> recorded(const SimAgent& agent) override;
  bool refuses(const SimAgent& agent, const std::string& address) override;
  void absent(const SimAgent& agent, const std::string& address, bool was_closed) override;
  void round_started(const SimAgent& agent, int rank) override;
  void end_coordinator(const SimAgent& agent, std::function<void()> done) override;
  void ended(const SimAgent& agent) override;
  void answered(std::size_t slot, SimStore::Answer answer);
  void call_store(std::size_t slot);

  // ---- The succession machine of a process.

  const std::optional<succession::Incumbent>& incumbent(std::size_t slot) const override {
    return processes_[slot].machine->incumbent();
  }

  void feed(std::size_t slot, const succession::Event& event) override {
    Process& process = processes_[slot];
    if (!process.is_alive || is_alone()) return;  // alone: there is no machine
    if (is_witness(slot)) return feed_witness(event);
    run_step(slot, [this, slot, event](auto* actions) {
      processes_[slot].machine->step(event, clock_.now(), actions);
    });
  }
  void run_step(std::size_t slot, Step step) {
    Process& process = processes_[slot];
    process.steps.push_back(std::move(step));
    if (std::exchange(process.is_busy, true)) return;
    while (!process.steps.empty()) {
      const Step next = std::move(process.steps.front());
      process.steps.pop_front();
      std::vector<succession::Action> actions;
      next(&actions);
      for (const succession::Action& action : actions) {
        std::visit([&](const auto& one) { execute(slot, one); }, action);
      }
    }
    process.is_busy = false;
    if (process.kept != nullptr && process.is_alive) call_store(slot);
    set_alarm(slot, process.machine->next_deadline());
  }

  void feed_witness(const succession::Event& event) {
    succession::WitnessedJob& witness = *processes_[kWitnessSlot].witness;
    std::vector<succession::Action> actions;
    if (const auto* received = std::get_if<succession::Received>(&event)) {
      witness.receive(*received, clock_.now(), &actions);
    } else if (const auto* ended = std::get_if<succession::ConnectionEnded>(&event)) {
      witness.connection_ended(*ended, clock_.now());
    } else if (std::holds_alternative<succession::Tick>(event)) {
      witness.tick(clock_.now(), &actions);
    }
    for (const succession::Action& action : actions) {
      std::visit([&](const auto& one) { execute(kWitnessSlot, one); }, action);
    }
    set_alarm(kWitnessSlot, witness.next_deadline());
  }

  void set_alarm(std::size_t slot, const std::optional<Instant>& deadline) {
    if (!deadline) return;
    processes_[slot].alarm.set(&clock_, *deadline,
                               [this, slot] { feed(slot, succession::Tick{}); });
  }

  // A connection is the sender's process.
  void execute(std::size_t slot, const succession::Send& action) {
    const bool is_reply = action.address.empty() && action.connection != 0;
    const std::string address = is_reply ? "v" + std::to_string(action.connection % 10) + "." +
                                               std::to_string(action.connection / 10)
                                         : action.address;
    if (address.empty()) return;
    const auto to = static_cast<std::size_t>(address[1] - '0');
    const std::uint64_t from_life = processes_[slot].life;
    if (cuts_.has(slot, to)) return;
    const std::string opened_to = is_reply ? voter_address(slot) : "";
    clock_.after(dice_.between(Duration(50us), Duration(2ms)),
                 [this, slot, to, address, from_life, opened_to, frame = action.frame] {
                   if (cuts_.has(slot, to)) return;
                   if (slot_at(address) == to) {
                     feed(to, succession::Received{from_life * 10 + slot, frame, opened_to});
                   } else if (!hosts_down_.contains(to) && processes_[slot].life == from_life) {
                     feed(slot, succession::Unreachable{address});
                   }
                 });
  }
  void execute(std::size_t slot, const succession::BeginRecord&) {
    trace(name(slot) + "  begins its record");
    processes_[slot].server->begin_record();
  }
  void execute(std::size_t slot, const succession::StartCoordinator& action) {
    count(action.is_kept && action.record.state.empty() ? "beginnings" : "elections");
    const SimServer* const former = processes_[slot].server;
    if (former != nullptr && former->is_serving()) violate("two coordinators in one process");
    if (!terms_.insert({action.lineage, action.term}).second) violate("two coordinators of a term");
    open_server(slot, &action);
    processes_[slot].server->succeed(action, processes_[slot].id);
    clock_.after(dice_.between(Duration(1ms), Duration(5ms)),
                 [this, slot, life = processes_[slot].life] {
                   if (processes_[slot].life != life) return;
                   feed(slot, succession::CoordinatorStarted{address_of_server(slot), false});
                 });
  }
  void execute(std::size_t slot, const succession::StopCoordinator& action) {
    trace(name(slot) + "  stops its coordinator: " + action.reason);
    if (processes_[slot].server != nullptr) processes_[slot].server->stop(action);
    if (auto done = std::exchange(processes_[slot].on_stopped, nullptr)) clock_.after(1ms, done);
    if (slot != kCoordinatorSlot) return;
    // The next job of the id begins with a new machine.
    begin_machine(slot);
    processes_[slot].is_busy = true;
    feed(slot, succession::CoordinatorStarted{address_of_server(slot), true});
  }
  void execute(std::size_t slot, const succession::InForce& action) {
    processes_[slot].server->in_force(action.number);
  }
  void execute(std::size_t slot, const succession::Inform& action) {
    if (processes_[slot].checker != &checker_) {
      other_lineages_[action.incumbent.lineage] = processes_[slot].checker;
    }
    if (processes_[slot].server != nullptr) processes_[slot].server->inform(action.incumbent);
  }
  void execute(std::size_t slot, const succession::MajorityLost&) {
    processes_[slot].server->set_majority(false);
  }
  void execute(std::size_t slot, const succession::MajorityRegained&) {
    processes_[slot].server->set_majority(true);
  }
  void execute(std::size_t slot, const succession::Follow& action) {
    if (processes_[slot].agent == nullptr) return;
    trace(name(slot) + "  follows term " + std::to_string(action.incumbent.term));
    processes_[slot].agent->follow(action.incumbent.address,
                                   action.incumbent.address == address_of_server(slot));
  }
  void execute(std::size_t slot, const succession::AnnounceAtEndpoints& action) {
    const std::size_t at = has(kStandalone) ? kCoordinatorSlot : 0;
    if (at == slot) {
      clock_.after(1ms, [this, slot] { feed(slot, succession::EndpointsAreHere{}); });
      return;
    }
    clock_.after(dice_.between(Duration(500us), Duration(10ms)), [this, slot, at, action] {
      const Process& endpoint = processes_[at];
      if (cuts_.has_any(slot, at)) return;
      if (!endpoint.is_alive || endpoint.server == nullptr) return;
      const session::Incumbent reply = endpoint.server->announce(action.incumbent);
      clock_.after(dice_.between(Duration(50us), Duration(2ms)), [this, slot, reply] {
        if (deleted_ == ServiceRule::kMeet) return;
        feed(slot, succession::Met{reply.incumbent});
      });
    });
  }
  void execute(std::size_t slot, const succession::Displaced& action) {
    trace(name(slot) + "  its job dissolves");
    Process& process = processes_[slot];
    if (process.checker != &checker_ && process.checker->num_rounds() > 0) count("displaced");
    if (process.agent != nullptr) process.agent->displace(action.by.address);
    process.server->displace(action.by);
    begin_machine(slot, action.by.lineage);
    process.is_busy = true;
  }
  void execute(std::size_t slot, const succession::Expired& action) {
    if (processes_[slot].agent != nullptr) processes_[slot].agent->lose_coordinator();
    trace(name(slot) + "  expired: " + action.reason);
  }
  void execute(std::size_t slot, const succession::KeeperFault& action) {
    trace(name(slot) + "  ends: " + action.message);
    if (processes_[slot].agent != nullptr) processes_[slot].agent->lose_coordinator();
  }
  void execute(std::size_t slot, const succession::Log& action) {
    trace(name(slot) + "  " + action.message);
  }
  template <typename Other>
  void execute(std::size_t, const Other&) {}

  // ---- Faults.

  void crash(std::size_t slot, bool is_host_dead);
  // The coordinator there ends in order. Where a store keeps the record, its node leaves.
  void resign(std::size_t slot);
  void close_connections_with_witness(std::size_t slot);
  void cut(std::size_t a, std::size_t b, bool is_cut);
  void cut_both(std::size_t a, std::size_t b, bool is_cut);
  void cut_off(std::size_t slot, bool is_cut);
  void mend();
  void heal();
  void restart_coordinator(Duration away);
  void restart_witness();
  std::size_t any_process();
  std::size_t any_process_but(std::size_t slot);
  bool may_crash(std::size_t alive) const;
  bool may_resign(std::size_t alive) const;
  // At random, until everything heals.
  void plan_fault();
  void cause_fault();

  // ---- Nodes that join and leave.

  std::size_t num_alive() const {
    return static_cast<std::size_t>(std::count_if(processes_.begin(), processes_.end(),
                                                  [](const Process& one) { return one.is_alive; }));
  }

  void boot_newcomer() {
    for (std::size_t slot = 1; slot < kCoordinatorSlot; ++slot) {
      if (processes_[slot].is_alive || is_witness(slot)) continue;
      trace("---- " + name(slot) + " starts");
      hosts_down_.erase(slot);
      return boot(slot);
    }
  }

  void depart(std::size_t slot) {
    Process& process = processes_[slot];
    // A node that coordinates ends with its service, which a leave does not.
    if (!process.is_alive || process.agent == nullptr || is_serving(slot)) return;
    process.agent->depart(dice_.between(Duration(2s), Duration(30s)));
  }

  // A newcomer that has not reached the coordinator before it was lost looks for it at the
  // endpoint, and gives up after join_timeout.
  bool runs_all() const {
    const auto agents = std::count_if(processes_.begin(), processes_.end(), [](const auto& one) {
      return one.is_alive && one.agent != nullptr && one.agent->is_alive();
    });
    return runs_round_of(static_cast<std::size_t>(agents));
  }

  SimWork draw_work() override {
    SimWork work;
    work.length = is_healed_ ? dice_.between(Duration(2s), Duration(4s)) : Duration(100s);
    work.fails = has(kRandomFaults) && !is_healed_ && dice_.chance(0.5);
    if (work.fails) work.length = dice_.between(Duration(1s), Duration(20s));
    work.stop = dice_.between(Duration(1ms), Duration(20ms));
    return work;
  }

  std::pair<std::int64_t, Duration> steps_of(std::uint64_t round) const override {
    auto [steps, step_time] = SimProcesses::steps_of(round);
    return {is_healed_ ? steps / 4 : 100 * steps, step_time};
  }

  void check(std::size_t slot, const core::RendezvousAction& action,
             SuccessionChecker* checker) override {
    if (const RoundRecord* begun = checker->check(action, clock_.now())) {
      trace(name(slot) + (checker == &checker_ ? "  round " : "  another job's round ") +
            std::to_string(begun->round) + " is sent, " + std::to_string(begun->nodes) +
            " nodes, term " + std::to_string(begun->term));
    }
  }

  // ---- The job and what is expected of it.

  void start();
  void expect_next_round(std::size_t nodes, Duration within);
  void expect_round(std::size_t nodes, Duration within, std::uint64_t next);

  // All agents that live run workers of one round of this many nodes.
  bool runs_round_of(std::size_t nodes, std::uint64_t first = 1) const {
    std::size_t running = 0;
    std::set<std::uint64_t> rounds;
    for (const Process& process : processes_) {
      if (!process.is_alive || process.agent == nullptr || !process.agent->is_alive()) continue;
      if (!process.agent->has_workers()) return false;
      ++running;
      rounds.insert(process.agent->round());
    }
    return running == nodes && rounds.size() == 1 && *rounds.begin() >= first;
  }

  // It has coordinated the job, and may do so.
  bool is_serving(std::size_t slot) const {
    return has_store() ? processes_[slot].machine->is_coordinator()
                       : processes_[slot].server != nullptr;
  }

  // Some coordinator has this many voters, or is named by the store, or runs alone.
  bool has_voters(std::size_t count) const {
    if (is_alone()) return processes_[kCoordinatorSlot].is_alive;
    return std::any_of(processes_.begin(), processes_.end(), [&](const Process& one) {
      const std::size_t needed = has_store() ? 1 : count;
      return one.is_alive && one.machine->is_coordinator() && one.machine->incumbent() &&
             one.machine->incumbent()->voters.size() >= needed;
    });
  }

  std::uint64_t& elections() { return report_.counts["elections"]; }

  const Scene& scene_;
  const Keeper keeper_;
  std::size_t nodes_;
  const ServiceRule deleted_;
  JobSettings settings_;
  std::array<Process, kSlots> processes_;
  std::deque<SimServer> servers_;  // the clock may still have calls of former ones
  SimStore store_{&clock_, &dice_, keeper_ == Keeper::kStore};
  SimFile file_{&clock_, &dice_};
  std::set<std::pair<reg::LineageId, std::uint64_t>> terms_;  // of coordinators
  std::string endpoint_;
  std::map<std::pair<std::size_t, std::size_t>, std::shared_ptr<SimPath>> paths_;
  Cuts cuts_;
  std::set<std::size_t> hosts_down_;
  bool is_healed_ = false;
  int crashes_ = 0;
  SuccessionChecker checker_{&report_.violations};
  std::deque<SuccessionChecker> other_jobs_;
  std::map<reg::LineageId, SuccessionChecker*> other_lineages_;
};

}  // namespace elastic::test
