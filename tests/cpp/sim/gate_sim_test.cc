// A job that remembers bad hosts, seed by seed: workers fail, checks find something, an operator
// excludes hosts and readmits them, agents start and are lost, and so is the coordinator, whose
// successor continues from the record in force. A failure prints the line that replays it.
//
// Messages of one agent arrive in their order, those of several in any.

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/text.h"
#include "core/job/job.h"
#include "core/succession/job_record.h"
#include "sim/kernel/seeds.h"

namespace elastic::test {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kEpoch = 1'700'000'000'000'000'000;
constexpr int kHosts = 5;
constexpr int kEvents = 60;

struct Agent {
  core::NodeInfo info;
  bool is_alive = true;
  bool is_working = false;
  std::optional<core::HeldRound> last = {};
  std::optional<FailureReport> failure = {};
  std::deque<core::RendezvousEvent> pending = {};
};

class GateWorld {
 public:
  GateWorld(const std::string&, std::uint64_t seed, bool is_traced)
      : dice_(seed), is_traced_(is_traced) {
    settings_.min_nodes = dice_.between(1, 3);
    settings_.max_nodes = settings_.min_nodes + dice_.between(settings_.min_nodes == 1 ? 1 : 0, 2);
    settings_.max_restarts = 1000;
    settings_.join_timeout = 600s;
    settings_.last_call_timeout = 2s;
    settings_.settle = dice_.chance(0.5) ? 0s : 1s;
    settings_.shrink_delay = dice_.chance(0.7) ? 0s : 3s;
    settings_.node_timeout = 5s;
    settings_.restart_backoff = 0s;
    if (dice_.chance(0.8)) rule("on=exit:42 do=exclude");
    if (dice_.chance(0.3)) rule("on=node-lost do=exclude count=0");
    job_ = make_job();
    is_kept_ = dice_.chance(0.7);
    if (is_kept_) job_->gate().keep_at(core::RecordKeeper::kSuccession);
  }

  SimReport play() {
    for (int host = 0; host < settings_.min_nodes; ++host) start(host);
    for (int i = 0; i < kEvents && is_good(); ++i) happen();
    if (is_good()) settle();
    return report_;
  }

 private:
  static std::string host_name(int host) { return "h" + std::to_string(host); }
  bool is_good() const { return report_.violations.empty() && !job_->is_over(); }
  void broken(const std::string& what) { report_.violations.push_back(what); }
  void rule(const std::string& text) {
    const std::string number = std::to_string(settings_.extra.size() + 1);
    settings_.extra.emplace_back(std::string(core::kPolicySetting) + number, text);
  }

  std::unique_ptr<core::Job> make_job() {
    auto job = std::make_unique<core::Job>("job", settings_, now_, Duration::zero());
    gate::HostMemory hosts;
    hosts.set_epoch(kEpoch);
    job->take_hosts(std::move(hosts));
    return job;
  }

  // ---- What happens.

  void happen() {
    if (dice_.chance(0.5)) return deliver_some();
    const int host = dice_.between(0, kHosts - 1);
    switch (dice_.between(0, 11)) {
      case 0:
      case 1: return start(host);
      case 2:
      case 3: return fail(dice_.chance(0.6) ? 42 : 1);
      case 4: return lose();
      case 5: return find(host);
      case 6:
      case 7: return request(host, false);
      case 8: return request(host, true);
      case 9: return lose_coordinator();
      case 10: return put_in_force();
      default:
        return pass(dice_.chance(0.2) ? dice_.between(Duration(10min), Duration(3h))
                                      : dice_.between(Duration(0s), Duration(4s)));
    }
  }

  void start(int host) {
    const auto is_there = [&](const auto& one) {
      return one.second.is_alive && one.second.info.host == host_name(host);
    };
    if (std::count_if(agents_.begin(), agents_.end(), is_there) == 2) return;
    Agent agent;
    agent.info.id = {1, ++started_};
    agent.info.host = host_name(host);
    agent.info.name = agent.info.host + "_" + std::to_string(started_);
    agent.info.address = "10.0.0." + std::to_string(host + 1);
    agent.info.store_port = 20'000;
    agent.pending.push_back(rdzv::Join{agent.info, settings_});
    note("starts " + agent.info.name);
    agents_[agent.info.id] = std::move(agent);
  }

  Agent* pick(bool is_working) {
    std::vector<Agent*> all;
    for (auto& [id, agent] : agents_) {
      if (agent.is_alive && (!is_working || agent.is_working)) all.push_back(&agent);
    }
    if (all.empty()) return nullptr;
    return all[static_cast<std::size_t>(dice_.between(0, static_cast<int>(all.size()) - 1))];
  }

  void fail(int code) {
    Agent* const agent = pick(true);
    if (agent == nullptr || agent->failure) return;
    note(agent->info.name + " fails with " + std::to_string(code));
    agent->failure = FailureReport{0, agent->last->group_rank, code, "exited", now_};
    agent->pending.push_back(
        rdzv::Failed{agent->info.id, agent->last->record.round, *agent->failure});
  }

  void lose() {
    Agent* const agent = pick(false);
    if (agent == nullptr) return;
    note("loses " + agent->info.name);
    agent->is_alive = agent->is_working = false;
    agent->pending.clear();
    step(rdzv::SessionLost{agent->info.id});
    step(rdzv::ProcessEnded{agent->info.id});
  }

  void find(int host) {
    const auto verdict = static_cast<gate::Verdict>(dice_.between(0, 2));
    note("a check of " + host_name(host) + " finds " + gate::to_string(verdict));
    step(core::job_event::Found{{}, {host_name(host), "gpu", verdict, "found"}});
  }

  void request(int host, bool is_readmission) {
    const std::string name = host_name(host);
    note((is_readmission ? "readmits " : "excludes ") + name);
    const std::uint64_t number = ++requests_;
    if (is_readmission) {  // the answers of earlier requests come later, or are lost
      promised_.erase(name);
      std::erase_if(requested_, [&](const auto& one) { return one.second.first == name; });
    }
    if (!is_readmission) requested_[number] = {name, std::nullopt};
    step(core::job_event::HostRequested{number, name, "an operator", is_readmission});
    const auto asked = requested_.find(number);
    if (asked == requested_.end()) return;
    asked->second.second = until_of(name);
  }
  std::optional<Instant> until_of(const std::string& host) const {
    for (const gate::Exclusion& one : job_->hosts().excluded(now_)) {
      if (one.host == host) return now_ + one.left;
    }
    return std::nullopt;
  }

  // The record is what is in force, or the proposal that was on its way.
  void lose_coordinator() {
    if (open_ && dice_.chance(0.5)) in_force_ = open_->content.bytes;
    if (in_force_.empty()) return;
    note("the coordinator is lost");
    ++report_.counts["takeovers"];
    open_.reset();
    requested_.clear();
    const auto record = succession::decode_record(in_force_);
    if (!record.ok()) return broken("the record cannot be read");
    auto next = make_job();
    const core::RendezvousSuccession succession{
        .term = ++term_, .successor = {}, .lost_incumbent = {}};
    const Status fault = next->succeed(record->state, succession, now_);
    if (!fault.ok()) return broken(std::string(fault.message()));
    job_ = std::move(next);
    job_->gate().restored(job_->rendezvous(), core::RecordKeeper::kSuccession);
    for (auto& [id, agent] : agents_) {
      if (!agent.is_alive) continue;
      agent.pending.clear();
      rdzv::Resume resume{agent.info, settings_, rdzv::NodePhase::kJoined, agent.last, {}};
      if (agent.is_working) {
        resume.phase = rdzv::NodePhase::kWorking;
        resume.failure = agent.failure;
      }
      agent.pending.push_back(std::move(resume));
    }
    check();
  }

  void pass(Duration time) {
    const Instant until = now_ + time;
    while (is_good()) {
      const Instant next = job_->next_deadline().value_or(until);
      if (next > until) break;
      tick(next);
      if (next == until) break;
    }
    if (is_good()) tick(until);
  }
  // All agents are heard at that time.
  void tick(Instant at) {
    now_ = std::max(now_ + Duration(1), at);
    for (auto& [id, agent] : agents_) {
      if (agent.is_alive && job_->rendezvous().has_node(id) && !resumes(agent)) {
        step(rdzv::Heartbeat{id});
      }
      // What it has sent arrives before it is taken for lost.
      while (is_good() && agent.is_alive && resumes(agent)) deliver(&agent);
    }
    step(rdzv::Tick{});
    for (const gate::Exclusion& one : job_->hosts().excluded(now_)) {
      if (one.left == Duration::zero()) broken(one.host + " is excluded for longer than its time");
    }
  }
  static bool resumes(const Agent& agent) {
    return !agent.pending.empty() && std::holds_alternative<rdzv::Resume>(agent.pending.front());
  }

  void deliver_some() {
    for (int i = dice_.between(1, 8); i > 0 && is_good(); --i) {
      if (open_ && dice_.chance(0.4)) put_in_force();
      std::vector<Agent*> senders;
      for (auto& [id, agent] : agents_) {
        if (agent.is_alive && !agent.pending.empty()) senders.push_back(&agent);
      }
      if (senders.empty()) return;
      deliver(senders[static_cast<std::size_t>(
          dice_.between(0, static_cast<int>(senders.size()) - 1))]);
    }
  }
  void deliver(Agent* agent) {
    const core::RendezvousEvent event = std::move(agent->pending.front());
    agent->pending.pop_front();
    step(event);
  }

  void put_in_force() {
    if (!open_) return;
    const core::Proposal proposal = *std::exchange(open_, std::nullopt);
    in_force_ = proposal.content.bytes;
    std::vector<core::JobAction> actions;
    job_->in_force(proposal.number, now_, &actions);
    carry_out(actions);
    propose();
  }
  void propose() {
    if (auto proposal = job_->take_proposal()) open_ = std::move(*proposal);
  }

  // ---- The coordinator.

  void step(const core::JobEvent& event) {
    if (!is_good()) return;
    now_ += Duration(1);
    const std::uint64_t before = job_->rendezvous().record().round;
    const auto* const stated = std::get_if<core::RendezvousEvent>(&event);
    const bool is_beat = stated != nullptr && std::holds_alternative<rdzv::Heartbeat>(*stated);
    std::vector<core::NodeStatus> nodes;
    if (!is_beat) nodes = job_->rendezvous().nodes(now_);
    std::vector<core::JobAction> actions;
    job_->step(event, now_, &actions);
    if (job_->rendezvous().record().round > before) check_round();
    check_refusals(nodes, event, actions);
    check();
    carry_out(actions);
    propose();
    if (job_->is_over()) check_end();
  }

  // The nodes that a step refuses are not needed. What is kept in a record is sent later: then
  // those that waited and are gone.
  void check_refusals(const std::vector<core::NodeStatus>& before, const core::JobEvent& event,
                      const std::vector<core::JobAction>& actions) {
    std::vector<NodeId> refused;
    for (const core::JobAction& action : actions) {
      const auto* const one = std::get_if<core::RendezvousAction>(&action);
      const bool is_sent = one != nullptr && std::holds_alternative<rdzv::Refused>(*one);
      if (is_sent && !is_kept_) refused.push_back(core::addressee(*one));
    }
    const auto* const stated = std::get_if<core::RendezvousEvent>(&event);
    const bool is_tick = stated != nullptr && std::holds_alternative<rdzv::Tick>(*stated);
    for (const core::NodeStatus& one : before) {
      const bool has_waited = one.phase == rdzv::NodePhase::kJoined;
      if (is_kept_ && !is_tick && has_waited) refused.push_back(one.id);
    }
    for (const NodeId& id : refused) {
      const Agent* const agent = find_agent(id);
      if (agent == nullptr || job_->rendezvous().has_node(id) || !is_excluded(id)) continue;
      if (!job_->is_over() && eligible() < settings_.min_nodes) {
        broken(agent->info.name + " is refused, although the job has too few without it: " +
               job_->rendezvous().describe(now_));
      }
    }
  }

  bool is_excluded(const NodeId& id) const {
    const auto agent = agents_.find(id);
    return agent != agents_.end() && job_->hosts().is_excluded(agent->second.info.host);
  }
  int eligible(std::optional<rdzv::NodePhase> phase = {}) const {
    int count = 0;
    for (const core::NodeStatus& node : job_->rendezvous().nodes(now_)) {
      if (phase && node.phase != *phase) continue;
      if (!is_excluded(node.id)) ++count;
    }
    return count;
  }

  // No excluded host in a round that has others, and never less than min_nodes.
  void check_round() {
    const core::RendezvousMachine& machine = job_->rendezvous();
    ++report_.counts["rounds"];
    const auto excluded =
        std::count_if(machine.members().begin(), machine.members().end(),
                      [&](const core::RoundMember& one) { return is_excluded(one.id); });
    note("round " + std::to_string(machine.record().round) + " of " +
         std::to_string(machine.record().nodes) + ", excluded " + std::to_string(excluded));
    if (machine.record().nodes < settings_.min_nodes) broken("a round has less than min_nodes");
    if (excluded == 0) return;
    ++report_.counts["rounds with a last spare"];
    if (machine.record().nodes > settings_.min_nodes) broken("more excluded nodes than needed");
    if (eligible(rdzv::NodePhase::kJoined) > 0)
      broken(
          "an excluded host is in a round, and "
          "another node waits");
  }

  void check() {
    for (const auto& [host, until] : promised_) {
      if (now_ < until && !job_->hosts().is_excluded(host)) broken(host + " was forgotten");
    }
  }

  void check_end() {
    const JobResult& result = *job_->rendezvous().result();
    note("ends: " + result.message);
    ++report_.counts["ends"];
    if (result.cause != JobCause::kTooFewNodes && result.cause != JobCause::kNodeLost) {
      broken("the job ended: " + result.message);
    }
    const auto alive = std::count_if(agents_.begin(), agents_.end(), [&](const auto& one) {
      return one.second.is_alive && one.second.pending.empty() &&
             job_->rendezvous().has_node(one.first);
    });
    if (alive >= settings_.min_nodes) broken("it ended with enough nodes: " + result.message);
  }

  void carry_out(const std::vector<core::JobAction>& actions) {
    for (const core::JobAction& action : actions) {
      if (const auto* one = std::get_if<core::RendezvousAction>(&action)) {
        std::visit([this](const auto& message) { receive(message); }, *one);
      } else if (const auto* inform = std::get_if<core::gate_action::Inform>(&action)) {
        informed(*inform);
      } else if (const auto* news = std::get_if<gate::HostAction>(&action)) {
        ++report_.counts[std::holds_alternative<gate::Excluded>(*news) ? "excluded" : "readmitted"];
        note(gate::describe(*news));
      } else if (const auto* order = std::get_if<core::drain_action::Send>(&action)) {
        broken("ranks without steps are asked for one");
        (void)order;
      }
    }
  }

  void informed(const core::gate_action::Inform& inform) {
    const auto asked = requested_.find(inform.observer);
    if (asked == requested_.end()) return;
    auto& [host, until] = asked->second;
    if (inform.is_done && !until) until = until_of(host);  // at once
    if (inform.is_done && until) promised_[host] = *until;
    requested_.erase(asked);
  }

  // ---- An agent.

  Agent* find_agent(const NodeId& id) {
    const auto found = agents_.find(id);
    return found == agents_.end() || !found->second.is_alive ? nullptr : &found->second;
  }
  void join_again(Agent* agent) {
    agent->is_working = false;
    agent->failure.reset();
    std::erase_if(agent->pending,
                  [](const auto& event) { return std::holds_alternative<rdzv::Failed>(event); });
    agent->pending.push_back(rdzv::Join{agent->info, settings_});
  }
  void receive(const rdzv::Round& round) {
    Agent* const agent = find_agent(round.to);
    if (agent == nullptr) return;
    agent->last = core::HeldRound{*round.record, round.own.group_rank, round.cause};
    agent->info.highest_round = round.record->round;
    agent->is_working = true;
  }
  void receive(const rdzv::Restart& restart) {
    Agent* const agent = find_agent(restart.to);
    if (agent == nullptr || restart.round < agent->info.highest_round) return;
    if (!agent->is_working && restart.round == agent->info.highest_round) return;
    agent->info.highest_round = restart.round;
    agent->pending.push_back(rdzv::Gone{agent->info.id, restart.round});
    join_again(agent);
  }
  void receive(const rdzv::Evicted& evicted) {
    Agent* const agent = find_agent(evicted.to);
    if (agent == nullptr) return;
    agent->info.highest_round = std::max(agent->info.highest_round, evicted.round);
    agent->pending.clear();
    join_again(agent);
  }
  void receive(const rdzv::Refused& refused) {
    Agent* const agent = find_agent(refused.to);
    if (agent == nullptr) return;
    note(agent->info.name + " is refused");
    ++report_.counts["refused"];
    agent->is_alive = agent->is_working = false;
    agent->pending.clear();
    if (!refused.is_excluded) broken(std::string(refused.error.message()));
  }
  void receive(const rdzv::TimedOut& timed_out) {
    if (Agent* const agent = find_agent(timed_out.to)) agent->is_alive = false;
  }
  template <typename Other>
  void receive(const Other&) {}

  // ---- After everything has arrived, the job runs if it has enough nodes, and without excluded
  // hosts if it can.

  bool is_settled() const {
    const core::RendezvousMachine& machine = job_->rendezvous();
    const bool runs = machine.phase() == RendezvousPhase::kRunning;
    int alive = 0;
    for (const auto& [id, agent] : agents_) alive += agent.is_alive ? 1 : 0;
    const auto& members = machine.members();
    const bool has_excluded =
        std::any_of(members.begin(), members.end(),
                    [&](const core::RoundMember& one) { return is_excluded(one.id); });
    return runs ? !has_excluded : alive < settings_.min_nodes;
  }

  void settle() {
    int calm = 0;
    for (int i = 0; i < 400 && is_good(); ++i) {
      put_in_force();
      for (auto& [id, agent] : agents_) {
        while (is_good() && agent.is_alive && !agent.pending.empty()) deliver(&agent);
      }
      if (is_good()) pass(1s);
      if (is_good() && is_settled() && ++calm == 15) break;
    }
    if (!is_good()) return;
    int alive = 0;
    int good = 0;
    for (const auto& [id, agent] : agents_) {
      if (!agent.is_alive) continue;
      ++alive;
      if (!job_->hosts().is_excluded(agent.info.host)) ++good;
    }
    const core::RendezvousMachine& machine = job_->rendezvous();
    const bool runs = machine.phase() == RendezvousPhase::kRunning;
    if (runs != (alive >= settings_.min_nodes)) {
      broken(std::to_string(alive) + " nodes are there: " + machine.describe(now_));
    }
    if (!runs) return;
    ++report_.counts["running at the end"];
    int excluded = 0;
    for (const core::RoundMember& one : machine.members()) excluded += is_excluded(one.id) ? 1 : 0;
    if (excluded > 0 && good >= settings_.min_nodes) {
      broken("an excluded host is still in the round: " + machine.describe(now_));
    }
  }

  void note(const std::string& what) {
    if (!is_traced_) return;
    report_.trace.push_back(core::duration_text(now_ - Instant{1h}) + " " + what);
  }

  Dice dice_;
  const bool is_traced_;
  SimReport report_;
  JobSettings settings_;
  Instant now_{1h};
  std::unique_ptr<core::Job> job_;
  std::map<NodeId, Agent> agents_;
  std::uint64_t started_ = 0;
  std::uint64_t term_ = 1;
  bool is_kept_ = true;  // the job has a record
  std::optional<core::Proposal> open_;
  std::string in_force_;
  std::uint64_t requests_ = 0;
  std::map<std::uint64_t, std::pair<std::string, std::optional<Instant>>> requested_;
  std::map<std::string, Instant> promised_;  // excluded until: an operator was told so
};

SimReport simulate_gate(const std::string& scene, std::uint64_t seed, bool is_traced) {
  return GateWorld(scene, seed, is_traced).play();
}

constexpr Simulation kGate = {"GateSim", simulate_gate};

TEST(GateSim, AnExcludedHostIsOnlyUsedWhereTheJobHasTooFewNodes) {
  const Totals total = sweep(kGate, "faults", 5000);
  if (!total.can_be_judged()) return;
  EXPECT_GT(total["rounds"], 3 * total.seeds);
  EXPECT_GT(total["excluded"], total.seeds);
  EXPECT_GT(total["readmitted"], total.seeds / 4);
  EXPECT_GT(total["refused"], total.seeds / 4);
  EXPECT_GT(total["rounds with a last spare"], total.seeds / 4);
  EXPECT_GT(total["takeovers"], total.seeds / 2);
  EXPECT_GT(total["running at the end"], total.seeds / 4);
}
TEST(GateSim, OneSeedIsOneRun) { expect_same_run(kGate, "faults"); }
TEST(GateSim, Replay) { replay(kGate); }

}  // namespace
}  // namespace elastic::test
