#pragma once

// A small model of an agent: joins, runs workers, reports, follows actions, loses and resumes its
// session, is paused, crashes or leaves. It knows the protocol and none of the machine's rules.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/rendezvous/rendezvous_events.h"
#include "sim/sim_net.h"
#include "sim/sim_session.h"

namespace elastic::test {

struct SimAgentOptions {
  core::NodeInfo info;
  JobSettings settings;
  Duration override_timeout{};
};

// How the workers of one round behave on one node.
struct SimWork {
  Duration length{};   // until they end by themselves
  bool fails = false;  // and how
  Duration stop{};     // from SIGTERM until no process is left
};

class SimAgent {
 public:
  // The environment of the agent.
  struct World {
    SimClock* clock;
    Dice* dice;
    // A new connection; null: no listener, or the path is blocked.
    std::function<std::shared_ptr<SimLink>(SimAgent*)> connect;
    // The same with the address of a coordinator; "": the endpoint. Used instead where it is set.
    std::function<std::shared_ptr<SimLink>(SimAgent*, const std::string&)> connect_to = {};
    std::function<SimSession::Succession(SimAgent*)> succession = {};
    std::function<SimWork(const SimAgent&)> work;
    std::function<void(const SimAgent&, const std::string&)> log_progress;
    // No worker of its round is left on the node.
    std::function<void(const SimAgent&)> workers_gone;
    // A worker ended without success: the collectives of its peers break.
    std::function<void(const SimAgent&)> collective_broke;
  };

  SimAgent(World* world, SimAgentOptions options);

  void start();
  void crash(bool is_host_dead);
  void pause();
  void unpause();
  void leave();
  void fail_workers();
  void finish_workers();
  // The coordinator or the store was unreachable for too long.
  void lose_coordinator();
  // The coordinator in its own process has lost its authority.
  void expire(const std::string& reason) { session_->expire(reason); }
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
  bool is_alive() const { return is_alive_; }
  bool is_paused() const { return is_paused_; }
  bool has_workers() const { return has_workers_; }
  Duration time_paused() const { return time_paused_; }
  std::uint64_t round() const { return held_round_ ? held_round_->record.round : 0; }
  Instant round_heard_at() const { return round_heard_at_; }
  std::optional<JobResult> result() const { return result_; }
  int evictions() const { return evictions_; }
  const std::string& fate() const { return fate_; }
  const std::string& fault() const {
    return session_ != nullptr && fault_.empty() ? session_->fault() : fault_;
  }

 private:
  void send(const core::NodeStatement& statement);
  void receive(const core::RendezvousAction& action);
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
  void drain_and_finish(const std::string& fate);
  void finish(const std::string& fate);
  // Runs `what` later unless the agent died meanwhile; while it is paused it waits.
  void later(Duration wait, std::function<void()> what);
  void now(std::function<void()> what);
  void log_progress(const std::string& what) { world_->log_progress(*this, what); }

  World* world_;
  SimAgentOptions options_;
  std::shared_ptr<SimPath> path_ = std::make_shared<SimPath>();
  std::unique_ptr<SimSession> session_;
  int evictions_ = 0;
  bool is_alive_ = false;
  bool is_paused_ = false;
  bool is_leaving_ = false;
  bool is_host_dead_ = false;
  Instant paused_at_;
  Duration time_paused_{};
  std::deque<std::function<void()>> while_paused_;

  rdzv::NodePhase phase_ = rdzv::NodePhase::kJoined;
  std::optional<core::HeldRound> held_round_;
  std::optional<FailureReport> failure_;
  Instant round_heard_at_;
  bool has_workers_ = false;
  bool is_stopping_ = false;
  std::function<void()> when_stopped_;
  std::uint64_t work_era_ = 0;  // counts groups of workers
  SimWork work_;
  std::optional<JobResult> result_;
  std::string fate_;   // how it ended
  std::string fault_;  // a promise broken towards it
};

}  // namespace elastic::test
