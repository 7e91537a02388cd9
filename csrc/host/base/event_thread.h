#pragma once

// An object on its own loop thread, and its events, for which one caller waits: what is behind
// WorkerGroup and Agent.

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "elastic/status.h"
#include "elastic/time.h"
#include "os/loop/loop_object.h"
#include "os/loop/registration.h"
#include "os/loop/wait.h"

namespace elastic::host {

// Events from a loop thread to the caller.
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

// Thread rule: any member from any thread, except that one thread at a time waits for events. In a
// forked child, which lacks the thread, no call has an effect.
template <typename Object, typename Event>
class EventThread {
 public:
  // `create` makes the object, on the thread: create(loop, sink) returns a Result with a pointer.
  template <typename Create>
  static Result<std::unique_ptr<EventThread>> start(const char* name, const Create& create) {
    Result<os::Notifier> notifier = os::Notifier::create();
    if (!notifier.ok()) return notifier.status();
    std::unique_ptr<EventThread> self(new EventThread(*std::move(notifier)));
    const auto sink = [raw = self.get()](Event event) { raw->events_.push(std::move(event)); };
    auto object = os::LoopObject<Object>::start(
        name, [&](os::EventLoop* loop) { return create(loop, sink); });
    if (!object.ok()) return object.status();
    self->object_ = *std::move(object);
    return self;
  }
  EventThread(const EventThread&) = delete;
  EventThread& operator=(const EventThread&) = delete;

  bool is_in_child() const { return object_->is_in_child(); }
  // Runs work(object) on the thread, and waits for it.
  template <typename Work>
  void call(const Work& work) {
    object_->call(work);
  }
  // The same without waiting.
  template <typename Work>
  void post(Work work) {
    object_->post(std::move(work));
  }
  // For what the object never changes again.
  const Object& object() const { return object_->object(); }

  // nullopt: the deadline passed, or `interrupted` returned true.
  std::optional<Event> next_event(Instant deadline, const std::function<bool()>& interrupted) {
    if (is_in_child()) return std::nullopt;
    return events_.pop(deadline, interrupted);
  }
  // A call of next_event() checks its `interrupted` now.
  void wake() {
    if (!is_in_child()) events_.wake();
  }

 private:
  explicit EventThread(os::Notifier notifier) : events_(std::move(notifier)) {}

  EventQueue<Event> events_;
  std::unique_ptr<os::LoopObject<Object>> object_;  // set once, by start()
};

}  // namespace elastic::host
