#pragma once

// An object on a loop thread of its own.

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "elastic/status.h"
#include "os/base/process.h"
#include "os/loop/clock.h"
#include "os/loop/thread.h"

namespace elastic::os {

// Thread rule: any member from any thread; but only post() and object() from the object's own. In a
// forked child, which lacks the thread, no call has an effect, and the object is left as it is: the
// thread cannot be joined there, and what the object uses is the parent's.
template <typename Object>
class LoopObject {
 public:
  // `create` makes the object, on the thread: create(loop) returns a Result with a pointer. `name`
  // and `clock` are those of LoopThread::start().
  template <typename Create>
  static Result<std::unique_ptr<LoopObject>> start(const char* name, const Create& create,
                                                   Clock* clock = real_clock()) {
    Result<std::unique_ptr<LoopThread>> thread = LoopThread::start(name, clock);
    if (!thread.ok()) return thread.status();
    std::unique_ptr<LoopObject> self(new LoopObject(*std::move(thread)));
    Status status;
    self->thread_->call([&status, &create, raw = self.get()] {
      Result<std::unique_ptr<Object>> object = create(&raw->thread_->loop());
      status = object.status();
      if (object.ok()) raw->object_ = *std::move(object);
    });
    if (!status.ok()) return status;
    return self;
  }
  LoopObject(const LoopObject&) = delete;
  LoopObject& operator=(const LoopObject&) = delete;
  // Destroys the object on the thread, and joins that.
  ~LoopObject() {
    if (is_in_child()) {
      static_cast<void>(object_.release());
      static_cast<void>(thread_.release());
      return;
    }
    thread_->call([this] { object_.reset(); });
  }

  bool is_in_child() const { return fork_guard_.is_in_child(); }
  // Runs work(object) on the thread, and waits for it. False in a forked child.
  template <typename Work>
  bool call(const Work& work) {
    if (is_in_child()) return false;
    thread_->call([&] { std::invoke(work, *object_); });
    return true;
  }
  // The same for question(object), and returns what it returns; a default value in a forked child.
  template <typename Question>
  auto ask(const Question& question) {
    std::decay_t<std::invoke_result_t<const Question&, Object&>> answer{};
    call([&](Object& object) { answer = std::invoke(question, object); });
    return answer;
  }
  // Runs work(object) on the thread, without waiting.
  template <typename Work>
  void post(Work work) {
    if (is_in_child()) return;
    thread_->post([this, work = std::move(work)] { std::invoke(work, *object_); });
  }
  // For what any thread may use of the object.
  Object& object() const { return *object_; }

 private:
  explicit LoopObject(std::unique_ptr<LoopThread> thread) : thread_(std::move(thread)) {}

  const ForkGuard fork_guard_;
  std::unique_ptr<LoopThread> thread_;
  std::unique_ptr<Object> object_;  // on the thread only, except for object()
};

}  // namespace elastic::os
