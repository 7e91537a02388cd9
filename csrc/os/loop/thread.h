#pragma once

// Threads of a library that is embedded in another program, and the table of descriptors that they
// share.

#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "elastic/status.h"
#include "elastic/time.h"
#include "os/loop/clock.h"
#include "os/loop/registration.h"

namespace elastic::os {

// Starts a thread that blocks every signal, so that signals reach the embedding program's threads,
// and writing to a closed pipe fails with EPIPE instead of SIGPIPE. `name` is shown in /proc (at
// most 15 characters).
Result<std::thread> start_quiet_thread(const char* name, std::function<void()> work);

// A thread whose system calls may block without limit, and which its owner need not wait for.
class DetachableThread {
 public:
  // As start_quiet_thread(). `work` shares ownership of everything that it uses: it may outlive the
  // object.
  static Result<DetachableThread> start(const char* name, std::function<void()> work);
  DetachableThread(DetachableThread&&) = default;
  DetachableThread& operator=(DetachableThread&&) = delete;
  ~DetachableThread();  // detaches a thread that was not joined

  // Joins if `work` returns within `limit`. Otherwise false: the thread is left to itself.
  bool join_within(Duration limit);

 private:
  DetachableThread(std::thread thread, std::future<void> returned)
      : thread_(std::move(thread)), returned_(std::move(returned)) {}

  std::thread thread_;
  std::future<void> returned_;
};

// Makes room for `count` descriptors (at most as many as the process may have open) in the kernel's
// table, in a thread of its own; later calls with no larger `count` do nothing. 8 bytes of kernel
// memory each. Any thread.
//
// Linux enlarges the table when a new descriptor does not fit, to the next power of two, and if
// several threads share it, waits for an RCU grace period first (expand_fdtable in fs/file.c). The
// thread that accepts a connection then stands still for 8 to 20 ms, at 256, 512, 1024, …
// descriptors. Threads whose descriptors fit do not wait for the one that enlarges it.
void enlarge_descriptor_table(std::size_t count);

// A thread that runs an event loop, for objects that are used from other threads.
class LoopThread {
 public:
  // As start_quiet_thread(). No thread is started if the owner of `clock` turns the loop; then
  // call() turns it, too.
  static Result<std::unique_ptr<LoopThread>> start(const char* name, Clock* clock = real_clock());
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;
  ~LoopThread();  // stops the loop and joins

  EventLoop& loop() { return *loop_; }
  // Runs `work` on the loop thread and waits for it. Must not be called on the loop thread.
  void call(const std::function<void()>& work);
  // Runs it there without waiting; from any thread.
  void post(std::function<void()> work);

 private:
  explicit LoopThread(std::unique_ptr<EventLoop> loop);
  std::unique_ptr<EventLoop> loop_;
  std::thread thread_;
};

}  // namespace elastic::os
