#include "os/process/command.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "os/base/fd.h"

namespace elastic::os {
namespace {

using namespace std::chrono_literals;

std::string run(const std::string& command, Duration limit = 60s) {
  return run_command(command, environment_with({"ELASTIC_TEST=it's 1"}), limit);
}

TEST(RunCommand, TellsHowTheCommandEnded) {
  EXPECT_EQ(run("exit 0"), "");
  EXPECT_EQ(run("exit 3"), "exited with code 3");
  EXPECT_EQ(run("kill -9 $$"), "was killed by signal 9");
  EXPECT_EQ(run("/no/such/program 2>/dev/null"), "exited with code 127");
}

TEST(RunCommand, HasTheVariablesAndNoInput) {
  EXPECT_EQ(run("test \"$ELASTIC_TEST\" = \"it's 1\" && test -n \"$PATH\""), "");
  EXPECT_EQ(run("! read line"), "");
}

TEST(RunCommand, KillsTheProcessGroupAtTheLimit) {
  const std::string path = ::testing::TempDir() + "run_command_" + std::to_string(::getpid());
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const UniqueFd reader(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(reader.valid());
  EXPECT_EQ(run("(echo begun; exec sleep 1000) > " + path + " & wait", 2s), "was killed after 2 s");
  char text[16] = {};
  ASSERT_GT(::read(reader.get(), text, sizeof text), 0);
  // The end of file shows that no process of the group has it open.
  pollfd ready{reader.get(), POLLIN, 0};
  ASSERT_GT(::poll(&ready, 1, 60'000), 0);
  EXPECT_EQ(::read(reader.get(), text, sizeof text), 0);
  ::unlink(path.c_str());
}

}  // namespace
}  // namespace elastic::os
