// The channel between the guardian and a worker, with real processes.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "elastic/worker.h"
#include "guardian/channel.h"
#include "host/workers/forked_worker.h"
#include "host/workers/worker_group_harness.h"
#include "os/loop/wait.h"
#include "worker/channel_name.h"

namespace elastic::guardian {
namespace {

using support::ForkedWorker;
using support::wait_for_owner;

TEST(WorkerChannel, CarriesStepsAndSections) {
  Channel channel = Channel::create();
  ASSERT_TRUE(channel.valid());
  EXPECT_EQ(channel.progress().step, ELASTIC_WORKER_NO_STEP);
  ForkedWorker worker(&channel, [] {
    if (elastic_worker_open() != 1 || elastic_worker_open() != 1) return 1;
    elastic_worker_progress(7);
    elastic_worker_enter("evaluation", 1500);
    elastic_worker_enter("of the validation set\n", 0);
    elastic_worker_leave();
    return elastic_worker_should_stop(8);
  });
  EXPECT_EQ(worker.wait(), 0);
  const WorkerProgress found = channel.progress();
  EXPECT_EQ(found.step, 8);
  EXPECT_TRUE(found.in_section);
  EXPECT_EQ(found.section, "evaluation");
  EXPECT_EQ(found.section_limit, std::chrono::milliseconds(1500));
}

TEST(WorkerChannel, CarriesTheEndByAnException) {
  Channel channel = Channel::create();
  ForkedWorker worker(&channel, [] {
    elastic_worker_report_error();  // it is not open
    if (elastic_worker_open() != 1) return 1;
    elastic_worker_report_error();
    return 0;
  });
  EXPECT_EQ(worker.wait(), 0);
  channel.read_messages();
  EXPECT_TRUE(channel.take_raised());
  EXPECT_FALSE(channel.take_raised());
}

TEST(WorkerChannel, NoStopIsAgreedAtStepsThatAHookCounts) {
  Channel channel = Channel::create();
  ForkedWorker worker(&channel, [] {
    elastic_worker_count(3);  // it is not open
    if (elastic_worker_open() != 1) return 1;
    elastic_worker_count(1);
    elastic_worker_count(2);
    return elastic_worker_page_in_use->first_step == 1 ? 0 : 2;
  });
  EXPECT_EQ(worker.wait(), 0);
  channel.read_messages();
  EXPECT_TRUE(channel.is_reporting());
  EXPECT_EQ(channel.progress().step, 2);
  EXPECT_EQ(channel.own_step(), ELASTIC_WORKER_NO_STEP);
}

TEST(WorkerChannel, ScriptThatReportsAStepEndsTheCountOfTheHook) {
  Channel channel = Channel::create();
  ForkedWorker worker(&channel, [] {
    if (elastic_worker_open() != 1) return 1;
    elastic_worker_count(1);
    elastic_worker_progress(40);
    elastic_worker_count(2);
    return elastic_worker_page_in_use->first_step == 40 ? 0 : 2;
  });
  EXPECT_EQ(worker.wait(), 0);
  EXPECT_EQ(channel.progress().step, 40);
  EXPECT_EQ(channel.own_step(), 40);
}

TEST(WorkerChannel, NamesTheProcessThatOpenedIt) {
  Channel channel = Channel::create();
  ForkedWorker worker(&channel, [] {
    if (elastic_worker_open() != 1) return 1;
    while (true) ::pause();
  });
  ASSERT_TRUE(wait_for_owner(&channel));
  EXPECT_EQ(channel.owner(), worker.pid());
}

TEST(WorkerChannel, BelongsToOneLivingProcess) {
  Channel channel = Channel::create();
  ForkedWorker worker(&channel, [] {
    // A wrapper that opened the channel and has ended does not keep it.
    if (::fork() == 0) ::_exit(elastic_worker_open());
    int status = 0;
    ::wait(&status);
    if (WEXITSTATUS(status) != 1 || elastic_worker_open() != 1) return 1;
    // A child has none while its parent lives, and may call everything.
    if (::fork() == 0) {
      elastic_worker_progress(99);
      elastic_worker_enter("child", 0);
      ::_exit(elastic_worker_open() + elastic_worker_should_stop(100));
    }
    ::wait(&status);
    elastic_worker_progress(3);
    return WEXITSTATUS(status);
  });
  EXPECT_EQ(worker.wait(), 0);
  EXPECT_EQ(channel.progress().step, 3);
  EXPECT_FALSE(channel.progress().in_section);
}

TEST(WorkerChannel, IsNotOpenedWhenAnotherFileHasItsDescriptor) {
  Channel channel = Channel::create();
  const auto [memory, socket] = channel.inherited();
  const int replaced = memory;
  ForkedWorker worker(&channel, [replaced] {
    const int null = ::open("/dev/null", O_RDWR);
    ::dup2(null, replaced);
    const int opened = elastic_worker_open();
    elastic_worker_progress(5);
    return opened;
  });
  EXPECT_EQ(worker.wait(), 0);
  EXPECT_EQ(channel.progress().step, ELASTIC_WORKER_NO_STEP);
}

TEST(WorkerChannel, DescriptorsAreNotInheritedByWhatTheWorkerExecutes) {
  Channel channel = Channel::create();
  const auto [memory, socket] = channel.inherited();
  ForkedWorker worker(&channel, [memory = memory, socket = socket] {
    ::fcntl(memory, F_SETFD, 0);
    ::fcntl(socket, F_SETFD, 0);
    if (elastic_worker_open() != 1) return 1;
    return ::fcntl(memory, F_GETFD) == FD_CLOEXEC && ::fcntl(socket, F_GETFD) == FD_CLOEXEC ? 0 : 2;
  });
  EXPECT_EQ(worker.wait(), 0);
}

TEST(WorkerChannel, StaysReadableWhateverTheWorkerWritesAndWheneverItDies) {
  std::mt19937 random(1);
  for (int i = 0; i < 60; ++i) {
    Channel channel = Channel::create();
    ASSERT_TRUE(channel.valid());
    ForkedWorker worker(&channel, [i] {
      if (elastic_worker_open() != 1) return 1;
      std::mt19937 bytes(static_cast<unsigned>(i));
      for (std::int64_t step = 0;; ++step) {
        elastic_worker_progress(step);
        elastic_worker_enter(step % 2 == 0 ? "first" : "second", step);
        elastic_worker_leave();
        if (i % 2 == 0) continue;
        auto* const garbage = reinterpret_cast<unsigned char*>(elastic_worker_page_in_use);
        for (int k = 0; k < 64; ++k) garbage[bytes() % 4096] = static_cast<unsigned char>(bytes());
        const char message = static_cast<char>(bytes());
        ::send(static_cast<int>(bytes() % 16), &message, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
      }
    });
    ASSERT_TRUE(wait_for_owner(&channel));
    const int readings = static_cast<int>(random() % 200);
    for (int k = 0; k <= readings; ++k) {
      if (k == readings) worker.kill();
      channel.read_messages();
      const WorkerProgress found = channel.progress();
      EXPECT_GE(found.step, ELASTIC_WORKER_NO_STEP);
      EXPECT_GE(found.section_limit, Duration::zero());
      EXPECT_LT(found.section.size(), std::size_t{ELASTIC_WORKER_SECTION_BYTES});
      for (const char byte : found.section) EXPECT_TRUE(byte >= ' ' && byte <= '~');
      if (i % 2 == 0 && !found.section.empty()) {
        EXPECT_TRUE(found.section == "first" || found.section == "second") << found.section;
      }
    }
  }
}

TEST(WorkerChannel, MemoryCannotBeTruncatedBelowTheGuardian) {
  Channel channel = Channel::create();
  const int memory = channel.inherited()[0];
  ForkedWorker worker(&channel, [memory] { return ::ftruncate(memory, 0) == 0 ? 1 : 0; });
  EXPECT_EQ(worker.wait(), 0);
  EXPECT_EQ(channel.progress().step, ELASTIC_WORKER_NO_STEP);
}

TEST(WorkerChannel, FloodOfMessagesEndsWithTheSocket) {
  Channel channel = Channel::create();
  ForkedWorker worker(&channel, [socket = channel.inherited()[1]] {
    const char message = 'x';
    while (::send(socket, &message, 1, MSG_NOSIGNAL) == 1) continue;
    return errno == EPIPE || errno == ECONNRESET ? 0 : 1;
  });
  while (channel.socket() >= 0) {
    const os::WaitLimits limits{.deadline = support::generous_deadline()};
    ASSERT_TRUE(os::wait_ready(channel.socket(), POLLIN, limits).ok());
    channel.read_messages();
  }
  EXPECT_EQ(worker.wait(), 0);
}

// A worker at full speed races with the tentative word: it either waits there, or is seen beyond
// it.
TEST(WorkerChannel, WorkerStopsAtTheStepThatItHadNotPassed) {
  for (int i = 0; i < 20; ++i) {
    Channel channel = Channel::create();
    ForkedWorker worker(&channel, [] {
      if (elastic_worker_open() != 1) return 1;
      std::int64_t step = 0;
      while (elastic_worker_should_stop(++step) == 0) continue;
      return 0;
    });
    ASSERT_TRUE(wait_for_owner(&channel));
    std::int64_t margin = 1;
    std::int64_t stop = 0;
    do {
      stop = std::max<std::int64_t>(channel.step(), 0) + margin;
      margin *= 2;
      channel.set_tentative_stop(stop);
    } while (channel.step() >= stop);
    EXPECT_LT(channel.stopped_at(), 0);
    channel.commit_stop();
    EXPECT_EQ(worker.wait(), 0);
    EXPECT_EQ(channel.stopped_at(), stop);
    EXPECT_EQ(channel.step(), stop);
  }
}

TEST(WorkerChannel, WithdrawnStepLetsTheWorkerGoOn) {
  Channel channel = Channel::create();
  channel.set_tentative_stop(5);
  ForkedWorker worker(&channel, [] {
    if (elastic_worker_open() != 1) return 1;
    for (std::int64_t step = 1; step <= 10; ++step) {
      if (elastic_worker_should_stop(step) != 0) return 2;
    }
    return 0;
  });
  while (channel.step() < 5) ASSERT_TRUE(wait_for_owner(&channel));
  channel.set_tentative_stop(ELASTIC_WORKER_NO_STEP);
  EXPECT_EQ(worker.wait(), 0);
  EXPECT_EQ(channel.stopped_at(), ELASTIC_WORKER_NO_STEP);
}

TEST(WorkerChannel, CallsHaveNoEffectWithoutALauncher) {
  ::unsetenv(worker::kVariable);
  EXPECT_EQ(elastic_worker_open(), 0);
  elastic_worker_progress(1);
  elastic_worker_enter("section", 0);
  elastic_worker_leave();
  EXPECT_EQ(elastic_worker_should_stop(2), 0);
  EXPECT_EQ(elastic_worker_round(), 0U);
  EXPECT_EQ(elastic_worker_is_restart(), 0);
  char out = 0;
  EXPECT_EQ(elastic_worker_join_membership(), 0);
  elastic_worker_begin_sockets();
  elastic_worker_end_sockets();
  elastic_worker_leave_round();
  EXPECT_EQ(elastic_worker_round_is_over(), 0);
  EXPECT_EQ(elastic_worker_wait_for_round(&out, 1, -1), -1);
}

TEST(WorkerChannel, VariableOfAnotherFormatIsIgnored) {
  for (const char* value : {"", "1", "1:3:1:1:4:1", "2:3:1:1:4:1:1", "1:3:1:1:4:1:1:1", "x"}) {
    worker::ChannelName name;
    EXPECT_FALSE(worker::parse(value, &name)) << value;
  }
}

// Through the guardian, with a program of C that links elastic::worker.
TEST(WorkerChannel, IsGivenToWorkersThatAskForOne) {
  support::ScratchDir scratch;
  support::Group group;
  for (const bool has_channel : {true, false}) {
    WorkerCommand command;
    command.argv = {ELASTIC_TEST_CHANNEL_WORKER};
    command.env = {"ELASTIC_CHANNEL=1:3:1:1:4:1:1", "ELASTIC_ROUND=2"};
    command.stdout_path = scratch / "out";
    command.has_channel = has_channel;
    EXPECT_TRUE(group.run(command).succeeded());
    EXPECT_EQ(support::read_all(scratch / "out"), has_channel
                                                      ? "open 1 stop 0 round 2 restart 1\n"
                                                      : "open 0 stop 0 round 2 restart 1\n");
  }
}

}  // namespace
}  // namespace elastic::guardian
