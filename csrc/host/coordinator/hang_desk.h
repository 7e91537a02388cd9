#pragma once

// Runs the judge of hangs on a loop: its timer, and the delivery of its answers.
//
// Loop thread only.

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "core/hang/hang_watch.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

class HangDesk {
 public:
  // Called in feed() or from the loop. An answer without a receiver is dropped by its owner.
  struct Sink {
    std::function<void(const hang::StacksWanted&)> ask;     // every member of the round
    std::function<void(const hang::Verdict&)> publish;      // every member of the round
    std::function<void(std::uint64_t, std::string)> reply;  // one observer
    std::function<void(std::string_view)> log;
    std::function<void(const JobResult&)> close;  // the job ends with this result
    std::function<void()> changed = {};           // the number of stragglers, or the hang
  };
  HangDesk(os::EventLoop* loop, Sink sink);
  HangDesk(const HangDesk&) = delete;
  HangDesk& operator=(const HangDesk&) = delete;

  void feed(const core::HangEvent& event);
  std::vector<hang::Straggler> stragglers() const { return watch_.stragglers(); }
  std::optional<hang::Hang> hang() const { return watch_.hang(); }
  std::optional<hang::Pace> pace() const { return watch_.pace(); }

 private:
  void execute(core::HangAnswer& answer);

  os::EventLoop* const loop_;
  const Sink sink_;
  core::HangWatch watch_;
  std::size_t stragglers_ = 0;
  std::optional<std::int32_t> suspect_;  // of the hang
  os::EventLoop::Timer timer_;
};

}  // namespace elastic::host
