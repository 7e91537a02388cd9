#pragma once

// A small model of an agent: joins, runs workers, reports, follows actions, loses and resumes its
// session, is paused, crashes or leaves. It knows the protocol and none of the machine's rules.

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/rendezvous/rendezvous_events.h"
#include "sim/kernel/net.h"
#include "sim/kernel/world.h"
#include "sim/sim_ranks.h"
#include "sim/sim_session.h"

namespace elastic::test {

struct SimAgentOptions {
  core::NodeInfo info;
  JobSettings settings;
  bool has_steps = false;  // its workers report steps, and can continue in another round
};

// How the workers of one round behave on one node.
struct SimWork {
  Duration length{};   // until they end by themselves
  bool fails = false;  // and how
  Duration stop{};     // from SIGTERM until no process is left
};

class SimAgent;

// The environment of agents, and of their sessions.
class SimAgentWorld : public SimWorld {
 public:
  using SimWorld::SimWorld;

  // A new connection to the address, or to the endpoint if it is empty. Null: no listener, or the
  // path is blocked.
  virtual std::shared_ptr<SimLink> connect(SimAgent* agent, const std::string& address) = 0;
  virtual SimWork draw_work() = 0;
  // Of workers that report steps: how many the round has, and the longest time of one.
  virtual std::pair<std::int64_t, Duration> steps_of(std::uint64_t round) const;
  // The step that every rank of the agent's round has made.
  std::int64_t slowest_step(const SimAgent& agent) const;
  // No worker of its round is left on the node.
  virtual void workers_gone(const SimAgent& agent) = 0;
  // It leaves at the step, where every rank of its round waits.
  void left_at(const SimAgent& agent, std::int64_t step);
  // Its round is over, since nodes join. Ranks that were to stop at a step wait there.
  void grows(const SimAgent& agent, const std::string& why);
  // A worker ended without success: the collectives of its peers break.
  virtual void collective_broke(const SimAgent&) {}

  // ---- The succession of the coordinator, if agents take part in it.

  virtual bool has_succession() const { return false; }
  virtual std::optional<session::SuccessionHello> hello(const SimAgent&) { return {}; }
  virtual void informed(const SimAgent&, const succession::Incumbent&) {}
  virtual void lost(const SimAgent&) {}
  virtual void returned(const SimAgent&) {}
  virtual void displaced(const SimAgent&, const succession::Incumbent& /*by*/) {}

  // ---- The same where a store keeps the record.

  // Where the record says that the coordinator is, "": nowhere yet; nullopt: there is no store.
  virtual std::optional<std::string> recorded(const SimAgent&) { return {}; }
  // Nothing listens at the address, which can be reached.
  virtual bool refuses(const SimAgent&, const std::string& /*address*/) { return false; }
  // No coordinator of the job is at the address. `was_closed`: it says so itself, or its connection
  // had ended before.
  virtual void absent(const SimAgent&, const std::string& /*address*/, bool /*was_closed*/) {}
  virtual void round_started(const SimAgent&, int /*rank*/) {}
  // Calls `done` when no coordinator runs in the agent's process, or that one goes on without it.
  virtual void end_coordinator(const SimAgent&, std::function<void()> done) { done(); }
  virtual void ended(const SimAgent&) {}

  bool has_converged() const;  // no agent lives

 protected:
  SimAgent* add_agent(const SimAgentOptions& options);
  // I1 for processes: workers of this agent have ended, and the next round had begun at that time.
  void check_overlap(const SimAgent& agent, Instant next_round, Duration allowed);

  std::vector<std::unique_ptr<SimAgent>> agents_;

 private:
  void check_waiting(const SimAgent& agent, std::int64_t step, const std::string& what);

  const std::uint64_t lot_ = Dice(dice_).next();
  std::set<std::uint64_t> grown_;  // rounds that have ended at a step
};

class SimAgent {
 public:
  SimAgent(SimAgentWorld* world, SimAgentOptions options)
      : world_(world), options_(std::move(options)) {}

  void start();
  void crash(bool is_host_dead);
  void pause();
  void unpause();
  void leave();
  void fail_workers();
  // It gives the notice that it is to leave at an agreed step, or that the whole job is to stop.
  void depart(Duration limit);
  void stop_job(Duration limit);
  void finish_workers();
  // The coordinator or the store was unreachable for too long.
  void lose_coordinator();
  // A peer's workers have ended: these fail too, or hang.
  void break_collective(const SimAgent& peer);
  // The coordinator is at this address. `is_here`: in the process of this agent.
  void follow(const std::string& address, bool is_here);
  // The job of this agent has dissolved: it joins the one whose coordinator is at this address.
  void displace(const std::string& address);
  std::shared_ptr<SimLink> link() const;
  const std::shared_ptr<SimPath>& path() const { return path_; }

  const core::NodeInfo& info() const { return options_.info; }
  const std::string& name() const { return options_.info.name; }
  // It has left, and not because nobody acknowledged that in time.
  bool was_acknowledged() const { return session_ != nullptr && session_->was_acknowledged(); }
  bool is_alive() const { return is_alive_; }
  bool has_workers() const { return has_workers_; }
  Duration time_paused() const { return pause_.total(); }
  std::uint64_t round() const { return held_round_ ? held_round_->record.round : 0; }
  int nodes() const { return held_round_ ? held_round_->record.nodes : 0; }
  Instant round_heard_at() const { return round_heard_at_; }
  std::optional<JobResult> result() const { return result_; }
  int evictions() const { return evictions_; }
  const SimRanks& ranks() const { return ranks_; }
  bool is_leaving() const { return is_leaving_; }
  // Its workers are of the same round, or were when they finished.
  bool shares_round(const SimAgent& other) const;
  const std::string& fate() const { return fate_; }
  const std::string& fault() const {
    return session_ != nullptr && fault_.empty() ? session_->fault() : fault_;
  }

  // ---- For its session.

  void receive(const core::RendezvousAction& action);
  void obey(const drain::Order& order);
  // Runs `what` later unless the agent died meanwhile; while it is paused it waits.
  void later(Duration wait, std::function<void()> what);
  void now(std::function<void()> what);
  // ---- For its ranks.

  void report(const core::NodeReport& report);
  void ranks_exited();
  void leave_at(std::int64_t step);

  void log_progress(const std::string& what) { world_->trace(name() + "  " + what); }

 private:
  void send(const core::NodeStatement& statement) { session_->send(statement); }
  void obey(const rdzv::Round& action);
  void obey(const rdzv::Restart& action);
  void obey(const rdzv::Evicted& action);
  void obey(const rdzv::Closed& action);
  void obey(const rdzv::Refused& action);
  void obey(const rdzv::TimedOut& action);
  template <typename Other>
  void obey(const Other&) {}
  void join();
  void stop_workers(std::function<void()> then);
  void workers_ended(bool failed, std::uint64_t era);
  void no_workers_left();
  void give_notice(const drain::Notice& notice);
  void drain_and_finish(const std::string& fate);
  void finish(const std::string& fate);

  SimAgentWorld* world_;
  SimAgentOptions options_;
  std::shared_ptr<SimPath> path_ = std::make_shared<SimPath>();
  std::unique_ptr<SimSession> session_;
  int evictions_ = 0;
  bool is_alive_ = false;
  bool is_leaving_ = false;
  bool is_host_dead_ = false;
  bool is_departing_ = false;  // gave the notice
  Pause pause_;

  rdzv::NodePhase phase_ = rdzv::NodePhase::kJoined;
  std::optional<core::HeldRound> held_round_;
  std::optional<FailureReport> failure_;
  Instant round_heard_at_;
  bool has_workers_ = false;
  bool is_stopping_ = false;
  std::function<void()> when_stopped_;
  std::uint64_t work_era_ = 0;  // counts groups of workers
  SimWork work_;
  SimRanks ranks_{this, world_};
  std::optional<JobResult> result_;
  std::string fate_;   // how it ended
  std::string fault_;  // a promise broken towards it
};

}  // namespace elastic::test
