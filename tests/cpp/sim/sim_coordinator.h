#pragma once

// A small model of the coordinator: sessions in, a Rendezvous behind them, messages out. It can
// crash and come back with nothing, or with a state that it stored some time before, and it can
// stand still.

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
  // The state is stored this long after it has changed. Drawn again at each start, up to twice it.
  void store_state_after(Duration delay) { store_delay_ = delay; }
  bool has_stored_state() const { return !stored_.empty(); }
  void crash(bool is_host_dead);
  void stall();
  void unstall();
  bool is_up() const { return machine_.has_value(); }
  const Rendezvous* machine() const { return machine_ ? &*machine_ : nullptr; }

  std::shared_ptr<SimLink> connect(SimAgent* agent) override;
  std::string describe() const override {
    return machine_ ? machine_->describe(clock_->now()) : "the coordinator is down";
  }
  std::uint32_t generation() const override { return machine_ ? machine_->record().generation : 1; }
  std::string fault() const override { return fault_; }

 private:
  struct Session {
    std::shared_ptr<SimLink> link;
    bool has_joined = false;  // and its beats are a node's signs of life
  };
  using Sessions = std::map<NodeId, Session>;

  void receive(const std::shared_ptr<SimLink>& link, const SimLink::Message& message);
  Sessions::iterator session_of(const std::shared_ptr<SimLink>& link);
  void closed(const std::shared_ptr<SimLink>& link);
  void step(const RendezvousEvent& event);
  void send(const RendezvousAction& action);
  void watch_deadline();

  Dice* dice_;
  std::optional<Rendezvous> machine_;
  std::vector<std::shared_ptr<SimLink>> links_;
  Sessions sessions_;
  bool is_stalled_ = false;
  Instant stalled_at_;
  std::deque<std::function<void()>> unread_;
  std::uint64_t era_ = 0;    // counts lives; older callbacks are void
  std::uint64_t alarm_ = 0;  // counts deadlines; only the last one set counts
  Instant alarm_at_ = Instant::max();
  void store_later();

  Duration store_delay_{};  // zero: no state is stored
  Duration delay_now_{};
  std::string stored_;
  bool is_storing_ = false;
  std::string fault_;
};

}  // namespace elastic::test
