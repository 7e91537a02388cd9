// Agents whose log directory is on a file system that does not answer.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <string_view>

#include "host/agent/agent_harness.h"

namespace {

// While it is set, mkdir() of an attempt's directory waits until it is cleared.
std::atomic<bool> is_stalled{false};
std::atomic<int> stalled_calls{0};

void wait_for(std::atomic<int>& count, int wanted) {
  for (int now = count; now < wanted; now = count) count.wait(now);
}

}  // namespace

// Replaces the C library's mkdir() in this program, to simulate a file system that stalls.
extern "C" int mkdir(const char* path, mode_t mode) noexcept {
  if (std::string_view(path).find("/attempt_") != std::string_view::npos && is_stalled) {
    ++stalled_calls;
    stalled_calls.notify_all();
    is_stalled.wait(true);
  }
  return static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}

namespace elastic {
namespace {

using support::RunningAgent;
using support::ScratchDir;
using support::shell;
using ::testing::IsEmpty;
using Kind = AgentEvent::Kind;

class AgentFiles : public support::AgentsOfAJob {
 protected:
  AgentFiles() { stalled_calls = 0; }
  ~AgentFiles() override { release(); }

  static void stall() { is_stalled = true; }
  static void release() {
    is_stalled = false;
    is_stalled.notify_all();
  }

  AgentOptions node(const WorkerTemplate& worker) const {
    AgentOptions options = AgentsOfAJob::node({worker}, 2, 2);
    options.log_dir = logs_ / "logs";
    JobSettings& settings = options.rendezvous.settings;
    settings.max_restarts = 1;
    settings.node_timeout = std::chrono::seconds(6);  // for the pauses of the nodes, too
    return options;
  }

  const ScratchDir logs_;
};

// The log server stalls for longer than node_timeout when the second round opens its directories.
// Heartbeats and file work shared a thread once, and the coordinator evicted both nodes.
TEST_F(AgentFiles, StalledLogDirectoryEvictsNoNode) {
  const ScratchDir dir;
  support::Fifo fifo(dir / "fifo");
  const AgentOptions options =
      node(shell("test $TORCHELASTIC_RESTART_COUNT = 1 || {"
                 " echo up >" +
                 fifo.path() + "; exec sleep 1000; }"));
  RunningAgent a(options);
  RunningAgent b(options);
  const int pid = a.wait_for(Kind::kWorkerStarted).pid;
  b.wait_for(Kind::kWorkerStarted);
  stall();
  ::kill(pid, SIGKILL);
  wait_for(stalled_calls, 2);
  const auto end = os::monotonic_now() + std::chrono::seconds(8);
  while (auto event = a->next_event(end)) {
    EXPECT_NE(event->kind, Kind::kRoundStarting) << "its directory does not exist yet";
  }
  release();
  EXPECT_EQ(a.finish().exit_code, 0);
  EXPECT_EQ(b.finish().exit_code, 0);
  for (RunningAgent* agent : {&a, &b}) {
    for (const AgentEvent& event : agent->all(Kind::kRoundStarting)) {
      EXPECT_EQ(event.round->membership_changes, 0);
      EXPECT_LE(event.round->round, 2u) << "a round was lost to an eviction";
    }
  }
}

TEST_F(AgentFiles, StopRequestEndsTheAgentWhileItsLogDirectoryIsStalled) {
  stall();
  const AgentOptions options = node(shell("exec sleep 1000"));
  RunningAgent a(options);
  RunningAgent b(options);
  wait_for(stalled_calls, 2);
  a->request_stop(SIGTERM);
  EXPECT_EQ(a.finish().exit_code, 128 + SIGTERM);
  EXPECT_THAT(a.all(Kind::kWorkerStarted), IsEmpty());
  EXPECT_EQ(a.all(Kind::kRoundStarting).size(), 1u) << "the round is reported, though it ended";
  a.destroy();  // gives up the thread that is stuck
  release();
  b->request_stop(SIGTERM);
  EXPECT_EQ(b.finish().exit_code, 128 + SIGTERM);
}

}  // namespace
}  // namespace elastic
