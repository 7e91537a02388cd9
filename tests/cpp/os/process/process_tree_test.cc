#include "os/process/process_tree.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "support/eventually.h"

namespace elastic::os {
namespace {

class Children : public ::testing::Test {
 protected:
  void SetUp() override {
    // Forks in a thread that then ends: the child remains one of this process.
    std::string thread;
    std::thread([&] {
      thread = "/proc/self/task/" + std::to_string(::gettid());
      child_ = ::fork();
      if (child_ == 0) {
        while (true) ::pause();
      }
    }).join();
    // join() may return before its end
    EXPECT_TRUE(support::eventually([&] { return ::access(thread.c_str(), F_OK) != 0; }));
  }
  void end_child() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  pid_t child_ = -1;
};

TEST_F(Children, AreListedUntilTheyAreReapedAndByAScanToo) {
  for (const bool is_alive : {true, false}) {
    for (const auto& list : {&list_children, &list_children_by_scan}) {
      std::vector<pid_t> children;
      ASSERT_TRUE(list(&children));
      EXPECT_EQ(std::count(children.begin(), children.end(), child_), is_alive ? 1 : 0);
    }
    if (is_alive) end_child();
  }
}

// As root or with a user namespace, a child process hides /proc from itself.
TEST(ChildrenWithoutProc, AreNotListed) {
  enum Outcome { kRefused, kListed, kNotHidden };
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
      ::_exit(kNotHidden);
    ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    if (::mount("none", "/proc", "tmpfs", 0, nullptr) != 0) ::_exit(kNotHidden);
    std::vector<pid_t> children;
    ::_exit(list_children(&children) || list_children_by_scan(&children) ? kListed : kRefused);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNotHidden) GTEST_SKIP() << "/proc cannot be hidden here";
  EXPECT_EQ(WEXITSTATUS(status), kRefused);
}

TEST_F(Children, WaitIsDescribedByItsState) {
  EXPECT_THAT(describe_wait(child_), ::testing::StartsWith("state "));
  end_child();
  EXPECT_EQ(describe_wait(child_), "gone");
}

TEST(WaitOf, NamesTheFunctionOfAnUninterruptibleSleep) {
  int pipes[2];
  ASSERT_EQ(::pipe(pipes), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char byte = 0;
    // Its parent sleeps until it ends. ThreadSanitizer makes a fork of vfork().
    if (::syscall(SYS_clone, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0) == 0) {
      (void)!::read(pipes[0], &byte, 1);
      ::_exit(0);
    }
    ::_exit(0);
  }
  EXPECT_TRUE(support::eventually([&] { return wait_of(child).state == 'D'; }));
  EXPECT_TRUE(is_suspended(child));
  const std::string channel = wait_of(child).channel;
  EXPECT_NE(channel, "");
  EXPECT_THAT(channel, ::testing::MatchesRegex("[a-z0-9_.]+"));  // "0": not known
  EXPECT_EQ(::write(pipes[1], "x", 1), 1);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  ::close(pipes[0]);
  ::close(pipes[1]);
}

TEST(WaitOf, ReadsTheInnermostFunctionOfAStack) {
  EXPECT_EQ(function_of_stack("[<0>] folio_wait_bit+0x1d3/0x400\n[<0>] do_syscall_64+0x71/0x2\n"),
            "folio_wait_bit");
  EXPECT_EQ(function_of_stack("[<0>] rpc_wait_bit_killable"), "rpc_wait_bit_killable");
  for (const char* const text : {"", "\n", "[<0>]", "x\n[<0>] f+0x1/0x2\n"}) {
    EXPECT_EQ(function_of_stack(text), "") << text;
  }
}

TEST(WorkOf, CountsTheThreadsOfGlooThatLookAround) {
  const pid_t self = ::getpid();
  EXPECT_EQ(work_of({self})[0].polling_threads, 0);
  std::promise<void> over;
  std::thread loop([wait = over.get_future()] {
    ::prctl(PR_SET_NAME, "gloo_tcp_loop");
    wait.wait();
  });
  EXPECT_TRUE(support::eventually([&] { return work_of({self})[0].polling_threads == 1; }));
  over.set_value();
  loop.join();
}

// The CPU time of the thread, and the bytes of its writes, are in the sums of its process.
TEST(WorkOf, CountsTimeAndBytesOfEachProcess) {
  int pipes[2];
  ASSERT_EQ(::pipe(pipes), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char byte = 0;
    ::_exit(::read(pipes[0], &byte, 1) == 1 ? 0 : 1);
  }
  const std::vector<pid_t> pids = {::getpid(), child};
  const auto before = work_of(pids);
  const std::string megabyte(1 << 20, 'x');
  const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  EXPECT_EQ(::write(null, megabyte.data(), megabyte.size()), 1 << 20);
  ::close(null);
  const auto cpu_now = [] {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
  };
  const auto begun = cpu_now();
  while (cpu_now() - begun < std::chrono::milliseconds(100)) continue;
  const auto after = work_of(pids);
  ASSERT_EQ(after.size(), 2U);
  EXPECT_GE(after[0].cpu - before[0].cpu, std::chrono::milliseconds(80));
  EXPECT_GE(after[0].io_bytes - before[0].io_bytes, std::uint64_t{1} << 20);
  EXPECT_TRUE(after[0].is_at_work);
  EXPECT_TRUE(support::eventually([&] { return !work_of(pids)[1].is_at_work; })) << "it reads";
  EXPECT_EQ(::write(pipes[1], "x", 1), 1);
  ::waitpid(child, nullptr, 0);
  for (const int end : pipes) ::close(end);
}

}  // namespace
}  // namespace elastic::os
