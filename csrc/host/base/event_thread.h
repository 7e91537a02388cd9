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
#include "os/base/process.h"
#include "os/loop/event_loop.h"
#include "os/loop/thread.h"
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
    Result<std::unique_ptr<os::LoopThread>> thread = os::LoopThread::start(name);
    if (!thread.ok()) return thread.status();
    std::unique_ptr<EventThread> self(new EventThread(*std::move(notifier), *std::move(thread)));
    Status status;
    self->thread_->call([&] {
      auto object = create(&self->thread_->loop(), [raw = self.get()](Event event) {
        raw->events_.push(std::move(event));
      });
      if (object.ok()) {
        self->object_ = *std::move(object);
      } else {
        status = object.status();
      }
    });
    if (!status.ok()) return status;
    return self;
  }
  EventThread(const EventThread&) = delete;
  EventThread& operator=(const EventThread&) = delete;
  ~EventThread() {
    if (is_in_child()) {
      // This process cannot join the thread, and guardian and workers are the parent's.
      static_cast<void>(object_.release());
      static_cast<void>(thread_.release());
      return;
    }
    thread_->call([this] { object_.reset(); });
  }

  bool is_in_child() const { return fork_guard_.is_in_child(); }
  // Runs work(object) on the thread, and waits for it.
  template <typename Work>
  void call(const Work& work) {
    if (!is_in_child()) thread_->call([&] { work(*object_); });
  }
  // The same without waiting.
  template <typename Work>
  void post(Work work) {
    if (is_in_child()) return;
    thread_->loop().post([this, work = std::move(work)] { work(*object_); });
  }
  // For what the object never changes again.
  const Object& object() const { return *object_; }

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
  EventThread(os::Notifier notifier, std::unique_ptr<os::LoopThread> thread)
      : events_(std::move(notifier)), thread_(std::move(thread)) {}

  const os::ForkGuard fork_guard_;
  EventQueue<Event> events_;
  std::unique_ptr<Object> object_;  // on the thread only, except for object()
  std::unique_ptr<os::LoopThread> thread_;
};

}  // namespace elastic::host
