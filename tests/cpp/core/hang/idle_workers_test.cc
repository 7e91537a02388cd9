// Which workers do nothing: what they have used between two looks.

#include "core/hang/idle_workers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace elastic::core {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

Instant at(Duration time) { return Instant{} + 100s + time; }

WorkerEvidence base() {
  return {.rank = 1,
          .step = 7,
          .state = 'S',
          .collectives = "0\tdefault_pg\t3\t0\t0\t\t\n",
          .cpu = 90s,
          .io_bytes = 1 << 20};
}

struct Case {
  std::string what;
  WorkerEvidence after;
  bool is_idle;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](std::string what, bool is_idle, auto change) {
    Case one{std::move(what), base(), is_idle};
    change(&one.after);
    all.push_back(std::move(one));
  };
  add("sleeps, waits for a lock", true, [](WorkerEvidence*) {});
  add("has several process groups of gloo", true, [](WorkerEvidence* one) {
    one->polling_threads = 7;
    one->cpu += 300ms;
  });
  add("and sends or receives", false, [](WorkerEvidence* one) {
    one->polling_threads = 7;
    one->cpu += 600ms;
  });
  add("says that it has many", false, [](WorkerEvidence* one) {
    one->polling_threads = 1 << 30;
    one->cpu += 4s;
  });
  add("is stopped", true, [](WorkerEvidence* one) { one->state = 'T'; });
  add("has threads that look around", true, [](WorkerEvidence* one) { one->cpu += 40ms; });
  add("writes a line of a log", true, [](WorkerEvidence* one) { one->io_bytes += 200; });
  add("computes: evaluation", false, [](WorkerEvidence* one) { one->cpu += 4s; });
  add("or its child does: a compiler, a data loader", false,
      [](WorkerEvidence* one) { one->cpu += 60ms; });
  add("a child has ended, and its time with it", false,
      [](WorkerEvidence* one) { one->cpu -= 3s; });
  add("writes: a checkpoint", false, [](WorkerEvidence* one) { one->io_bytes += 1 << 20; });
  add("waits for the disk: fsync", false, [](WorkerEvidence* one) { one->is_at_work = true; });
  add("has made a step", false, [](WorkerEvidence* one) { one->step = 8; });
  add("has entered an operation", false,
      [](WorkerEvidence* one) { one->collectives = "0\tdefault_pg\t4\t4\t1\tbarrier\t[]\n"; });
  return all;
}

TEST(IdleWorkers, AreThoseThatHaveUsedNothingBetweenTwoLooks) {
  for (const Case& one : cases()) {
    IdleWorkers workers;
    EXPECT_THAT(workers.look({base()}, at(0s)), IsEmpty()) << one.what;
    const auto idle = workers.look({one.after}, at(5s));
    EXPECT_EQ(!idle.empty(), one.is_idle) << one.what;
  }
}

TEST(IdleWorkers, AreKnownOnlyFromTwoLooksAtTheRightDistance) {
  WorkerEvidence other = base();
  other.rank = 2;
  IdleWorkers workers;
  EXPECT_THAT(workers.look({base()}, at(0s)), IsEmpty());
  EXPECT_THAT(workers.look({base()}, at(3s)), IsEmpty()) << "too close";
  EXPECT_THAT(workers.look({base(), other}, at(8s)), ElementsAre(1)) << "2 is new";
  EXPECT_THAT(workers.look({base(), other}, at(13s)), ElementsAre(1, 2));
  EXPECT_THAT(workers.look({base(), other}, at(200s)), IsEmpty()) << "an earlier stall";
}

}  // namespace
}  // namespace elastic::core
