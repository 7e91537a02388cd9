// How a helper ends.

#include "os/process/spawn.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <string>

namespace elastic::os {
namespace {

// As one in a call that cannot be interrupted, a child cannot be reaped while another process
// traces it.
TEST(Spawn, AChildThatDoesNotEndIsNotWaitedFor) {
  int begin[2];
  int end[2];
  ASSERT_EQ(::pipe2(begin, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(end, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  const pid_t tracer = ::fork();
  if (tracer == 0) {
    ::close(end[1]);
    char byte = ::ptrace(PTRACE_SEIZE, child, nullptr, nullptr) == 0 ? 'y' : 'n';
    (void)!::write(begin[1], &byte, 1);
    (void)!::read(end[0], &byte, 1);
    ::_exit(0);
  }
  char is_traced = 'n';
  ASSERT_EQ(::read(begin[0], &is_traced, 1), 1);
  std::optional<std::string> early;
  if (is_traced == 'y') early = try_end_helper(child);
  ::close(end[1]);
  EXPECT_EQ(end_helper(child), "was killed by signal 9");
  EXPECT_EQ(::waitpid(tracer, nullptr, 0), tracer);
  for (const int one : {begin[0], begin[1], end[0]}) ::close(one);
  if (is_traced != 'y') GTEST_SKIP() << "no process may trace another one here";
  EXPECT_EQ(early, std::nullopt);
}

TEST(Spawn, TheEndOfAChildIsTold) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(3);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(try_end_helper(child), "exited with code 3");
}

}  // namespace
}  // namespace elastic::os
