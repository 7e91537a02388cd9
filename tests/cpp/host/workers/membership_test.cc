// Workers that keep their process over a change of rounds. The tests act as the guardian.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>

#include "elastic/worker.h"
#include "guardian/channel.h"
#include "host/workers/membership_harness.h"
#include "host/workers/supervisor.h"
#include "os/loop/thread.h"
#include "worker/channel_name.h"

namespace elastic::guardian {
namespace {

using support::Gate;
using support::Guardian;
using support::join;
using support::kNow;
using support::left_round;
using support::next_round;
using support::set_left_round;
using support::wait_until_over;

// ---- Rounds.

TEST(Membership, WorkerLeavesItsRoundAndIsGivenTheNext) {
  Guardian guardian([] {
    if (!join()) return 1;
    elastic_worker_progress(40);
    wait_until_over();
    elastic_worker_progress(41);
    if (elastic_worker_round() != 3) return 2;
    elastic_worker_leave_round();
    elastic_worker_leave_round();
    if (next_round() != "A=1,B=,") return 3;
    if (elastic_worker_round() != 4 || elastic_worker_round_is_over() != 0) return 4;
    elastic_worker_progress(7);
    wait_until_over();
    return next_round() == "gone" ? 0 : 5;
  });
  ASSERT_TRUE(guardian.next(Mark::kMember));
  guardian.cut(3);
  ASSERT_TRUE(guardian.next(Mark::kLeft, 41));
  EXPECT_TRUE(guardian.channel().is_reporting());
  guardian.worker().seen_step = 41;
  guardian.worker().takes_part = true;
  guardian.channel().set_tentative_stop(50);
  ASSERT_TRUE(guardian.give(4));
  EXPECT_FALSE(guardian.channel().is_reporting());
  EXPECT_EQ(guardian.worker().seen_step, -1);
  EXPECT_EQ(guardian.worker().progressed, kNow);
  EXPECT_FALSE(guardian.worker().takes_part);
  while (!guardian.channel().is_reporting()) ASSERT_TRUE(guardian.is_quiet());
  EXPECT_EQ(guardian.channel().first_step(), 7);
  guardian.cut(4);
  ASSERT_TRUE(guardian.next(Mark::kLeft, 7));
  guardian.channel() = Channel();
  EXPECT_EQ(guardian.exit_code(), 0);
}

// Else the worker would begin another step of a round that is over.
TEST(Membership, WorkerThatWaitsAtAStepGoesOnWhenItsRoundIsOver) {
  const Gate gate;
  Guardian guardian([gate] {
    if (!join()) return 1;
    gate.wait();
    for (int step = 1; step < 9; ++step) {
      if (elastic_worker_should_stop(step) != 0) return 2;
      if (elastic_worker_round_is_over() != 0)
        return step == 3 && next_round() == "A=1,B=," ? 0 : 3;
    }
    return 4;
  });
  ASSERT_TRUE(guardian.next(Mark::kMember));
  guardian.channel().set_tentative_stop(3);
  gate.open();
  while (guardian.channel().waits_at() != 3) ASSERT_TRUE(guardian.is_quiet());
  guardian.cut(3);
  ASSERT_TRUE(guardian.next(Mark::kLeft, 3));
  ASSERT_TRUE(guardian.give(4));
  EXPECT_EQ(guardian.exit_code(), 0);
}

TEST(Membership, CutsOfEarlierRoundsAndRepeatedOnesChangeNothing) {
  Guardian guardian([] {
    if (!join()) return 1;
    wait_until_over();
    if (next_round() != "A=1,B=,") return 2;
    elastic_worker_progress(1);
    wait_until_over();
    return elastic_worker_round() == 5 && next_round() == "C=2," ? 0 : 3;
  });
  ASSERT_TRUE(guardian.next(Mark::kMember));
  guardian.cut(3);
  guardian.cut(3);
  guardian.cut(2);
  ASSERT_TRUE(guardian.next(Mark::kLeft));
  EXPECT_TRUE(guardian.channel().send_cut(3));  // as if it had been delayed
  ASSERT_TRUE(guardian.give(5));
  EXPECT_TRUE(guardian.channel().send_cut(3));
  EXPECT_TRUE(guardian.channel().send_cut(4));
  guardian.cut(4);
  while (!guardian.channel().is_reporting()) ASSERT_TRUE(guardian.is_quiet());
  ASSERT_TRUE(guardian.channel().send_round(4, {"D=1"}));  // of an earlier round
  ASSERT_TRUE(guardian.channel().send_round(6, {"C=2"}));
  EXPECT_EQ(guardian.exit_code(), 0);
}

TEST(Membership, WorkerThatHasLeftBeforeTheCutIsReportedAtOnce) {
  Guardian guardian([] {
    if (!join()) return 1;
    elastic_worker_progress(9);
    elastic_worker_leave_round();
    return elastic_worker_round_is_over() == 1 && next_round() == "gone" ? 0 : 2;
  });
  ASSERT_TRUE(guardian.next(Mark::kMember));
  while (!guardian.channel().has_left(3)) ASSERT_TRUE(guardian.is_quiet());
  guardian.cut(3);
  ASSERT_TRUE(guardian.next(Mark::kLeft, 9));
  guardian.channel() = Channel();
  EXPECT_EQ(guardian.exit_code(), 0);
}

TEST(Membership, CutWaitsForAWorkerThatJoinsLater) {
  const Gate gate;
  Guardian guardian([gate] {
    if (elastic_worker_open() != 1) return 1;
    gate.wait();
    if (!join()) return 2;
    wait_until_over();
    elastic_worker_leave_round();
    return 0;
  });
  guardian.cut(3);
  EXPECT_TRUE(guardian.is_quiet());
  gate.open();
  ASSERT_TRUE(guardian.next(Mark::kMember));
  ASSERT_TRUE(guardian.next(Mark::kLeft));
  EXPECT_EQ(guardian.exit_code(), 0);
}

// The next round may end before the worker has begun it.
TEST(Membership, RoundThatIsCutBeforeItsBeginIsLeftToo) {
  Guardian guardian([] {
    if (!join()) return 1;
    elastic_worker_leave_round();
    // Both packets have arrived when the round is asked for.
    while (left_round() != 5) continue;
    return next_round() == "C=2," && elastic_worker_round() == 5 ? 0 : 3;
  });
  ASSERT_TRUE(guardian.next(Mark::kMember));
  guardian.cut(3);
  ASSERT_TRUE(guardian.next(Mark::kLeft));
  ASSERT_TRUE(guardian.give(4));
  guardian.cut(4);
  ASSERT_TRUE(guardian.next(Mark::kLeft));
  ASSERT_TRUE(guardian.give(5, {"C=2"}));
  EXPECT_EQ(guardian.exit_code(), 0);
}

// A worker that was started before its first round, which has number 0.
TEST(Membership, WorkerWaitsForItsFirstRound) {
  Guardian guardian([] {
    ::setenv("ELASTIC_AWAITS_ROUND", "1", 1);
    if (elastic_worker_open() != 1 || elastic_worker_join_membership() != 1) return 1;
    if (elastic_worker_round_is_over() != 0) return 2;
    if (next_round() != "A=1,B=," || elastic_worker_round() != 0) return 3;
    if (elastic_worker_round_is_over() != 0) return 4;
    elastic_worker_progress(7);
    wait_until_over();
    return next_round() == "C=2," && elastic_worker_round() == 1 ? 0 : 5;
  });
  ASSERT_TRUE(guardian.next(Mark::kMember));
  ASSERT_TRUE(guardian.next(Mark::kLeft));
  EXPECT_TRUE(guardian.is_quiet()) << "reported once";
  ASSERT_TRUE(guardian.give(0));
  while (!guardian.channel().is_reporting()) ASSERT_TRUE(guardian.is_quiet());
  guardian.cut(0);
  ASSERT_TRUE(guardian.next(Mark::kLeft, 7));
  ASSERT_TRUE(guardian.give(1, {"C=2"}));
  EXPECT_EQ(guardian.exit_code(), 0);
}

TEST(Membership, BufferThatIsTooSmallTakesNothing) {
  Guardian guardian([] {
    if (!join()) return 1;
    char out[5] = "xxxx";
    int bytes = 0;
    while (bytes == 0) bytes = elastic_worker_wait_for_round(out, 4, 1000);
    if (bytes != 7 || std::string(out) != "xxxx" || elastic_worker_round() != 3) return 2;
    return next_round() == "A=1,B=," ? 0 : 3;
  });
  ASSERT_TRUE(guardian.next(Mark::kMember));
  ASSERT_TRUE(guardian.give(4));
  EXPECT_EQ(guardian.exit_code(), 0);
}

TEST(Membership, LongestVariablesArrive) {
  const std::string longest = "A=" + std::string(ELASTIC_WORKER_ROUND_BYTES - 3, 'x');
  Guardian guardian([&] { return join() && next_round() == longest + "," ? 0 : 1; });
  ASSERT_TRUE(guardian.next(Mark::kMember));
  ASSERT_TRUE(guardian.give(4, {longest}));
  EXPECT_EQ(guardian.exit_code(), 0);
}

// ---- Through a guardian process.

TEST(Membership, SupervisorPassesRoundsToItsWorkers) {
  auto thread = *os::LoopThread::start("test-agent");
  std::unique_ptr<host::Supervisor> supervisor;
  std::promise<void> ended;
  std::string seen;
  Status refused[4];
  // Two workers: each is cut, and given the next round, when both have done the step before.
  const auto on_mark = [&](const MarkEvent& mark) {
    static const char* const kNames[] = {"opened ", "first ", "member ", "left "};
    seen += kNames[static_cast<std::size_t>(mark.mark)];
    if (mark.mark == Mark::kFirstStep || mark.mark == Mark::kLeft) {
      seen += std::to_string(mark.step) + " ";
    }
    const auto count = [&](const std::string& text) {
      std::size_t found = 0;
      for (auto at = seen.find(text); at != seen.npos; at = seen.find(text, at + 1)) ++found;
      return found;
    };
    if (mark.mark == Mark::kFirstStep && count("first 20 ") == 2) supervisor->cut(2);
    if (mark.mark == Mark::kFirstStep && count("first 30 ") == 2) supervisor->cut(3);
    if (mark.mark == Mark::kLeft && count("left 20 ") == 2 && count("left 30 ") == 0) {
      refused[0] = supervisor->continue_round(3, {{"A=1"}});
      refused[1] = supervisor->continue_round(3, {{"A=1"}, {std::string("A=\0", 3)}});
      refused[2] = supervisor->continue_round(3, {{"A=1"}, {}});
      EXPECT_TRUE(supervisor->continue_round(3, {{"A=1"}, {"A=2"}}).ok());
    }
    if (mark.mark == Mark::kLeft && count("left 30 ") == 2) {
      EXPECT_TRUE(supervisor->continue_round(4, {{"LAST=1"}, {"LAST=1"}}).ok());
    }
  };
  thread->call([&] {
    WorkerGroupOptions options;
    options.guardian_path = ELASTIC_TEST_GUARDIAN;
    supervisor = *host::Supervisor::create(&thread->loop(), options, [&](const WorkerEvent& event) {
      if (event.kind == WorkerEvent::Kind::kExited) {
        seen += "exit " + std::to_string(event.exit.code) + " ";
      }
      if (event.kind == WorkerEvent::Kind::kGroupEnded) ended.set_value();
    });
    supervisor->watch(std::chrono::hours(1), {}, on_mark);
    WorkerCommand command;
    command.argv = {ELASTIC_TEST_CHANNEL_WORKER, "member"};
    command.env = {"ELASTIC_ROUND=2"};
    command.has_channel = true;
    refused[3] = supervisor->continue_round(2, {{"A=1"}});
    EXPECT_TRUE(supervisor->start({command, command}).ok());
  });
  ended.get_future().wait();
  thread->call([&] { supervisor.reset(); });
  for (const Status& status : refused) EXPECT_FALSE(status.ok());
  EXPECT_EQ(seen.substr(seen.find("exit")), "exit 0 exit 0 ");
}

// ---- What may go wrong.

TEST(Membership, WorkerThatDoesNotReadItsSocketNeverDelaysTheGuardian) {
  Guardian guardian([] {
    if (elastic_worker_open() != 1) return 1;
    const char member = worker::kMember;
    for (int fd = 3; fd < 64; ++fd) ::send(fd, &member, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (true) ::pause();
  });
  ASSERT_TRUE(guardian.next(Mark::kMember));
  while (guardian.channel().send_cut(3)) continue;
  guardian.cut(3);
  EXPECT_TRUE(guardian.is_quiet());
  EXPECT_FALSE(guardian.give(4));
  EXPECT_LT(guardian.channel().socket(), 0);  // the worker finds the end of the channel
}

TEST(Membership, GarbageOfAWorkerHarmsNobodyElse) {
  Guardian guardian([] {
    if (!join()) return 1;
    for (int i = 0; i < 500; ++i) {
      set_left_round(static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15);
      elastic_worker_stacks_written();
    }
    set_left_round(4);
    elastic_worker_page_in_use->step = INT64_MIN;
    elastic_worker_stacks_written();
    return next_round() == "gone" ? 0 : 2;
  });
  ASSERT_TRUE(guardian.next(Mark::kMember));
  guardian.cut(3);
  ASSERT_TRUE(guardian.next(Mark::kLeft));
  guardian.channel() = Channel();
  EXPECT_EQ(guardian.exit_code(), 0);
}

TEST(Membership, ClosedDescriptorIsTheEndOfTheChannelAndNeverAnotherFile) {
  Guardian guardian([] {
    if (!join()) return 1;
    int other[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, other) != 0) return 2;
    // Every number that may be the channel's is now the other socket.
    const int first = ::fcntl(other[0], F_DUPFD, 20);
    const int second = ::fcntl(other[1], F_DUPFD, 20);
    for (int fd = 3; fd < 20; ++fd) ::dup2(first, fd);
    elastic_worker_leave_round();
    elastic_worker_stacks_written();
    char byte = 0;
    const bool is_silent = ::recv(second, &byte, 1, 0) < 0 && errno == EAGAIN;
    return is_silent && next_round() == "gone" ? 0 : 3;
  });
  ASSERT_TRUE(guardian.next(Mark::kMember));
  while (!guardian.channel().has_left(3)) continue;
  guardian.channel().send_cut(3);  // wakes the thread
  EXPECT_EQ(guardian.exit_code(), 0);
}

// A wrapper that has joined and has ended; then another process opens the channel.
TEST(Membership, NextOwnerOfTheChannelBeginsAnew) {
  const Gate gate;
  Guardian guardian([gate] {
    if (::fork() == 0) {
      if (!join()) ::_exit(1);
      elastic_worker_leave_round();
      ::_exit(0);
    }
    int status = 0;
    ::wait(&status);
    gate.wait();
    if (status != 0 || elastic_worker_open() != 1) return 1;
    elastic_worker_progress(2);
    if (!join()) return 2;
    wait_until_over();
    elastic_worker_leave_round();
    return 0;
  });
  ASSERT_TRUE(guardian.next(Mark::kMember));
  EXPECT_TRUE(guardian.is_quiet());
  gate.open();
  ASSERT_TRUE(guardian.next(Mark::kMember));
  EXPECT_FALSE(guardian.channel().has_left(3));
  guardian.cut(3);
  ASSERT_TRUE(guardian.next(Mark::kLeft, 2));
  EXPECT_EQ(guardian.exit_code(), 0);
}

TEST(Membership, WorkerThatHasEndedIsGivenNothing) {
  Guardian guardian([] { return join() ? 0 : 1; });
  ASSERT_TRUE(guardian.next(Mark::kMember));
  EXPECT_EQ(guardian.exit_code(), 0);
  guardian.worker().ended = true;
  guardian.cut(3);
  EXPECT_TRUE(guardian.is_quiet());
  EXPECT_FALSE(guardian.give(4));
}

TEST(Membership, ThreadBlocksAllSignals) {
  Guardian guardian([] {
    if (!join()) return 1;
    while (true) {  // the thread gives itself its name
      for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
        std::ifstream status(task.path() / "status");
        std::string line;
        std::getline(status, line);
        if (line.find("elastic-member") == line.npos) continue;
        while (std::getline(status, line) && line.rfind("SigBlk", 0) != 0) continue;
        // All but SIGKILL, SIGSTOP, and those of the C library.
        const auto mask = std::stoull(line.substr(line.find(':') + 1), nullptr, 16);
        return (mask & 0x7ffbfeff) == 0x7ffbfeff ? 0 : 2;
      }
    }
  });
  EXPECT_EQ(guardian.exit_code(), 0);
}

}  // namespace
}  // namespace elastic::guardian
