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
  event.id = static_cast<std::uint32_t>(rank);
  event.exit.kind = ExitKind::kExited;
  event.exit.code = code;
  return event;
}

Ended not_started(int rank) {
  Ended event;
  event.id = static_cast<std::uint32_t>(rank);
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

const std::string kStuckText = "stuck: worker 0 with pid 100, worker 1 still lives after SIGKILL";

struct Outcome {
  std::vector<std::string> actions;
  std::optional<GroupState> next = {};  // no value: the same as before
};

// What a reaction does with two workers, of which the first runs.
Outcome outcome_of(GroupReaction reaction) {
  switch (reaction) {
    case GroupReaction::kIgnore:
    case GroupReaction::kRefuse:
    case GroupReaction::kShorten:
    case GroupReaction::kNoteKill:
    case GroupReaction::kExpire: return {};
    case GroupReaction::kBegin: return {{"start"}, GroupState::kRunning};
    case GroupReaction::kSignalAll:
      return {{"signal 15 stop", "signal 18 stop"}, GroupState::kStopping};
    case GroupReaction::kForward: return {{"signal 10 leaders"}};
    case GroupReaction::kRunning: return {{"started 1"}};
    case GroupReaction::kEnded: return {{"exited 0"}};
    case GroupReaction::kSweep: return {{"sweep"}, GroupState::kSweeping};
    case GroupReaction::kGuardianLost: return {{"lost: x"}, GroupState::kLost};
    case GroupReaction::kGone:  // a worker has not ended
    case GroupReaction::kProtocolError: return {{"abandon"}};
  }
  return {};
}

const char* to_string(GroupState state) {
  constexpr std::array<const char*, kGroupStateCount> kNames = {
      "idle", "running", "stopping", "leftovers", "sweeping", "stuck", "lost"};
  return kNames[static_cast<std::size_t>(state)];
}

const char* to_string(GroupReaction reaction) {
  constexpr std::array<const char*, static_cast<std::size_t>(GroupReaction::kProtocolError) + 1>
      kNames = {"ignore",  "reject",  "begin", "signal all",    "shorten",
                "forward", "running", "ended", "sweep",         "record kill",
                "gone",    "expire",  "fail",  "protocol error"};
  return kNames[static_cast<std::size_t>(reaction)];
}

TEST(WorkerGroupTable, EveryEdgeHasItsOutcome) {
  const GroupEvent events[] = {Start{2},
                               Stop{SIGTERM, seconds(1), SignalScope::kGroup},
                               Forward{SIGUSR1, SignalScope::kLeader},
                               Started{1, 101, Instant{}},
                               exited(0),
                               LeftoversGone{},
                               KillSent{},
                               Swept{},
                               Tick{},
                               GuardianLost{"x"}};
  ASSERT_EQ(std::size(events), kGroupEventCount);
  for (std::size_t from = 0; from < kGroupStateCount; ++from) {
    for (std::size_t event = 0; event < kGroupEventCount; ++event) {
      const auto state = static_cast<GroupState>(from);
      SCOPED_TRACE(std::string(to_string(state)) + ", event " + std::to_string(event));
      ASSERT_EQ(events[event].index(), event);
      const Outcome outcome = outcome_of(kGroupTable[from][event]);
      Machine group;
      group.enter(state);
      ASSERT_EQ(group.machine.state(), state);
      EXPECT_EQ(group.feed(events[event]), outcome.actions);
      EXPECT_EQ(group.machine.state(), outcome.next.value_or(state));
      EXPECT_EQ(group.accepted, kGroupTable[from][event] != GroupReaction::kRefuse);
    }
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

TEST(WorkerGroupMachine, StuckReportNamesWhatIsLeftAndClaimsSigkillOnlyIfItWasSent) {
  const struct {
    bool has_exited;
    std::optional<KillSent> kill;
    const char* text;
  } cases[] = {
      {true, KillSent{}, "a process that the workers left behind still lives after SIGKILL"},
      {true, KillSent{0, false},
       "processes that the workers left behind cannot be found and killed: /proc is not mounted"},
      {false, std::nullopt,
       "worker 0 with pid 100 has not ended: the guardian does not confirm that it sent SIGKILL"},
      {false, KillSent{100},
       "worker 0 with pid 100 still lives after SIGKILL; process 100 belongs to another user, and "
       "SIGKILL to it was refused"},
  };
  for (const auto& [has_exited, kill, text] : cases) {
    Machine group;
    group.feed(Start{1});
    group.feed(Started{0, 100, group.now});
    if (has_exited) {
      group.feed(exited(0));
    } else {
      group.feed(Stop{SIGKILL, Duration::zero(), SignalScope::kGroup});
    }
    if (kill) group.feed(*kill);
    EXPECT_THAT(group.wait(kKillTimeout), ElementsAre(std::string("stuck: ") + text));
  }
}

// --- Processes that successful workers leave running ---------------------------------------------

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
