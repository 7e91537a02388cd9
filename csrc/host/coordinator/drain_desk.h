#pragma once

// Runs the machine of the agreed step on a loop: its timer, and the delivery of its actions.
//
// Loop thread only.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/drain/drain_machine.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

class DrainDesk {
 public:
  // Called in feed() or from the loop; may call feed().
  struct Sink {
    std::function<void(const NodeId&, const drain::Order&)> send;
    std::function<void(const std::string&)> announce;  // to every node, and the log
    std::function<void(const JobResult&)> close;       // the job
    std::function<void(const core::drain_action::Inform&)> inform;
    std::function<void()> hold_growth;
  };
  DrainDesk(os::EventLoop* loop, Sink sink);
  DrainDesk(const DrainDesk&) = delete;
  DrainDesk& operator=(const DrainDesk&) = delete;

  void feed(const core::DrainEvent& event);
  // The next generation of the job knows nothing of the notice.
  void reset();
  // Every rank has stopped: what they do now is no progress, and no hang.
  bool is_reached() const { return machine_.phase() == core::DrainPhase::kReached; }
  std::string describe() const { return machine_.describe(); }

 private:
  void execute(const core::DrainAction& action);

  os::EventLoop* const loop_;
  const Sink sink_;
  core::DrainMachine machine_;
  os::EventLoop::Timer timer_;
};

}  // namespace elastic::host
