// Sweeps under difficult conditions.

#include <errno.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <fstream>
#include <string>

#include "host/workers/worker_group_harness.h"
#include "support/eventually.h"

namespace elastic {
namespace {

using std::chrono::seconds;
using support::Fifo;
using support::Group;
using support::ScratchDir;
using support::stub;
using Kind = WorkerEvent::Kind;

// A limit on processes that the test can set for the guardian: a cgroup with the pids controller,
// if this process may create one.
class PidsLimit {
 public:
  PidsLimit() : folder_("/sys/fs/cgroup/pids/elastic-test-" + std::to_string(::getpid())) {
    is_there_ = ::mkdir(folder_.c_str(), 0755) == 0;
  }
  PidsLimit(const PidsLimit&) = delete;
  PidsLimit& operator=(const PidsLimit&) = delete;
  ~PidsLimit() {
    // A guardian without an agent may not have exited yet.
    EXPECT_TRUE(!is_there_ ||
                support::eventually([this] { return ::rmdir(folder_.c_str()) == 0; }));
  }
  bool set(const std::string& limit) const { return write("pids.max", limit); }
  bool add(pid_t pid) const { return write("cgroup.procs", std::to_string(pid)); }

 private:
  bool write(const std::string& name, const std::string& text) const {
    std::ofstream file(folder_ + "/" + name);
    file << text << std::flush;
    return file.good();
  }
  const std::string folder_;
  bool is_there_ = false;
};

class Sweep : public ::testing::Test {
 protected:
  // Starts a worker that prints "ready"; stores its pid and that of its guardian.
  void start(WorkerCommand command) { start(std::move(command), &output_); }
  void start(WorkerCommand command, Fifo* output) {
    command.stdout_path = output->path();
    group_.start({std::move(command)});
    const std::string ready = output->next_line().value_or("");
    ASSERT_EQ(std::sscanf(ready.c_str(), "ready %d %d", &worker_, &guardian_), 2) << ready;
  }
  // The same with two hundred processes that replace themselves, each in a new session: a listed
  // process has ended before the signal arrives. They exit after 40 s, so if they end earlier the
  // sweep killed them. A cgroup keeps them from filling the process table.
  void start_replicating() {
    Fifo output(dir_ / "before");
    start(stub({"pause"}), &output);
    if (!limit_.set("4000") || !limit_.add(guardian_)) return;
    group_->stop(SIGKILL, Duration::zero());
    group_.wait_for_gone();
    is_limited_ = true;
    start(stub({"replicate", "200", "40"}));
  }
  const ScratchDir dir_;
  const PidsLimit limit_;
  bool is_limited_ = false;
  Fifo output_{dir_ / "out"};
  Group group_;
  pid_t worker_ = -1;
  pid_t guardian_ = -1;
};

TEST_F(Sweep, EndsProcessesThatReplaceThemselves) {
  start_replicating();
  if (!is_limited_) GTEST_SKIP() << "no control group of the pids controller can be made here";
  group_->stop(SIGKILL, Duration::zero());
  group_.wait_for_gone();
  EXPECT_TRUE(output_.wait_for_end());
}

TEST_F(Sweep, EndsThemAfterTheAgentHasEnded) {
  start_replicating();
  if (!is_limited_) GTEST_SKIP() << "no control group of the pids controller can be made here";
  group_.destroy();
  EXPECT_TRUE(output_.wait_for_end());
}

// A debugger prevents the reaping of the dead worker, so the sweep cannot end.
TEST_F(Sweep, GuardianContinuesItsSweepWhenItsAgentEnds) {
  start(stub({"pause"}));
  if (::ptrace(PTRACE_SEIZE, worker_, nullptr, nullptr) != 0) {
    GTEST_SKIP() << "ptrace is not allowed here: errno " << errno;
  }
  const os::UniqueFd guardian(static_cast<int>(::syscall(SYS_pidfd_open, guardian_, 0)));
  ASSERT_TRUE(guardian.valid());
  group_.destroy();  // the owner waits for a limited time
  EXPECT_FALSE(os::wait_ready(guardian.get(), POLLIN, {.deadline = os::monotonic_now()}).ok())
      << "the guardian was killed";
  EXPECT_EQ(::waitpid(worker_, nullptr, __WALL), worker_);  // the debugger releases it
  EXPECT_TRUE(
      os::wait_ready(guardian.get(), POLLIN, {.deadline = support::generous_deadline()}).ok());
}

long voluntary_switches(pid_t process) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string word; status >> word;) {
    long number = 0;
    if (word == "voluntary_ctxt_switches:" && status >> number) return number;
  }
  return 0;
}

// poll fails at once, every time, with more items than RLIMIT_NOFILE allows.
TEST_F(Sweep, GuardianWhosePollFailsKeepsServingWithoutABusyLoop) {
  start(stub({"pause"}));
  const rlimit two{2, 2};
  ASSERT_EQ(::prlimit(guardian_, RLIMIT_NOFILE, &two, nullptr), 0);
  group_->forward(0);  // wakes the guardian, whose next poll fails
  EXPECT_EQ(group_.wait_for(Kind::kStarted).pid, worker_);
  // It sleeps each time: only what waits leaves its processor by itself.
  const long before = voluntary_switches(guardian_);
  EXPECT_TRUE(support::eventually([&] { return voluntary_switches(guardian_) > before + 10; }));
  group_->stop(SIGTERM, seconds(60));
  EXPECT_EQ(group_.wait_for_exit().signal, SIGTERM);
  group_.wait_for_gone();
}

TEST(ProcessLimit, DelaysAStartUntilThereIsAProcessAgain) {
  const ScratchDir dir;
  const PidsLimit limit;
  Group group;
  Fifo first(dir / "first");
  WorkerCommand command = stub({"pause"});
  command.stdout_path = first.path();
  group.start({command});
  int guardian = 0;
  ASSERT_EQ(std::sscanf(first.next_line().value_or("").c_str(), "ready %*d %d", &guardian), 1);
  if (!limit.set("1") || !limit.add(guardian)) GTEST_SKIP() << "cannot make a control group";
  group->stop(SIGTERM, seconds(60));
  group.wait_for_gone();
  group.passed.clear();

  command.stdout_path = dir / "second";
  group.start({command});
  const WorkerEvent delayed = group.wait_for(Kind::kStartDelayed);
  EXPECT_EQ(delayed.exit.error, EAGAIN);
  EXPECT_THAT(delayed.message, ::testing::HasSubstr("the limit of processes is reached"));
  ASSERT_TRUE(limit.set("max"));
  EXPECT_GT(group.wait_for(Kind::kStarted).pid, 0);
  EXPECT_TRUE(group.passed.empty()) << "the worker failed";
  group->stop(SIGTERM, seconds(60));
  group.wait_for_gone();
  group.destroy();
}

}  // namespace
}  // namespace elastic
