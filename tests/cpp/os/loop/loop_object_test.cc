#include "os/loop/loop_object.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "os/loop/event_loop.h"
#include "support/loop_group.h"

namespace elastic::os {
namespace {

// Notes on which threads its life begins and ends.
class Probe {
 public:
  struct Notes {
    std::thread::id created;
    std::thread::id destroyed;
    std::vector<int> order;
  };
  static Result<std::unique_ptr<Probe>> create(EventLoop* loop, Notes* notes) {
    return std::make_unique<Probe>(loop, notes);
  }
  Probe(EventLoop* own, Notes* notes) : loop_(own), notes_(notes) {
    notes_->created = std::this_thread::get_id();
  }
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;
  ~Probe() { notes_->destroyed = std::this_thread::get_id(); }

  EventLoop* loop() const { return loop_; }
  std::thread::id thread() const { return std::this_thread::get_id(); }
  void note(int what) { notes_->order.push_back(what); }

 private:
  EventLoop* const loop_;
  Notes* const notes_;
};

std::unique_ptr<LoopObject<Probe>> start(Probe::Notes* notes, Clock* clock = real_clock()) {
  auto started = LoopObject<Probe>::start(
      "test-object", [&](EventLoop* loop) { return Probe::create(loop, notes); }, clock);
  EXPECT_TRUE(started.ok());
  return *std::move(started);
}

TEST(LoopObject, LivesOnItsThread) {
  Probe::Notes notes;
  auto probe = start(&notes);
  const std::thread::id own = probe->ask(&Probe::thread);
  EXPECT_NE(own, std::this_thread::get_id());
  EXPECT_EQ(notes.created, own);
  EXPECT_EQ(notes.destroyed, std::thread::id());
  probe.reset();
  EXPECT_EQ(notes.destroyed, own);
}

TEST(LoopObject, RunsWorkInTheOrderOfTheCallsAndBeforeTheObjectEnds) {
  Probe::Notes notes;
  auto probe = start(&notes);
  probe->post([](Probe& object) { object.note(1); });
  EXPECT_TRUE(probe->call([](Probe& object) { object.note(2); }));
  EXPECT_EQ(notes.order, (std::vector<int>{1, 2}));
  probe->post([](Probe& object) { object.note(3); });
  probe.reset();
  EXPECT_EQ(notes.order, (std::vector<int>{1, 2, 3}));
}

TEST(LoopObject, ReturnsTheErrorOfTheFactory) {
  const auto failed =
      LoopObject<Probe>::start("test-object", [](EventLoop*) -> Result<std::unique_ptr<Probe>> {
        return Status(StatusCode::kUnavailable, "no object");
      });
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(failed.status().message(), "no object");
}

TEST(LoopObject, UsesTheLoopOfAClockThatTurnsIt) {
  support::LoopGroup group;
  Probe::Notes notes;
  auto probe = start(&notes, &group);
  EXPECT_EQ(notes.created, std::this_thread::get_id());  // without a thread
  EXPECT_EQ(probe->object().loop()->clock(), &group);
  probe->post([](Probe& object) { object.note(1); });
  EXPECT_TRUE(notes.order.empty());
  group.settle();
  EXPECT_EQ(notes.order, std::vector<int>{1});
  probe.reset();
  EXPECT_EQ(notes.destroyed, std::this_thread::get_id());
}

// A child that called or joined would wait forever: it has no such thread.
TEST(LoopObject, CopyInAForkedChildNeitherCallsNorJoins) {
  Probe::Notes notes;
  auto probe = start(&notes);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool is_known = probe->is_in_child();
    const bool is_called = probe->call([](Probe& object) { object.note(1); });
    const bool is_answered = probe->ask(&Probe::loop) != nullptr;
    probe->post([](Probe& object) { object.note(2); });
    probe.reset();
    const bool is_left = notes.order.empty() && notes.destroyed == std::thread::id();
    ::_exit(is_known && !is_called && !is_answered && is_left ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(probe->is_in_child());
  EXPECT_TRUE(probe->call([](Probe& object) { object.note(3); }));
  EXPECT_EQ(notes.order, std::vector<int>{3});
}

}  // namespace
}  // namespace elastic::os
