#pragma once

// A coordinator that makes the decisions of a simulated job. It can crash and restart without
// state, or with a state that it stored some time before, and it can stall.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sim/record_checker.h"
#include "sim/rendezvous_checker.h"
#include "sim/sim_service.h"

namespace elastic::test {

class SimCoordinator : public SimService {
 public:
  SimCoordinator(SimWorld* world, JobSettings settings)
      : SimService(world), checker_(std::move(settings)) {}

  void start();
  // Ends in order: connected nodes receive the reason first.
  void leave(const std::string& reason);
  // It has a file for its state, whose writes take this long. Drawn again at each start, up to
  // twice it. The gate of the job holds what must be in the file before it is sent.
  void store_state_after(Duration delay) { store_delay_ = delay; }
  // The timings differ between nodes: those of the job are sent to each. A run in which all nodes
  // have the same keeps the messages, and so the order of events, that its regression seed needs.
  void enable_timings() { has_timings_ = true; }
  bool has_stored_state() const { return file_.has_value(); }
  void crash(bool is_host_dead);
  void stall();
  void unstall();
  bool is_up() const { return is_up_; }
  const core::RendezvousMachine* machine() const { return job_ ? &rendezvous() : nullptr; }

  // Null: no listener.
  std::shared_ptr<SimLink> connect(const std::shared_ptr<SimPath>& path) {
    return is_up_ && path->is_open() ? accept(path) : nullptr;
  }
  std::string describe() const {
    if (job_) return rendezvous().describe(clock_->now()) + "; " + job_->describe_drain();
    return is_up_ ? "no node has joined" : "the coordinator is down";
  }
  std::uint32_t generation() const { return newest_generation_; }
  // The promise that it broke; empty if none.
  const std::string& fault() const { return fault_; }
  const RendezvousChecker& checker() const { return checker_; }
  // When each round began, in order.
  const std::vector<Instant>& rounds_began() const { return rounds_began_; }
  int lives() const { return lives_; }  // how often it was started
  Duration time_stalled() const { return pause_.total(); }

 private:
  void greet(const std::shared_ptr<SimLink>& link, const SimLink::Hello& hello) override;
  void serve(const NodeId& id, const core::RendezvousEvent& event) override;
  void session_lost(const NodeId& id, const SimLink& link) override;
  Duration start_hold() const override;
  void step(const core::JobEvent& event) override;
  void job_began() override;
  bool send(const core::RendezvousAction& action) override;
  void acknowledge(const NodeId& id, Session* session, Instant sent) override;
  bool is_stored() const { return store_delay_ > Duration::zero(); }
  bool is_over() const { return rendezvous().phase() == RendezvousPhase::kClosed; }
  void send_timings(const NodeId& id);
  void in_force(std::uint64_t number);
  void follow(bool was_over, const std::vector<core::JobAction>& actions);

  // What the file has, and what of it concerns what nodes were sent.
  struct Stored {
    JobSettings settings;
    std::string bytes;
    std::uint64_t round = 0;
    bool is_over = false;
    std::set<NodeId> nodes;
  };
  Stored state() const;
  void propose();
  void store_later();
  // Calls `written` when the present state, or a later one, is in the file.
  void write(std::function<void()> written);
  void run(const std::function<void()>& what);
  // What a node is sent although it is not in the file; "": nothing.
  std::string fault_of(const core::RendezvousAction& action) const;
  void note(const std::string& what) { world_->trace("-  " + what); }

  RendezvousChecker checker_;
  bool is_up_ = false;
  Instant started_at_;
  int lives_ = 0;
  std::vector<Instant> rounds_began_;
  std::uint32_t newest_generation_ = 1;  // that any of its machines was in
  bool has_timings_ = false;
  Duration store_delay_{};  // zero: no state is stored
  Duration delay_now_{};
  std::optional<Stored> file_;
  std::optional<Stored> writing_;  // the last state that is on its way to the file
  std::uint64_t writes_ = 0;
  bool is_storing_ = false;
  std::string fault_;
  std::set<NodeId> left_;  // a running job; their leaves must be in the file
  RecordChecker records_;
};

// The process that serves one endpoint: the coordinators of its jobs start, stall and end together.
class SimEndpoint {
 public:
  void add(SimCoordinator* coordinator) { coordinators_.push_back(coordinator); }
  bool is_up() const { return coordinators_.front()->is_up(); }
  bool is_shared() const { return coordinators_.size() > 1; }
  // Calls a method of each.
  template <typename... Parameters, typename... Arguments>
  void each(void (SimCoordinator::*method)(Parameters...), const Arguments&... arguments) {
    for (SimCoordinator* one : coordinators_) (one->*method)(arguments...);
  }

 private:
  std::vector<SimCoordinator*> coordinators_;
};

}  // namespace elastic::test
