#include "core/workers/worker_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <iterator>
#include <random>

namespace elastic {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using namespace group_event;  // NOLINT: the whole test uses these events

std::string describe(const GroupAction& action) {
  struct Describe {
    std::string operator()(const group_action::StartAll&) const { return "start"; }
    std::string operator()(const group_action::StartAgain& start) const {
      return "start again " + std::to_string(start.local_rank);
    }
    std::string operator()(const group_action::Signal& signal) const {
      const std::uint32_t id = signal.request.id;
      return "signal " + std::to_string(signal.request.signal) +
             (signal.request.scope == SignalScope::kLeader ? " leaders" : "") +
             (signal.request.is_stop ? " stop" : "") +
             (id == guardian::kEveryWorker ? "" : " to " + std::to_string(id));
    }
    std::string operator()(const group_action::CancelStarts&) const { return "cancel starts"; }
    std::string operator()(const group_action::AwaitLeftovers&) const { return "await leftovers"; }
    std::string operator()(const group_action::Sweep&) const { return "sweep"; }
    std::string operator()(const group_action::CloseLink&) const { return "abandon"; }
    std::string operator()(const group_action::Emit& emit) const {
      const WorkerEvent& event = emit.event;
      const std::string rank = " " + std::to_string(event.local_rank);
      switch (event.kind) {
        case WorkerEvent::Kind::kStarted: return "started" + rank;
        case WorkerEvent::Kind::kStartDelayed: return "delayed" + rank;
        case WorkerEvent::Kind::kExited: return "exited" + rank;
        case WorkerEvent::Kind::kGroupEnded: return "gone";
        case WorkerEvent::Kind::kStuck: return "stuck: " + event.message;
        case WorkerEvent::Kind::kGuardianLost: return "lost: " + event.message;
        case WorkerEvent::Kind::kNotice: return "notice: " + event.message;
      }
      return "?";
    }
  };
  return std::visit(Describe{}, action);
}

Ended exited(int rank, int code = 0) {
  Ended event;
  event.local_rank = rank;
  event.exit.kind = ExitKind::kExited;
  event.exit.code = code;
  return event;
}

Ended not_started(int rank) {
  Ended event;
  event.local_rank = rank;
  event.exit.kind = ExitKind::kNotStarted;
  return event;
}

// The fork of the worker failed for lack of processes.
Ended refused(int rank) {
  Ended event = not_started(rank);
  event.exit.stage = "fork";
  event.exit.error = EAGAIN;
  return event;
}

// A machine with a clock, and its actions as text.
class Machine {
 public:
  std::vector<std::string> feed(const GroupEvent& event) {
    std::vector<GroupAction> actions;
    accepted = machine.step(event, now, &actions);
    std::vector<std::string> texts;
    for (const GroupAction& action : actions) texts.push_back(describe(action));
    return texts;
  }
  std::vector<std::string> wait(Duration duration) {
    now += duration;
    return feed(Tick{});
  }

  // Puts a new machine with two workers, the first of which runs, into a state.
  void enter(GroupState state) {
    if (state == GroupState::kIdle) return;
    if (state == GroupState::kLost) {
      feed(GuardianLost{"x"});
      return;
    }
    feed(Start{2, Duration::max(), seconds(60)});
    feed(Started{0, 100, now});
    if (state == GroupState::kRunning) return;
    if (state == GroupState::kLeftovers) {
      feed(Started{1, 101, now});
      feed(exited(0));
      feed(exited(1));
      return;
    }
    feed(Stop{SIGTERM, seconds(30), SignalScope::kGroup});
    if (state == GroupState::kStopping) return;
    wait(seconds(30));
    feed(KillSent{});
    if (state == GroupState::kStuck) wait(kKillTimeout);
  }

  WorkerGroupMachine machine;
  Instant now{seconds(1000)};
  bool accepted = true;
};

// --- The table -----------------------------------------------------------------------------------

struct Edge {
  GroupState from;
  const char* event_name;
  GroupEvent event;
  std::vector<std::string> actions;
  GroupState to;
};

const std::string kStuckText = "stuck: worker 0 with pid 100, worker 1 still lives after SIGKILL";

std::vector<Edge> edges() {
  using S = GroupState;
  const Stop stop{SIGTERM, seconds(30), SignalScope::kGroup};
  const Stop soon{SIGTERM, seconds(1), SignalScope::kGroup};
  const Forward usr1{SIGUSR1, SignalScope::kLeader};
  const Started second{1, 101, Instant{}};
  return {
      {S::kIdle, "start", Start{2}, {"start"}, S::kRunning},
      {S::kIdle, "stop", stop, {}, S::kIdle},
      {S::kIdle, "forward", usr1, {}, S::kIdle},
      {S::kIdle, "started", second, {"abandon"}, S::kIdle},
      {S::kIdle, "ended", exited(0), {"abandon"}, S::kIdle},
      {S::kIdle, "leftovers gone", LeftoversGone{}, {"abandon"}, S::kIdle},
      {S::kIdle, "kill sent", KillSent{}, {"abandon"}, S::kIdle},
      {S::kIdle, "swept", Swept{}, {"abandon"}, S::kIdle},
      {S::kIdle, "tick", Tick{}, {}, S::kIdle},
      {S::kIdle, "lost", GuardianLost{"x"}, {"lost: x"}, S::kLost},

      {S::kRunning, "start", Start{2}, {}, S::kRunning},
      {S::kRunning, "stop", stop, {"signal 15 stop", "signal 18 stop"}, S::kStopping},
      {S::kRunning, "forward", usr1, {"signal 10 leaders"}, S::kRunning},
      {S::kRunning, "started", second, {"started 1"}, S::kRunning},
      {S::kRunning, "ended", exited(0), {"exited 0"}, S::kRunning},
      {S::kRunning, "leftovers gone", LeftoversGone{}, {"abandon"}, S::kRunning},
      {S::kRunning, "kill sent", KillSent{}, {"abandon"}, S::kRunning},
      {S::kRunning, "swept", Swept{}, {"abandon"}, S::kRunning},
      {S::kRunning, "tick", Tick{}, {}, S::kRunning},
      {S::kRunning, "lost", GuardianLost{"x"}, {"lost: x"}, S::kLost},

      {S::kStopping, "start", Start{2}, {}, S::kStopping},
      {S::kStopping, "stop", soon, {}, S::kStopping},
      {S::kStopping, "forward", usr1, {"signal 10 leaders"}, S::kStopping},
      {S::kStopping, "started", second, {"started 1"}, S::kStopping},
      {S::kStopping, "ended", exited(0), {"exited 0"}, S::kStopping},
      {S::kStopping, "leftovers gone", LeftoversGone{}, {"abandon"}, S::kStopping},
      {S::kStopping, "kill sent", KillSent{}, {"abandon"}, S::kStopping},
      {S::kStopping, "swept", Swept{}, {"abandon"}, S::kStopping},
      {S::kStopping, "tick", Tick{}, {}, S::kStopping},
      {S::kStopping, "lost", GuardianLost{"x"}, {"lost: x"}, S::kLost},

      {S::kLeftovers, "start", Start{2}, {}, S::kLeftovers},
      {S::kLeftovers, "stop", stop, {"sweep"}, S::kSweeping},
      {S::kLeftovers, "forward", usr1, {"signal 10 leaders"}, S::kLeftovers},
      {S::kLeftovers, "started", second, {"abandon"}, S::kLeftovers},
      {S::kLeftovers, "ended", exited(0), {"abandon"}, S::kLeftovers},
      {S::kLeftovers, "leftovers gone", LeftoversGone{}, {"sweep"}, S::kSweeping},
      {S::kLeftovers, "kill sent", KillSent{}, {"abandon"}, S::kLeftovers},
      {S::kLeftovers, "swept", Swept{}, {"abandon"}, S::kLeftovers},
      {S::kLeftovers, "tick", Tick{}, {}, S::kLeftovers},
      {S::kLeftovers, "lost", GuardianLost{"x"}, {"lost: x"}, S::kLost},

      {S::kSweeping, "start", Start{2}, {}, S::kSweeping},
      {S::kSweeping, "stop", stop, {}, S::kSweeping},
      {S::kSweeping, "forward", usr1, {}, S::kSweeping},
      {S::kSweeping, "started", second, {"started 1"}, S::kSweeping},
      {S::kSweeping, "ended", exited(0), {"exited 0"}, S::kSweeping},
      {S::kSweeping, "leftovers gone", LeftoversGone{}, {}, S::kSweeping},
      {S::kSweeping, "kill sent", KillSent{}, {}, S::kSweeping},
      {S::kSweeping, "swept", Swept{}, {"abandon"}, S::kSweeping},  // worker 0 has not ended
      {S::kSweeping, "tick", Tick{}, {}, S::kSweeping},
      {S::kSweeping, "lost", GuardianLost{"x"}, {"lost: x"}, S::kLost},

      {S::kStuck, "start", Start{2}, {}, S::kStuck},
      {S::kStuck, "stop", stop, {}, S::kStuck},
      {S::kStuck, "forward", usr1, {}, S::kStuck},
      {S::kStuck, "started", second, {"started 1"}, S::kStuck},
      {S::kStuck, "ended", exited(0), {"exited 0"}, S::kStuck},
      {S::kStuck, "leftovers gone", LeftoversGone{}, {}, S::kStuck},
      {S::kStuck, "kill sent", KillSent{}, {}, S::kStuck},
      {S::kStuck, "swept", Swept{}, {"abandon"}, S::kStuck},
      {S::kStuck, "tick", Tick{}, {}, S::kStuck},
      {S::kStuck, "lost", GuardianLost{"x"}, {"lost: x"}, S::kLost},

      {S::kLost, "start", Start{2}, {}, S::kLost},
      {S::kLost, "stop", stop, {}, S::kLost},
      {S::kLost, "forward", usr1, {}, S::kLost},
      {S::kLost, "started", second, {}, S::kLost},
      {S::kLost, "ended", exited(0), {}, S::kLost},
      {S::kLost, "leftovers gone", LeftoversGone{}, {}, S::kLost},
      {S::kLost, "kill sent", KillSent{}, {}, S::kLost},
      {S::kLost, "swept", Swept{}, {}, S::kLost},
      {S::kLost, "tick", Tick{}, {}, S::kLost},
      {S::kLost, "lost", GuardianLost{"x"}, {}, S::kLost},
  };
}

TEST(WorkerGroupTable, EveryEdgeHasItsAction) {
  const std::vector<Edge> all = edges();
  ASSERT_EQ(all.size(), kGroupStateCount * kGroupEventCount);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Edge& edge = all[i];
    SCOPED_TRACE(std::string(to_string(edge.from)) + " / " + edge.event_name);
    EXPECT_EQ(edge.event.index(), i % kGroupEventCount);
    Machine group;
    group.enter(edge.from);
    ASSERT_EQ(group.machine.state(), edge.from);
    EXPECT_EQ(group.feed(edge.event), edge.actions);
    EXPECT_EQ(group.machine.state(), edge.to);
    const auto reaction = kGroupTable[static_cast<std::size_t>(edge.from)][edge.event.index()];
    EXPECT_EQ(group.accepted, reaction != GroupReaction::kRefuse);
  }
}

// docs/supervision.md shows the table; a row there is "| state | reaction | …".
TEST(WorkerGroupTable, DocumentShowsTheTable) {
  std::ifstream file(ELASTIC_TEST_DOCS "supervision.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  for (std::size_t state = 0; state < kGroupStateCount; ++state) {
    std::string row = std::string("| ") + to_string(static_cast<GroupState>(state)) + " |";
    for (const GroupReaction reaction : kGroupTable[state]) {
      row += std::string(" ") + to_string(reaction) + " |";
    }
    EXPECT_THAT(text, ::testing::HasSubstr(row));
  }
}

// --- A generation --------------------------------------------------------------------------------

TEST(WorkerGroupMachine, GenerationIsGoneOnlyWhenAllHaveEndedAndAreSwept) {
  Machine group;
  EXPECT_THAT(group.feed(Start{2}), ElementsAre("start"));
  EXPECT_FALSE(group.machine.next_deadline()) << "workers that just run cost no timer";
  EXPECT_THAT(group.feed(Started{0, 100, group.now}), ElementsAre("started 0"));
  EXPECT_THAT(group.feed(not_started(1)), ElementsAre("exited 1"));
  EXPECT_THAT(group.feed(exited(0)), ElementsAre("exited 0", "sweep"));
  EXPECT_TRUE(group.machine.live());
  EXPECT_THAT(group.feed(Swept{}), ElementsAre("gone"));
  EXPECT_FALSE(group.machine.live());
  EXPECT_FALSE(group.machine.next_deadline());
  EXPECT_THAT(group.feed(Start{1}), ElementsAre("start"));
}

TEST(WorkerGroupMachine, LastExitDuringTheGraceSweepsAtOnce) {
  Machine group;
  group.enter(GroupState::kStopping);
  group.feed(Started{1, 101, group.now});
  EXPECT_THAT(group.feed(exited(1)), ElementsAre("exited 1"));
  EXPECT_THAT(group.feed(exited(0)), ElementsAre("exited 0", "sweep"));
}

TEST(WorkerGroupMachine, KillComesAtTheDeadlineAndNotBefore) {
  Machine group;
  group.enter(GroupState::kStopping);
  EXPECT_THAT(group.wait(seconds(30) - Duration(1)), IsEmpty());
  EXPECT_THAT(group.wait(Duration(1)), ElementsAre("sweep"));
  EXPECT_EQ(group.machine.next_deadline(), group.now + kKillTimeout);
}

TEST(WorkerGroupMachine, SecondStopMayOnlyShortenTheDeadline) {
  Machine group;
  group.enter(GroupState::kStopping);
  const auto first = group.machine.next_deadline();
  group.feed(Stop{SIGTERM, seconds(60), SignalScope::kGroup});
  EXPECT_EQ(group.machine.next_deadline(), first);
  group.feed(Stop{SIGTERM, seconds(5), SignalScope::kGroup});
  EXPECT_EQ(group.machine.next_deadline(), group.now + seconds(5));
}

TEST(WorkerGroupMachine, KillOrNoGraceSweepsAtOnceFirstOrSecond) {
  for (const GroupState from : {GroupState::kRunning, GroupState::kStopping}) {
    for (const Stop& stop : {Stop{SIGKILL, seconds(30), SignalScope::kLeader},
                             Stop{SIGTERM, Duration::zero(), SignalScope::kGroup}}) {
      Machine group;
      group.enter(from);
      EXPECT_THAT(group.feed(stop), ElementsAre("sweep"));
      EXPECT_EQ(group.machine.state(), GroupState::kSweeping);
    }
  }
}

TEST(WorkerGroupMachine, UnlimitedGraceDoesNotOverflow) {
  Machine group;
  group.enter(GroupState::kRunning);
  group.feed(Stop{SIGTERM, Duration::max(), SignalScope::kGroup});
  EXPECT_EQ(group.machine.next_deadline(), Instant::max());
}

TEST(WorkerGroupMachine, ProcessThatSurvivesTheKillIsReportedOnceAndAwaited) {
  Machine group;
  group.enter(GroupState::kSweeping);
  EXPECT_THAT(group.wait(kKillTimeout), ElementsAre(kStuckText));
  EXPECT_FALSE(group.machine.next_deadline());
  EXPECT_THAT(group.wait(std::chrono::hours(1)), IsEmpty());
  group.feed(Started{1, 101, group.now});
  group.feed(exited(0));
  group.feed(exited(1));
  EXPECT_THAT(group.feed(Swept{}), ElementsAre("gone"));
}

TEST(WorkerGroupMachine, OrphanThatSurvivesTheKillIsReported) {
  Machine group;
  group.feed(Start{1});
  group.feed(Started{0, 100, group.now});
  group.feed(exited(0));
  group.feed(KillSent{});
  EXPECT_THAT(group.wait(kKillTimeout),
              ElementsAre("stuck: a process that the workers left behind still lives after "
                          "SIGKILL"));
}

TEST(WorkerGroupMachine, ProcessesThatCannotBeFoundWithoutProcAreNotReportedAsKilled) {
  Machine group;
  group.feed(Start{1});
  group.feed(Started{0, 100, group.now});
  group.feed(exited(0));
  group.feed(KillSent{0, false});
  EXPECT_THAT(group.wait(kKillTimeout),
              ElementsAre("stuck: processes that the workers left behind cannot be found and "
                          "killed: /proc is not mounted"));
}

// --- Processes that workers which have succeeded leave running
// -------------------------------------

TEST(WorkerGroupMachine, LeftoversAreSweptWhenTheirGraceIsOver) {
  Machine group;
  group.feed(Start{1, seconds(60), seconds(20)});
  group.feed(Started{0, 100, group.now});
  EXPECT_THAT(group.feed(exited(0)), ElementsAre("exited 0", "await leftovers"));
  EXPECT_THAT(group.wait(seconds(20) - Duration(1)), IsEmpty());
  EXPECT_THAT(group.wait(Duration(1)), ElementsAre("sweep"));
  EXPECT_EQ(group.machine.next_deadline(), group.now + kKillTimeout)
      << "the time to be killed begins now";
  EXPECT_THAT(group.feed(Swept{}), ElementsAre("gone"));
}

TEST(WorkerGroupMachine, LeftoversAreAwaitedOnlyIfAllWorkersHaveSucceeded) {
  for (const bool fails : {true, false}) {
    Machine group;
    group.feed(Start{2, seconds(60), seconds(20)});
    group.feed(Started{0, 100, group.now});
    group.feed(Started{1, 101, group.now});
    group.feed(exited(0, fails ? 3 : 0));
    if (!fails) group.feed(Stop{SIGTERM, seconds(30), SignalScope::kGroup});
    EXPECT_THAT(group.feed(exited(1)), ElementsAre("exited 1", "sweep"));
  }
  Machine group;
  group.feed(Start{1, seconds(60)});
  group.feed(Started{0, 100, group.now});
  EXPECT_THAT(group.feed(exited(0)), ElementsAre("exited 0", "sweep")) << "without a grace period";
}

TEST(WorkerGroupMachine, StuckReportNamesNoProcessOfAnEarlierStart) {
  Machine group;
  for (const int refused_pid : {77, 0}) {
    group.feed(Start{1});
    group.feed(Started{0, 100, group.now});
    group.feed(exited(0));
    if (refused_pid > 0) group.feed(KillSent{refused_pid});
    const std::vector<std::string> stuck = group.wait(kKillTimeout);
    ASSERT_EQ(stuck.size(), 1u);
    EXPECT_EQ(stuck[0].find("process 77") != std::string::npos, refused_pid > 0) << stuck[0];
    group.feed(Swept{});
  }
}

TEST(WorkerGroupMachine, StuckReportClaimsSigkillOnlyIfItWasSentAndNamesWhoRefusedIt) {
  Machine group;
  group.feed(Start{1});
  group.feed(Started{0, 100, group.now});
  group.feed(Stop{SIGKILL, Duration::zero(), SignalScope::kGroup});
  EXPECT_THAT(group.wait(kKillTimeout),
              ElementsAre("stuck: worker 0 with pid 100 has not ended: the guardian does not "
                          "confirm that it sent SIGKILL"));
  Machine other;
  other.feed(Start{1});
  other.feed(Started{0, 100, other.now});
  other.feed(Stop{SIGKILL, Duration::zero(), SignalScope::kGroup});
  other.feed(KillSent{100});
  EXPECT_THAT(other.wait(kKillTimeout),
              ElementsAre("stuck: worker 0 with pid 100 still lives after SIGKILL; process 100 "
                          "belongs to another user, and SIGKILL to it was refused"));
}

TEST(WorkerGroupMachine, SignalForOneWorkerNamesIt) {
  Machine group;
  group.enter(GroupState::kRunning);
  EXPECT_THAT(group.feed(Forward{SIGUSR1, SignalScope::kLeader, 1}),
              ElementsAre("signal 10 leaders to 1"));
}

// --- Forks that fail for lack of processes -------------------------------------------------------

TEST(WorkerGroupMachine, RefusedForkIsTriedAgainAfterAPauseThatGrowsAndIsToldOnce) {
  Machine group;
  group.feed(Start{2, seconds(60)});
  EXPECT_THAT(group.feed(refused(0)), ElementsAre("delayed 0"));
  EXPECT_THAT(group.feed(refused(1)), IsEmpty());
  EXPECT_THAT(group.wait(kRetryPauseFirst - Duration(1)), IsEmpty());
  EXPECT_THAT(group.wait(Duration(1)), ElementsAre("start again 0", "start again 1"));
  EXPECT_THAT(group.feed(Started{0, 100, group.now}), ElementsAre("started 0"));
  EXPECT_THAT(group.feed(refused(1)), IsEmpty());
  EXPECT_EQ(group.machine.next_deadline(), group.now + 2 * kRetryPauseFirst);
  EXPECT_THAT(group.wait(2 * kRetryPauseFirst), ElementsAre("start again 1"));
  EXPECT_THAT(group.feed(Started{1, 101, group.now}), ElementsAre("started 1"));
  EXPECT_FALSE(group.machine.next_deadline());
}

TEST(WorkerGroupMachine, RefusedForkIsAFailureWhenTheStartTimeoutHasPassed) {
  Machine group;
  group.feed(Start{1, seconds(60)});
  group.feed(refused(0));
  EXPECT_THAT(group.wait(seconds(60) - Duration(1)), ElementsAre("start again 0"));
  EXPECT_THAT(group.feed(refused(0)), IsEmpty());
  EXPECT_THAT(group.wait(Duration(1)), ElementsAre("exited 0", "sweep"));
}

TEST(WorkerGroupMachine, StopEndsTheWaitForAProcess) {
  Machine group;
  group.feed(Start{2, seconds(60)});
  group.feed(Started{0, 100, group.now});
  group.feed(refused(1));
  EXPECT_THAT(group.feed(Stop{SIGTERM, seconds(30), SignalScope::kGroup}),
              ElementsAre("exited 1", "signal 15 stop", "signal 18 stop"));
  Machine all;
  all.feed(Start{1, seconds(60)});
  all.feed(refused(0));
  EXPECT_THAT(all.feed(Stop{SIGTERM, seconds(30), SignalScope::kGroup}),
              ElementsAre("exited 0", "sweep"));
}

TEST(WorkerGroupMachine, InvalidGuardianMessageClosesTheLink) {
  const GroupEvent impossible[] = {
      Started{0, 100, Instant{}},  // a second time
      Started{2, 100, Instant{}},  // no such worker
      Started{-1, 100, Instant{}},
      exited(1),       // not started yet
      not_started(0),  // but it was
      exited(9),
  };
  for (const GroupEvent& event : impossible) {
    Machine group;
    group.enter(GroupState::kRunning);
    EXPECT_THAT(group.feed(event), ElementsAre("abandon"));
  }
}

TEST(WorkerGroupMachine, WorkersThatHaveNotStartedInTimeAreCancelledOnce) {
  Machine group;
  group.feed(Start{2, seconds(60)});
  group.feed(Started{0, 100, group.now});
  EXPECT_THAT(group.wait(seconds(60) - Duration(1)), IsEmpty());
  EXPECT_THAT(group.wait(Duration(1)), ElementsAre("cancel starts"));
  EXPECT_FALSE(group.machine.next_deadline());
  EXPECT_THAT(group.wait(std::chrono::hours(1)), IsEmpty());
  EXPECT_THAT(group.feed(not_started(1)), ElementsAre("exited 1"));
  EXPECT_THAT(group.feed(exited(0)), ElementsAre("exited 0", "sweep"));
}

TEST(WorkerGroupMachine, StartDeadlineEndsWithTheLastStart) {
  Machine group;
  group.feed(Start{2, seconds(60)});
  group.feed(Started{0, 100, group.now});
  EXPECT_EQ(group.machine.next_deadline(), group.now + seconds(60));
  group.feed(Started{1, 101, group.now});
  EXPECT_FALSE(group.machine.next_deadline()) << "workers that just run cost no timer";
}

TEST(WorkerGroupMachine, StopReplacesTheStartDeadline) {
  Machine group;
  group.feed(Start{1, seconds(60)});
  group.feed(Stop{SIGTERM, seconds(90), SignalScope::kGroup});
  EXPECT_EQ(group.machine.next_deadline(), group.now + seconds(90));
  group.feed(Started{0, 100, group.now});
  EXPECT_THAT(group.wait(seconds(90)), ElementsAre("sweep"));
}

// --- Invariants ----------------------------------------------------------------------------------

// Random valid events of a guardian, in random order, and random calls of an owner.
TEST(WorkerGroupMachine, InvariantsHoldForRandomEvents) {
  for (unsigned seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    Machine group;
    enum class Worker { kNone, kStarting, kDelayed, kRunning, kEnded };
    std::vector<Worker> workers;
    bool swept_asked = false;
    std::optional<Instant> kill_not_before;
    for (int step = 0; step < 60; ++step) {
      std::optional<GroupEvent> event;
      const std::size_t index = workers.empty() ? 0 : random() % workers.size();
      const auto rank = static_cast<int>(index);
      switch (random() % 8) {
        case 0:
          event = Start{1 + static_cast<int>(random() % 3), Duration::max(), seconds(random() % 2)};
          break;
        case 1: event = Stop{SIGTERM, seconds(1 + random() % 9), SignalScope::kGroup}; break;
        case 2: event = Forward{SIGUSR1, SignalScope::kGroup}; break;
        case 3:
          group.now += milliseconds(random() % 3000);
          event = Tick{};
          break;
        case 4:
          if (!workers.empty() && workers[index] == Worker::kStarting) {
            workers[index] = random() % 4 == 0 ? Worker::kEnded : Worker::kRunning;
            event = workers[index] == Worker::kEnded ? GroupEvent(not_started(rank))
                                                     : GroupEvent(Started{rank, 7, group.now});
          }
          break;
        case 5:
          if (!workers.empty() && workers[index] == Worker::kRunning) {
            workers[index] = Worker::kEnded;
            event = exited(rank);
          }
          break;
        case 6:
          if (swept_asked && std::count(workers.begin(), workers.end(), Worker::kEnded) ==
                                 static_cast<std::ptrdiff_t>(workers.size())) {
            event = Swept{};
          }
          break;
        case 7:
          if (!workers.empty() && workers[index] == Worker::kStarting) {
            workers[index] = Worker::kDelayed;
            event = refused(rank);
          }
          break;
      }
      if (!event) continue;
      const auto* stop = std::get_if<Stop>(&*event);
      if (stop != nullptr && group.machine.live()) {
        const Instant until = group.now + stop->grace;
        kill_not_before = kill_not_before ? std::min(*kill_not_before, until) : until;
      }
      const bool was_live = group.machine.live();
      const auto actions = group.feed(*event);
      for (const std::string& action : actions) {
        ASSERT_NE(action, "abandon");
        for (std::size_t i = 0; i < workers.size(); ++i) {
          if (action == "start again " + std::to_string(i)) {
            ASSERT_EQ(workers[i], Worker::kDelayed);
            workers[i] = Worker::kStarting;
          }
          if (action == "exited " + std::to_string(i)) workers[i] = Worker::kEnded;
        }
        if (action == "start") {
          ASSERT_FALSE(was_live) << "two live generations";
          workers.assign(static_cast<std::size_t>(std::get<Start>(*event).workers),
                         Worker::kStarting);
          swept_asked = false;
          kill_not_before.reset();
        }
        if (action == "sweep") {
          ASSERT_FALSE(swept_asked) << "two sweeps of one generation";
          const bool all_ended = std::count(workers.begin(), workers.end(), Worker::kEnded) ==
                                 static_cast<std::ptrdiff_t>(workers.size());
          ASSERT_TRUE(all_ended || (kill_not_before && group.now >= *kill_not_before));
          swept_asked = true;
        }
        if (action == "gone") {
          workers.clear();
          swept_asked = false;
        }
      }
    }
  }
}

}  // namespace
}  // namespace elastic
