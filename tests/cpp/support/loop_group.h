#pragma once

// Virtual time: all loops of a test, turned on its thread, over real loopback sockets.
//
//   LoopGroup group;
//   auto thread = *os::LoopThread::start("node", &group);  // a loop, without a thread
//   … objects on the loops …
//   EXPECT_TRUE(group.run_until([&] { return is_done; }));  // without real waiting
//
// The clock stands while any loop has something to do, and then jumps to the earliest deadline of
// all loops. So nothing takes time, no loop is late for a timer, and no loop reports a stall,
// unless the test pauses it. What happens within a limit, or not at all, is exact: it does not
// depend on the machine.
//
// The blocking clients of the tests (host/store/store_test_client.h) wait by the group of their
// thread, so they can talk to its loops.
//
// Threads that work for a loop are not waited for, except by await(). The resolver's is not needed:
// such a loop resolves names itself.

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "elastic/time.h"
#include "os/base/fd.h"
#include "os/loop/clock.h"
#include "os/loop/registration.h"

namespace elastic::support {

class LoopGroup final : public os::Clock {
 public:
  using Condition = std::function<bool()>;

  LoopGroup();  // outlives its loops; a thread has one at a time
  ~LoopGroup() override;
  // Of this thread; null: it has none.
  static LoopGroup* current();

  Instant now() const override { return now_; }
  bool adopt(os::EventLoop* loop) override;
  void release(os::EventLoop* loop) override;

  // Turns the loops until none has anything to do at this time.
  void settle();
  // Lets time pass, from one deadline to the next.
  void advance(Duration time);
  // The same until the condition holds. False: it does not within `limit`.
  bool run_until(const Condition& condition, Duration limit = std::chrono::hours(1));
  // Turns the loops until something outside them, a thread or a process, has brought the condition
  // about. The clock stands.
  bool await(const Condition& condition);

  // A handler that calls this takes so long, and its loop is late afterwards.
  void take(Duration time) { now_ += time; }
  // The loop is not turned, as if its process were stopped; the time passes for it, too.
  void pause(os::EventLoop* loop) { set_paused(loop, true); }
  void resume(os::EventLoop* loop) { set_paused(loop, false); }

 private:
  struct Member {
    os::EventLoop* loop = nullptr;
    bool is_paused = false;
  };

  void set_paused(os::EventLoop* loop, bool is_paused);
  bool turn_all();
  void deliver();
  Instant next_deadline() const;
  bool step(Instant end);

  Instant now_;
  std::vector<Member> members_;
  os::UniqueFd marker_;  // a datagram socket that is connected to itself
};

}  // namespace elastic::support
