#pragma once

// Events from a loop thread to the one caller that waits for them.

#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include "elastic/status.h"
#include "elastic/time.h"
#include "os/loop/notifier.h"

namespace elastic::host {

template <typename Event>
class EventQueue {
 public:
  explicit EventQueue(os::Notifier notifier) : notifier_(std::move(notifier)) {}

  // Any thread.
  void push(Event event) {
    {
      const std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
    }
    notifier_.notify();
  }

  // Any thread. A call of pop() checks its `interrupted` now.
  void wake() { notifier_.notify(); }

  // One thread at a time. nullopt: the deadline passed, or `interrupted` returned true.
  std::optional<Event> pop(Instant deadline, const std::function<bool()>& interrupted) {
    for (bool was_woken = false;; was_woken = true) {
      {
        const std::lock_guard lock(mutex_);
        if (!events_.empty()) {
          std::optional<Event> event(std::move(events_.front()));
          events_.pop_front();
          return event;
        }
      }
      if (was_woken && interrupted && interrupted()) return std::nullopt;
      const os::WaitLimits limits{.deadline = deadline, .interrupted = &interrupted};
      if (!notifier_.wait(limits).ok()) return std::nullopt;
    }
  }

 private:
  os::Notifier notifier_;
  std::mutex mutex_;
  std::deque<Event> events_;  // guarded by mutex_
};

}  // namespace elastic::host
