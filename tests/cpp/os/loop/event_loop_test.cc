#include "os/loop/event_loop.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "os/loop/clock.h"
#include "os/loop/thread.h"
#include "os/loop/wait.h"
#include "support/loop_group.h"

namespace elastic::os {
namespace {

using std::chrono::milliseconds;
using support::LoopGroup;

class Handler final : public FdHandler {
 public:
  explicit Handler(std::function<void(std::uint32_t)> callback) : callback_(std::move(callback)) {}
  void on_ready(std::uint32_t events) override { callback_(events); }

 private:
  std::function<void(std::uint32_t)> callback_;
};

struct Pair {
  UniqueFd a, b;
  Pair() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    a.reset(fds[0]);
    b.reset(fds[1]);
  }
};

std::unique_ptr<EventLoop> make_loop() {
  auto loop = EventLoop::create();
  EXPECT_TRUE(loop.ok());
  return std::move(*loop);
}

TEST(EventLoop, TimersFireInOrderOfDeadlineAndNeverEarly) {
  auto loop = make_loop();
  const Instant start = os::monotonic_now();
  std::vector<int> order;
  Timer second(loop.get(), [&] {
    order.push_back(2);
    EXPECT_GE(loop->now(), start + milliseconds(4));
    loop->stop();
  });
  Timer first(loop.get(), [&] { order.push_back(1); });
  second.arm(start + milliseconds(4));
  first.arm(start + milliseconds(2));
  loop->run();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST(EventLoop, TimerThatReArmsForThePastDoesNotKeepDescriptorsFromBeingServed) {
  auto loop = make_loop();
  Pair pair;
  int fired = 0;
  std::unique_ptr<Timer> timer;
  timer = std::make_unique<Timer>(loop.get(), [&] {
    ++fired;
    timer->arm(loop->now());
  });
  timer->arm(os::monotonic_now());
  Handler handler([&](std::uint32_t) { loop->stop(); });
  auto watch = loop->watch(pair.a.get(), EPOLLIN, &handler);
  ASSERT_TRUE(watch.ok());
  ASSERT_EQ(::write(pair.b.get(), "x", 1), 1);
  loop->run();
  EXPECT_LE(fired, 2);
}

TEST(EventLoop, TimerThatReArmsForThePastDoesNotStarveAnotherOne) {
  auto loop = make_loop();
  int fired = 0;
  Timer past(loop.get(), [&] {
    if (++fired == 1000) loop->stop();
    past.arm(Instant());
  });
  Timer other(loop.get(), [&] { loop->stop(); });
  past.arm(Instant());
  other.arm(os::monotonic_now());
  loop->run();
  EXPECT_FALSE(other.armed());
  EXPECT_LT(fired, 1000);
}

TEST(EventLoop, CallbackOfATimerMayDestroyTheTimer) {
  LoopGroup group;
  auto loop = *EventLoop::create(&group);
  std::unique_ptr<Timer> timer;
  // Longer than a function object holds in itself: its memory is freed when it is destroyed.
  const std::vector<std::string> captured(4, std::string(100, 'x'));
  std::size_t bytes = 0;
  timer = std::make_unique<Timer>(loop.get(), [&timer, &bytes, captured] {
    timer.reset();
    for (const std::string& one : captured) bytes += one.size();
  });
  timer->arm(loop->now());
  group.settle();
  EXPECT_EQ(bytes, 400U);
  EXPECT_EQ(timer, nullptr);
}

class Thrower final : public FdHandler {
 public:
  void on_ready(std::uint32_t) override { std::function<void()>()(); }
};

TEST(EventLoopDeathTest, ExceptionOfAHandlerNamesItAndEndsTheProcess) {
  const auto in_a_loop = [](const auto& prepare) {
    auto loop = make_loop();
    prepare(loop.get());
    loop->run();
  };
  EXPECT_EXIT(in_a_loop([](EventLoop* loop) {
                loop->post([] { throw std::out_of_range("no such key"); });
              }),
              testing::ExitedWithCode(70),
              "elastic: internal error: std::out_of_range \\(no such key\\) left the handler "
              "elastic::os::.*ExceptionOfAHandler.*lambda");
  EXPECT_EXIT(in_a_loop([](EventLoop* loop) { loop->defer([] { throw 1; }); }),
              testing::ExitedWithCode(70), "an unknown exception left the handler");
  EXPECT_EXIT(
      {
        auto loop = make_loop();
        Timer timer(loop.get(), [] { throw std::bad_alloc(); });
        timer.arm(loop->now());
        loop->run();
      },
      testing::ExitedWithCode(70), "std::bad_alloc .* left the handler");
  EXPECT_EXIT(
      {
        auto loop = make_loop();
        const Pair pair;
        Thrower thrower;
        const auto watch = loop->watch(pair.a.get(), EPOLLOUT, &thrower);
        loop->run();
      },
      testing::ExitedWithCode(70), "bad_function_call.* left the handler elastic::os::.*Thrower");
}

TEST(EventLoop, EventOfAWatchThatAnotherHandlerRemovedIsDropped) {
  auto loop = make_loop();
  Pair one, two;
  int calls = 0;
  Watch watch_one, watch_two;
  Handler handler_one([&](std::uint32_t) {
    ++calls;
    watch_two.reset();
    watch_one.reset();
    loop->stop();
  });
  Handler handler_two([&](std::uint32_t) {
    ++calls;
    watch_one.reset();
    watch_two.reset();
    loop->stop();
  });
  watch_one = *loop->watch(one.a.get(), EPOLLIN, &handler_one);
  watch_two = *loop->watch(two.a.get(), EPOLLIN, &handler_two);
  ASSERT_EQ(::write(one.b.get(), "x", 1), 1);
  ASSERT_EQ(::write(two.b.get(), "x", 1), 1);
  loop->run();
  EXPECT_EQ(calls, 1);
}

TEST(EventLoop, SlotThatIsReusedInTheSameIterationGetsNoEventOfItsPredecessor) {
  auto loop = make_loop();
  Pair one, two, fresh;
  int stale = 0;
  Watch watches[3];
  Handler never([&](std::uint32_t) { ++stale; });
  const auto swap = [&](Watch* other) {
    other->reset();
    watches[2] = *loop->watch(fresh.a.get(), EPOLLIN, &never);
    loop->stop();
  };
  Handler handler_one([&](std::uint32_t) { swap(&watches[1]); });
  Handler handler_two([&](std::uint32_t) { swap(&watches[0]); });
  watches[0] = *loop->watch(one.a.get(), EPOLLIN, &handler_one);
  watches[1] = *loop->watch(two.a.get(), EPOLLIN, &handler_two);
  ASSERT_EQ(::write(one.b.get(), "x", 1), 1);
  ASSERT_EQ(::write(two.b.get(), "x", 1), 1);
  loop->run();
  EXPECT_EQ(stale, 0);
}

TEST(EventLoop, DeferredWorkRunsAfterAllHandlersOfTheIteration) {
  auto loop = make_loop();
  Pair one, two;
  std::vector<std::string> trace;
  const auto serve = [&](const Pair& pair) {
    char byte;
    EXPECT_EQ(::read(pair.a.get(), &byte, 1), 1);
    trace.emplace_back("event");
    loop->defer([&] {
      trace.emplace_back("deferred");
      loop->stop();
    });
  };
  Handler handler_one([&](std::uint32_t) { serve(one); });
  Handler handler_two([&](std::uint32_t) { serve(two); });
  ASSERT_EQ(::write(one.b.get(), "x", 1), 1);
  ASSERT_EQ(::write(two.b.get(), "x", 1), 1);
  const auto watch_one = loop->watch(one.a.get(), EPOLLIN, &handler_one);
  const auto watch_two = loop->watch(two.a.get(), EPOLLIN, &handler_two);
  loop->run();
  EXPECT_EQ(trace, (std::vector<std::string>{"event", "event", "deferred", "deferred"}));
}

TEST(EventLoop, WorkPostedBeforeStopRuns) {
  auto loop = make_loop();
  int ran = 0;
  loop->post([&] { ++ran; });
  loop->stop();
  loop->run();
  EXPECT_EQ(ran, 1);
}

TEST(LoopThread, WorkFromManyThreadsRunsOnceEachOnTheLoopThread) {
  auto thread = LoopThread::start("test-loop");
  ASSERT_TRUE(thread.ok());
  int count = 0;  // loop thread only
  std::atomic<bool> wrong_thread = false;
  std::thread::id loop_id;
  (*thread)->call([&] { loop_id = std::this_thread::get_id(); });
  std::vector<std::thread> posters;
  for (int i = 0; i < 4; ++i) {
    posters.emplace_back([&] {
      for (int j = 0; j < 500; ++j) {
        (*thread)->loop().post([&] {
          ++count;
          if (std::this_thread::get_id() != loop_id) wrong_thread = true;
        });
      }
    });
  }
  for (auto& poster : posters) poster.join();
  int seen = 0;
  (*thread)->call([&] { seen = count; });
  EXPECT_EQ(seen, 2000);
  EXPECT_FALSE(wrong_thread);
}

class StallTest : public ::testing::Test {
 protected:
  LoopGroup group_;
  const std::unique_ptr<EventLoop> loop_ = *EventLoop::create(&group_);
  std::vector<Stall> stalls_;
  StallWatch watch_{loop_.get(), [this](const Stall& stall) { stalls_.push_back(stall); }};
};

TEST_F(StallTest, IsReportedBeforeOtherHandlersRun) {
  const milliseconds kept(30);
  Timer next(loop_.get(), [&] { EXPECT_EQ(stalls_.size(), 1u); });
  Timer keeper(loop_.get(), [&] {
    group_.take(kept);
    next.arm(loop_->now());
  });
  keeper.arm(loop_->now());
  group_.settle();
  ASSERT_EQ(stalls_.size(), 1u);
  EXPECT_EQ(stalls_[0].late, kept);
  EXPECT_EQ(stalls_[0].away, kept);
}

TEST_F(StallTest, IsKnownFromTheTimerThatAStoppedProcessMissed) {
  Timer timer(loop_.get(), [] {});
  timer.arm_after(milliseconds(20));
  group_.advance(milliseconds(10));
  group_.pause(loop_.get());
  group_.advance(milliseconds(50));
  group_.resume(loop_.get());
  group_.settle();
  ASSERT_EQ(stalls_.size(), 1u);
  EXPECT_EQ(stalls_[0].late, milliseconds(40));
  EXPECT_EQ(stalls_[0].away, milliseconds(50));
}

TEST_F(StallTest, IsNotReportedForTimeThatTheLoopSleeps) {
  Timer timer(loop_.get(), [] {});
  timer.arm_after(std::chrono::hours(1));
  group_.advance(std::chrono::hours(2));
  EXPECT_FALSE(timer.armed());
  EXPECT_EQ(stalls_.size(), 0u);
}

TEST(EventLoop, MoreEventsThanOneIterationHandlesAreHandledInTurn) {
  auto loop = make_loop();
  std::vector<Pair> pairs(300);
  std::vector<std::unique_ptr<Handler>> handlers;
  std::vector<Watch> watches;
  std::vector<int> served(pairs.size());
  bool was_behind = false;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    EXPECT_EQ(::send(pairs[i].a.get(), "x", 1, 0), 1);
    handlers.push_back(std::make_unique<Handler>([&, i](std::uint32_t) {
      ++served[i];  // the descriptor is not read, so it stays ready
      if (!loop->is_caught_up()) was_behind = true;
    }));
    watches.push_back(*loop->watch(pairs[i].b.get(), EPOLLIN, handlers.back().get()));
  }
  int iterations = 0;
  Timer each(loop.get(), [&] {
    if (++iterations == 3) loop->stop();
    each.arm(loop->now());
  });
  each.arm(os::monotonic_now());
  loop->run();
  EXPECT_TRUE(was_behind);
  for (std::size_t i = 0; i < served.size(); ++i) EXPECT_GE(served[i], 1) << i;
}

TEST(LoopThread, DestructionDoesNotWaitForTimers) {
  auto thread = LoopThread::start("test-loop");
  ASSERT_TRUE(thread.ok());
  auto timer = std::make_unique<Timer>(&(*thread)->loop(), [] {});
  (*thread)->call([&] { timer->arm((*thread)->loop().now() + std::chrono::hours(1)); });
  (*thread)->call([&] { timer.reset(); });
  (*thread).reset();  // the test's limit is shorter than the timer
}

// Else faulthandler and crash reporters see nothing of a crash in such a thread.
TEST(QuietThread, BlocksSignalsButNotItsOwnFaults) {
  sigset_t mask;
  auto thread = start_quiet_thread("test", [&] { ::pthread_sigmask(SIG_SETMASK, nullptr, &mask); });
  ASSERT_TRUE(thread.ok());
  thread->join();
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    EXPECT_FALSE(::sigismember(&mask, fault)) << fault;
  }
  for (const int other : {SIGTERM, SIGINT, SIGCHLD, SIGUSR1}) {
    EXPECT_TRUE(::sigismember(&mask, other)) << other;
  }
}

// A process that a handler starts inherits the mask.
TEST(Wait, HandlersAreCheckedWithTheMaskOfTheProgram) {
  const Instant begun = monotonic_now();
  bool was_blocked = false, is_first = true;
  const std::function<bool()> interrupted = [&] {
    sigset_t mask;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    if (std::exchange(is_first, false)) was_blocked = ::sigismember(&mask, SIGTERM) != 0;
    return true;
  };
  EXPECT_EQ(
      wait_ready(-1, 0, {.deadline = begun + std::chrono::minutes(1), .interrupted = &interrupted})
          .code(),
      StatusCode::kCancelled);
  EXPECT_FALSE(is_first);
  EXPECT_FALSE(was_blocked);
}

}  // namespace
}  // namespace elastic::os
