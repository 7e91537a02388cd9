// The log of elastic-coordinator.

#include "coordinator/line_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <string>

#include "host/workers/worker_group_harness.h"
#include "os/base/fd.h"

namespace elastic::coordinator {
namespace {

// poll() reports that the terminal can be written while it has less space than a line needs, and
// then the write blocks.
TEST(LineWriter, EndsThoughTheTerminalIsNotRead) {
  const os::UniqueFd screen(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_EQ(::unlockpt(screen.get()), 0);
  char name[64];
  ASSERT_EQ(::ptsname_r(screen.get(), name, sizeof name), 0);
  const int side = ::open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);  // not closed: see LineWriter
  auto lines = *LineWriter::start(side);
  for (int i = 0; i < 200; ++i) lines->write(std::string(1000, 'x'));
  auto ended = std::async(std::launch::async, [&] { lines.reset(); });
  const Duration limit = support::generous_deadline() - os::monotonic_now();
  const bool has_ended = ended.wait_for(limit) == std::future_status::ready;
  EXPECT_TRUE(has_ended);
  while (!has_ended && ended.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    char bytes[4096];
    ASSERT_GT(::read(screen.get(), bytes, sizeof bytes), 0);
  }
}

TEST(LineWriter, WritesWhatIsPendingBeforeItEnds) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const os::UniqueFd reader(ends[0]);
  os::UniqueFd writer(ends[1]);
  {
    const auto lines = *LineWriter::start(writer.get());
    lines->write("first");
    lines->write("second");
  }
  writer.reset();
  char bytes[256];
  const ssize_t got = ::read(reader.get(), bytes, sizeof bytes);
  const std::string text(bytes, static_cast<std::size_t>(got > 0 ? got : 0));
  EXPECT_NE(text.find(" first\n"), std::string::npos) << text;
  EXPECT_NE(text.find(" second\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace elastic::coordinator
