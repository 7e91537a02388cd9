#pragma once

// A small model of the coordinator: sessions in, a RendezvousMachine behind them, messages out. It
// can crash and restart without state, or with a state that it stored some time before, and it can
// stall.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/sim_authority.h"

namespace elastic::test {

class SimCoordinator : public SimAuthority {
 public:
  SimCoordinator(SimClock* clock, Dice* dice, JobSettings settings, Log log_progress)
      : SimAuthority(clock, std::move(settings), std::move(log_progress)), dice_(dice) {}

  void start();
  // Ends in order: connected nodes receive the reason first.
  void leave(const std::string& reason);
  // The state is stored this long after it has changed. Drawn again at each start, up to twice it.
  void store_state_after(Duration delay) { store_delay_ = delay; }
  // The timings differ between nodes: those of the job are sent to each. A run in which all nodes
  // have the same keeps the messages, and so the order of events, that its regression seed needs.
  void enable_timings() { has_timings_ = true; }
  bool has_stored_state() const { return !stored_.empty(); }
  void crash(bool is_host_dead);
  void stall();
  void unstall();
  bool is_up() const { return is_up_; }
  const core::RendezvousMachine* machine() const { return machine_ ? &*machine_ : nullptr; }

  std::shared_ptr<SimLink> connect(SimAgent* agent) override;
  std::string describe() const override {
    if (machine_) return machine_->describe(clock_->now());
    return is_up_ ? "no node has joined" : "the coordinator is down";
  }
  std::uint32_t generation() const override { return newest_generation_; }
  std::string fault() const override { return fault_; }

 private:
  struct Session {
    std::shared_ptr<SimLink> link;
    bool has_joined = false;       // its heartbeats are a node's signs of life
    std::uint32_t timings_of = 0;  // the generation whose timings were sent
  };
  using Sessions = std::map<NodeId, Session>;

  void receive(const std::shared_ptr<SimLink>& link, const SimLink::Message& message);
  Sessions::iterator session_of(const std::shared_ptr<SimLink>& link);
  void closed(const std::shared_ptr<SimLink>& link);
  void serve(const NodeId& id, const core::RendezvousEvent& event);
  void send_timings(const NodeId& id);
  void step(const core::RendezvousEvent& event);
  void send(const core::RendezvousAction& action);
  void watch_deadline();

  Dice* dice_;
  bool is_up_ = false;
  Instant started_at_;
  std::optional<core::RendezvousMachine>
      machine_;  // from the first join or resume on, with its timings
  std::vector<std::shared_ptr<SimLink>> links_;
  Sessions sessions_;
  bool is_stalled_ = false;
  Instant stalled_at_;
  std::deque<std::function<void()>> unread_;
  std::uint64_t era_ = 0;    // counts lives; older callbacks are void
  std::uint64_t alarm_ = 0;  // counts deadlines; only the last one set counts
  Instant alarm_at_ = Instant::max();
  void store_later();

  std::uint32_t newest_generation_ = 1;  // that any of its machines was in
  bool has_timings_ = false;
  Duration store_delay_{};  // zero: no state is stored
  Duration delay_now_{};
  std::string stored_;
  JobSettings stored_settings_;
  bool is_storing_ = false;
  std::string fault_;
};

// The process that serves one endpoint: the coordinators of its jobs start, stall and end together.
class SimEndpoint {
 public:
  void add(SimCoordinator* coordinator) { coordinators_.push_back(coordinator); }
  bool is_up() const { return coordinators_.front()->is_up(); }
  bool is_shared() const { return coordinators_.size() > 1; }
  void start() {
    for (SimCoordinator* one : coordinators_) one->start();
  }
  void crash(bool is_host_dead) {
    for (SimCoordinator* one : coordinators_) one->crash(is_host_dead);
  }
  void leave(const std::string& reason) {
    for (SimCoordinator* one : coordinators_) one->leave(reason);
  }
  void stall() {
    for (SimCoordinator* one : coordinators_) one->stall();
  }
  void unstall() {
    for (SimCoordinator* one : coordinators_) one->unstall();
  }

 private:
  std::vector<SimCoordinator*> coordinators_;
};

}  // namespace elastic::test
