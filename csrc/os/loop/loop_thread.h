#pragma once

// A thread that runs an event loop, for objects that are used from other threads.

#include <functional>
#include <memory>
#include <thread>

#include "elastic/status.h"
#include "os/loop/event_loop.h"

namespace elastic::os {

class LoopThread {
 public:
  // Starts a quiet thread (os/loop/quiet_thread.h) with this name. No thread is started if the
  // owner of `clock` turns the loop; then call() turns it, too.
  static Result<std::unique_ptr<LoopThread>> start(const char* name, Clock* clock = real_clock());
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;
  ~LoopThread();  // stops the loop and joins

  EventLoop& loop() { return *loop_; }
  // Runs `work` on the loop thread and waits for it. Must not be called on the loop thread.
  void call(const std::function<void()>& work);

 private:
  explicit LoopThread(std::unique_ptr<EventLoop> loop) : loop_(std::move(loop)) {}
  std::unique_ptr<EventLoop> loop_;
  std::thread thread_;
};

}  // namespace elastic::os
