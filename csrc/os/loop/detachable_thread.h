#pragma once

// A thread whose system calls may block without limit, and which its owner need not wait for.

#include <functional>
#include <future>
#include <string>
#include <thread>

#include "elastic/status.h"
#include "elastic/time.h"

namespace elastic::os {

class DetachableThread {
 public:
  // A quiet thread (os/loop/quiet_thread.h) of this name. `work` shares ownership of everything
  // that it uses: it may outlive the object.
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

}  // namespace elastic::os
