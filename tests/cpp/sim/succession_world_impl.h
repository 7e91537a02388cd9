#pragma once

// The processes of a simulated job, the network between them, and its faults. The scenes are in
// succession_world.cc.

#include <algorithm>
#include <array>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "core/register/register_machine_impl.h"
#include "core/succession/succession_machine.h"
#include "core/succession/witnessed_job.h"
#include "sim/sim_agent.h"
#include "sim/succession_checker.h"
#include "sim/succession_world.h"

namespace elastic::test {
using namespace std::chrono_literals;

inline constexpr std::size_t kSlots = 6;  // the last one is a separate coordinator's
inline constexpr std::size_t kCoordinatorSlot = kSlots - 1;
inline constexpr std::size_t kWitnessSlot = kSlots - 2;  // of jobs with a witness
inline constexpr Duration kNodeTimeout = 1s;
inline constexpr Duration kStoreGrace = 8s;
inline constexpr Duration kConvergeWithin = 200s;
inline constexpr Duration kOverrideTimeout = 60s;
// The operator's command opens a connection to a voter port; no slot has this number.
inline constexpr std::uint64_t kOperator = 9;
// Workers of a node that is cut off end when its session is given up and they are stopped.
inline constexpr Duration kOverlapMax = kStoreGrace + 3 * kNodeTimeout + 6s;

// A voter of a lineage that was replaced, as it would be if it had not left it.
class FormerVoter {
 public:
  FormerVoter(const reg::Voter& self, const reg::VoterState& state, Instant now);
  // The replies to the message.
  std::vector<reg::Send> receive(const reg::Message& message, Instant now);

 private:
  // A state is restored with any number of voters, and the promise needs no loss.
  struct Rules {
    static constexpr bool has(reg::Rule rule) {
      return rule != reg::Rule::kStateOfOneVoter && rule != reg::Rule::kLostIncumbent;
    }
  };
  reg::BasicRegister<Rules> register_;
};

class SuccessionWorld {
 public:
  SuccessionWorld(SuccessionScene scene, std::uint64_t seed, const SuccessionOptions& options)
      : scene_(scene), options_(options), dice_(seed), clock_(seed) {
    is_standalone_ =
        scene == SuccessionScene::kStandaloneLost || scene == SuccessionScene::kStandaloneAgain;
    has_witness_ = scene == SuccessionScene::kWitness || scene == SuccessionScene::kWitnessFaults ||
                   scene == SuccessionScene::kSameId;
    nodes_ = has_witness_                                                                   ? 2
             : scene == SuccessionScene::kPartition || scene == SuccessionScene::kTwoOfFive ? 5
             : is_standalone_                                                               ? 4
             : scene == SuccessionScene::kFaults ? static_cast<std::size_t>(dice_.between(3, 5))
             : scene == SuccessionScene::kOverride && dice_.chance(0.5) ? 5
                                                                        : 3;
    settings_.min_nodes = 1;
    settings_.max_nodes = static_cast<int>(scene == SuccessionScene::kReturn ? 5 : nodes_);
    settings_.max_restarts = 50;
    settings_.settle = 100ms;
    settings_.last_call_timeout = 1s;
    settings_.node_timeout = kNodeTimeout;
    settings_.store_grace = kStoreGrace;
    settings_.join_timeout = 30s;
    settings_.restart_backoff = 0s;
    agent_world_.clock = &clock_;
    agent_world_.dice = &dice_;
    agent_world_.connect_to = [this](SimAgent* agent, const std::string& address) {
      return connect(agent, address);
    };
    agent_world_.succession = [this](SimAgent* agent) { return hooks(agent); };
    agent_world_.work = [this](const SimAgent&) { return draw_work(); };
    agent_world_.log_progress = [this](const SimAgent& agent, const std::string& what) {
      trace(agent.name() + "  " + what);
    };
    agent_world_.workers_gone = [this](const SimAgent& agent) { workers_gone(agent); };
    agent_world_.collective_broke = [](const SimAgent&) {};
  }

  SuccessionReport run();

 private:
  struct Process {
    std::uint64_t life = 0;
    bool is_alive = false;
    NodeId id;
    std::unique_ptr<SimAgent> agent;
    std::unique_ptr<succession::Machine> machine;  // of a witness: unused
    std::unique_ptr<succession::WitnessedJob> witness;
    std::unique_ptr<SimServer> server;
    std::deque<succession::Event> events;
    bool is_busy = false;
    std::uint64_t alarm = 0;
    std::uint64_t servers = 0;
    SuccessionChecker* checker = nullptr;  // of the job that its server coordinates
    bool has_changed = false;              // to the lineage that replaces the first one
    // Only without the rule kLeaveReplaced: goes on voting in the former lineage.
    std::unique_ptr<FormerVoter> former;
    std::optional<reg::VoterState> state;  // of its register before the event
  };

  void trace(const std::string& what) {
    if (!options_.is_traced) return;
    char at[32];
    std::snprintf(at, sizeof at, "%9.4f  ", to_seconds(clock_.now().time_since_epoch() - 1h));
    report_.trace.push_back(at + what);
  }
  void violate(const std::string& what) { report_.violations.push_back(what); }
  static std::string name(std::size_t slot) { return "node" + std::to_string(slot); }
  // A witness keeps its address when it is started again.
  std::string voter_address(std::size_t slot) const {
    if (is_witness(slot)) return "v" + std::to_string(slot) + ".0";
    return "v" + std::to_string(slot) + "." + std::to_string(processes_[slot].life);
  }
  static std::size_t slot_of(const SimAgent* agent) {
    return static_cast<std::size_t>(agent->info().id.high - 1);
  }
  bool is_witness(std::size_t slot) const { return has_witness_ && slot == kWitnessSlot; }
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
    process.is_alive = true;
    process.id = {slot + 1, process.life};
    begin_machine(slot);
    process.former.reset();
    process.state.reset();
    process.has_changed = false;
    const bool is_host = slot == 0 && !is_standalone_ &&
                         (process.life == 1 || scene_ == SuccessionScene::kReturn ||
                          scene_ == SuccessionScene::kSameId);
    if (slot == kCoordinatorSlot || is_host) {
      open_server(slot, nullptr);
      endpoint_ = address_of_server(slot);
      feed(slot, succession::CoordinatorStarted{endpoint_, true});
    }
    if (slot == kCoordinatorSlot || is_witness(slot)) return;
    if (has_witness_) feed(slot, succession::Witnesses{{voter_address(kWitnessSlot)}});
    SimAgentOptions agent;
    agent.settings = settings_;
    agent.override_timeout = is_override() ? kOverrideTimeout : Duration(0);
    agent.info.id = process.id;
    agent.info.name = name(slot) + "_" + std::to_string(process.life);
    agent.info.address = "10.0.0." + std::to_string(slot);
    agent.info.store_port = static_cast<std::uint16_t>(20'000 + slot);
    agent.info.hosts_coordinator = is_host;
    agent.info.stop_grace = agent.info.failure_grace = 2s;
    // The clock may still have calls of the former one.
    if (process.agent != nullptr) retired_agents_.push_back(std::move(process.agent));
    process.agent = std::make_unique<SimAgent>(&agent_world_, agent);
    process.agent->start();
  }

  // `lineage`: of the job that the process has left its own one for.
  void begin_machine(std::size_t slot, const std::optional<reg::LineageId>& lineage = {}) {
    Process& process = processes_[slot];
    succession::Settings settings;
    settings.lineage = lineage;
    settings.job_id = "job";
    settings.self = {process.id, is_witness(slot) ? "" : voter_address(slot)};
    settings.is_witness = is_witness(slot);
    settings.is_standalone = slot == kCoordinatorSlot;
    settings.reg.voters = 0;
    settings.reg.store_grace = kStoreGrace;
    settings.follow_timeout = kNodeTimeout;
    settings.reg.stands_after_expiry = is_override();
    process.machine = std::make_unique<succession::Machine>(settings, dice_.next());
    if (is_witness(slot)) {
      process.witness = std::make_unique<succession::WitnessedJob>("job", dice_.next());
    }
    process.events.clear();
    process.is_busy = false;
  }

  std::string address_of_server(std::size_t slot) const {
    return "c" + std::to_string(slot) + "." + std::to_string(processes_[slot].life) + "." +
           std::to_string(processes_[slot].servers);
  }

  // `continued`: null: it begins a job. Where a host returns, that is another job until both meet.
  void open_server(std::size_t slot, const succession::StartCoordinator* continued) {
    Process& process = processes_[slot];
    ++process.servers;
    process.checker = &checker_;
    if (continued != nullptr && other_lineages_.contains(continued->lineage)) {
      process.checker = other_lineages_.at(continued->lineage);
    } else if (continued == nullptr && scene_ == SuccessionScene::kReturn && process.life > 1) {
      process.checker = &other_jobs_.emplace_back(&report_.violations);
    }
    if (process.server != nullptr) retired_.push_back(std::move(process.server));
    process.server = std::make_unique<SimServer>(SimServer::Owner{
        .clock = &clock_,
        .dice = &dice_,
        .job_id = "job",
        .deleted = options_.deleted,
        .feed = [this, slot](const succession::Event& event) { feed(slot, event); },
        .incumbent = [this, slot] { return processes_[slot].machine->incumbent(); },
        .trace = [this,
                  slot](const std::string& what) { trace(name(slot) + "  coordinator: " + what); },
        .sent = [this, slot, checker = process.checker](
                    const core::RendezvousAction& action) { check(slot, action, checker); },
        .host_of = [](const NodeId& node) { return "h" + std::to_string(node.high); }});
  }

  std::shared_ptr<SimLink> connect(SimAgent* agent, const std::string& address) {
    const std::string& to = address.empty() ? endpoint_ : address;
    const std::size_t slot = slot_at(to.substr(0, to.rfind('.')));
    if (slot == kSlots || processes_[slot].server == nullptr) return nullptr;
    if (to != address_of_server(slot)) return nullptr;
    const std::size_t from = slot_of(agent);
    if (cut_[from][slot] || cut_[slot][from]) return nullptr;
    return processes_[slot].server->accept(path(from, slot));
  }

  std::shared_ptr<SimPath> path(std::size_t agent, std::size_t server) {
    auto& one = paths_[{agent, server}];
    if (one == nullptr) one = std::make_shared<SimPath>();
    return one;
  }

  SimSession::Succession hooks(SimAgent* agent) {
    const std::size_t slot = slot_of(agent);
    return {.hello =
                [this, slot] {
                  session::SuccessionHello hello{voter_address(slot), {}, false};
                  if (const auto& incumbent = processes_[slot].machine->incumbent()) {
                    hello.lineage = incumbent->lineage;
                    hello.is_replicated = incumbent->is_replicated();
                  }
                  return hello;
                },
            .informed =
                [this, slot](const succession::Incumbent& incumbent) {
                  feed(slot, succession::Informed{incumbent});
                },
            .lost = [this, slot] { feed(slot, succession::IncumbentLost{}); },
            .returned = [this, slot] { feed(slot, succession::IncumbentReturned{}); },
            .displaced =
                [this, slot](const succession::Incumbent& by) { begin_machine(slot, by.lineage); }};
  }

  // ---- The succession machine of a process.

  void feed(std::size_t slot, const succession::Event& event) {
    Process& process = processes_[slot];
    if (!process.is_alive) return;
    if (is_witness(slot)) return feed_witness(event);
    const auto before = lineage_of(slot);
    keep_voting(slot, event);
    process.events.push_back(event);
    if (std::exchange(process.is_busy, true)) return;
    while (!process.events.empty()) {
      const succession::Event next = std::move(process.events.front());
      process.events.pop_front();
      std::vector<succession::Action> actions;
      process.machine->step(next, clock_.now(), &actions);
      for (const succession::Action& action : actions) {
        std::visit([&](const auto& one) { execute(slot, one); }, action);
      }
    }
    process.is_busy = false;
    note_lineage(slot, before);
    tick_at(slot, process.machine->next_deadline());
  }

  void feed_witness(const succession::Event& event) {
    succession::WitnessedJob& witness = *processes_[kWitnessSlot].witness;
    std::vector<succession::Action> actions;
    if (const auto* received = std::get_if<succession::Received>(&event)) {
      witness.receive(*received, clock_.now(), &actions);
    } else if (const auto* ended = std::get_if<succession::ConnectionEnded>(&event)) {
      witness.connection_ended(*ended, clock_.now(), &actions);
    } else if (std::holds_alternative<succession::Tick>(event)) {
      witness.tick(clock_.now(), &actions);
    }
    for (const succession::Action& action : actions) {
      std::visit([&](const auto& one) { execute(kWitnessSlot, one); }, action);
    }
    tick_at(kWitnessSlot, witness.next_deadline());
  }

  void tick_at(std::size_t slot, const std::optional<Instant>& deadline) {
    if (!deadline) return;
    Process& process = processes_[slot];
    clock_.at(*deadline, [this, slot, life = process.life, alarm = ++process.alarm] {
      const Process& current = processes_[slot];
      if (current.is_alive && life == current.life && alarm == current.alarm) {
        feed(slot, succession::Tick{});
      }
    });
  }

  // A connection is the sender's process.
  void execute(std::size_t slot, const succession::Send& action) {
    if (action.address.empty() && action.connection == kOperator) {
      answer_ = std::get<succession::OverrideReply>(succession::decode_frame(action.frame)->body);
      trace(name(slot) + "  answers the operator: " + answer_->text);
      return;
    }
    const bool is_reply = action.address.empty() && action.connection != 0;
    const std::string address = is_reply ? "v" + std::to_string(action.connection % 10) + "." +
                                               std::to_string(action.connection / 10)
                                         : action.address;
    if (address.empty()) return;
    const auto to = static_cast<std::size_t>(address[1] - '0');
    const std::uint64_t from_life = processes_[slot].life;
    if (cut_[slot][to]) return;
    const std::string opened_to = is_reply ? voter_address(slot) : "";
    clock_.after(dice_.between(Duration(50us), Duration(2ms)),
                 [this, slot, to, address, from_life, opened_to, frame = action.frame] {
                   if (cut_[slot][to]) return;
                   if (slot_at(address) == to) {
                     feed(to, succession::Received{from_life * 10 + slot, frame, opened_to});
                   } else if (!hosts_down_.contains(to) && processes_[slot].life == from_life) {
                     feed(slot, succession::Unreachable{address});
                   }
                 });
  }
  void execute(std::size_t slot, const succession::TurnOn&) {
    trace(name(slot) + "  turns the gate on");
    was_turned_on_ = true;
    processes_[slot].server->turn_on();
  }
  void execute(std::size_t slot, const succession::StartCoordinator& action) {
    ++report_.elections;
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
                                   action.incumbent.node == processes_[slot].id);
  }
  void execute(std::size_t slot, const succession::AnnounceAtEndpoints& action) {
    const std::size_t at = is_standalone_ ? kCoordinatorSlot : 0;
    if (at == slot) {
      clock_.after(1ms, [this, slot] { feed(slot, succession::EndpointsAreHere{}); });
      return;
    }
    clock_.after(dice_.between(Duration(500us), Duration(10ms)), [this, slot, at, action] {
      const Process& endpoint = processes_[at];
      if (cut_[slot][at] || cut_[at][slot]) return;
      if (!endpoint.is_alive || endpoint.server == nullptr) return;
      const session::Incumbent reply = endpoint.server->announce(action.incumbent);
      clock_.after(dice_.between(Duration(50us), Duration(2ms)), [this, slot, reply] {
        if (options_.deleted == ServiceRule::kMeet) return;
        feed(slot, succession::Met{reply.incumbent});
      });
    });
  }
  void execute(std::size_t slot, const succession::Displaced& action) {
    trace(name(slot) + "  its job dissolves");
    Process& process = processes_[slot];
    if (process.checker != &checker_ && process.checker->num_rounds() > 0) ++report_.displaced;
    if (process.agent != nullptr) process.agent->displace(action.by.address);
    process.server->displace(action.by);
    begin_machine(slot, action.by.lineage);
    process.is_busy = true;
  }
  void execute(std::size_t slot, const succession::Expired& action) {
    if (is_override() && processes_[slot].agent != nullptr) {
      processes_[slot].agent->expire(action.reason);
    } else if (processes_[slot].agent != nullptr) {
      processes_[slot].agent->lose_coordinator();
    }
    trace(name(slot) + "  expired: " + action.reason);
  }
  void execute(std::size_t slot, const succession::Log& action) {
    trace(name(slot) + "  " + action.message);
  }
  template <typename Other>
  void execute(std::size_t, const Other&) {}

  // ---- Faults.

  void crash(std::size_t slot, bool is_host_dead);
  void close_connections_with_witness(std::size_t slot);
  void cut(std::size_t a, std::size_t b, bool is_cut);
  void cut_both(std::size_t a, std::size_t b, bool is_cut);
  void cut_off(std::size_t slot, bool is_cut);
  void heal();

  // ---- An operator's override.

  bool is_override() const { return scene_ == SuccessionScene::kOverride; }

  std::optional<reg::LineageId> lineage_of(std::size_t slot) const {
    const auto& incumbent = processes_[slot].machine->incumbent();
    if (!incumbent) return std::nullopt;
    return incumbent->lineage;
  }

  void note_lineage(std::size_t slot, const std::optional<reg::LineageId>& before) {
    const auto after = lineage_of(slot);
    if (!is_override() || !before || after == before) return;
    Process& process = processes_[slot];
    if (process.has_changed) violate("a node left the lineage that replaces its first one");
    if (new_lineage_ && *after != *new_lineage_) violate("two lineages replace the first one");
    process.has_changed = true;
    new_lineage_ = *after;
    if (!replaced_) replaced_.emplace(checker_);
    if (options_.deleted != ServiceRule::kLeaveReplaced || !process.state) return;
    process.former = std::make_unique<FormerVoter>(reg::Voter{process.id, voter_address(slot)},
                                                   *process.state, clock_.now());
  }

  void keep_voting(std::size_t slot, const succession::Event& event);
  bool override_at(std::size_t slot);
  void lose_majority();

  bool has_random_faults() const {
    return scene_ == SuccessionScene::kFaults || scene_ == SuccessionScene::kWitnessFaults;
  }

  SimWork draw_work() {
    SimWork work;
    work.length = is_healed_ ? dice_.between(Duration(2s), Duration(4s)) : Duration(100s);
    work.fails = has_random_faults() && !is_healed_ && dice_.chance(0.5);
    if (work.fails) work.length = dice_.between(Duration(1s), Duration(20s));
    work.stop = dice_.between(Duration(1ms), Duration(20ms));
    return work;
  }

  void plan_fault() {
    clock_.after(dice_.between(Duration(200ms), Duration(6s)), [this] {
      if (is_healed_) return;
      cause_fault();
      plan_fault();
    });
  }

  std::size_t any_process() {
    const int last = static_cast<int>(nodes_) - (has_witness_ ? 0 : 1);
    const auto slot = static_cast<std::size_t>(dice_.between(0, last));
    return slot == nodes_ ? kWitnessSlot : slot;
  }

  void cause_fault();

  void check(std::size_t slot, const core::RendezvousAction& action, SuccessionChecker* checker) {
    // Of the lineage that was replaced, nothing may take force any more.
    if (replaced_ && !processes_[slot].has_changed) {
      const std::size_t rounds = replaced_->num_rounds();
      const bool had_result = replaced_->has_result();
      replaced_->check(action, clock_.now());
      if (replaced_->num_rounds() != rounds || replaced_->has_result() != had_result) {
        violate("a decision of the replaced lineage is in force after the override");
      }
      return;
    }
    if (const RoundRecord* begun = checker->check(action, clock_.now())) {
      trace(name(slot) + (checker == &checker_ ? "  round " : "  another job's round ") +
            std::to_string(begun->round) + " is sent, " + std::to_string(begun->nodes) +
            " nodes, term " + std::to_string(begun->term));
    }
  }

  void workers_gone(const SimAgent& agent);

  void advance(Duration time) {
    const Instant until = clock_.now() + time;
    while (report_.violations.empty() && clock_.run_next(until)) {
    }
    clock_.at(until, [] {});
    clock_.run_next(until);
  }

  bool advance_until(Duration limit, const std::function<bool()>& is_reached) {
    const Instant until = clock_.now() + limit;
    while (report_.violations.empty() && !is_reached()) {
      if (!clock_.run_next(until)) return false;
    }
    return true;
  }

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

  bool has_converged() const {
    return std::none_of(processes_.begin(), processes_.end(), [](const Process& one) {
      return one.is_alive && one.agent != nullptr && one.agent->is_alive();
    });
  }

  bool has_voters(std::size_t count) const {
    return std::any_of(processes_.begin(), processes_.end(), [&](const Process& one) {
      return one.is_alive && one.machine->is_coordinator() &&
             one.machine->incumbent()->voters.size() >= count;
    });
  }

  void start();
  void expect_next_round(std::size_t nodes, Duration within);
  void lose_coordinator();
  void restart_witness();
  void lose_one_of_two();
  void use_id_again();
  void return_host();
  void lose_done_host();
  const SuccessionScene scene_;
  const SuccessionOptions options_;
  Dice dice_;
  SimClock clock_;
  bool is_standalone_ = false;
  bool has_witness_ = false;
  std::size_t nodes_ = 3;
  JobSettings settings_;
  SimAgent::World agent_world_;
  std::array<Process, kSlots> processes_;
  std::vector<std::unique_ptr<SimServer>> retired_;
  std::vector<std::unique_ptr<SimAgent>> retired_agents_;
  std::string endpoint_;
  std::map<std::pair<std::size_t, std::size_t>, std::shared_ptr<SimPath>> paths_;
  bool cut_[kSlots][kSlots] = {};
  std::set<std::size_t> hosts_down_;
  bool was_turned_on_ = false;
  bool is_healed_ = false;
  int crashes_ = 0;
  SuccessionReport report_;
  SuccessionChecker checker_{&report_.violations};
  std::deque<SuccessionChecker> other_jobs_;
  std::map<reg::LineageId, SuccessionChecker*> other_lineages_;
  std::optional<SuccessionChecker> replaced_;  // of the first lineage, when the second one began
  std::optional<reg::LineageId> new_lineage_;
  std::optional<succession::OverrideReply> answer_;
  std::uint64_t nonces_ = 0;
};

}  // namespace elastic::test
