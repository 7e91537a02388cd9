#pragma once

// A line for the log that describes a state: logged when the state has been left alone for a
// moment, so that the steps of one change are not logged as contradictions.
//
// Loop thread only.

#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "os/loop/registration.h"

namespace elastic::host {

class SettledLine {
 public:
  // From the first change until the line is logged, whatever follows.
  static constexpr Duration kDelay = std::chrono::milliseconds(500);

  // `loop` outlives the object.
  SettledLine(os::EventLoop* loop, std::function<void(const std::string&)> log)
      : log_(std::move(log)), timer_(loop, [this] { show(); }) {}

  // What is true now.
  void set(std::string text) {
    text_ = std::move(text);
    if (text_ != shown_ && !timer_.armed()) timer_.arm_after(kDelay);
  }

 private:
  void show() {
    if (text_ == shown_) return;
    shown_ = text_;
    log_(shown_);
  }

  const std::function<void(const std::string&)> log_;
  std::string text_;
  std::string shown_;
  os::Timer timer_;
};

}  // namespace elastic::host
