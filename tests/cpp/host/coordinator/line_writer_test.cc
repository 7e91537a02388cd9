// The log of elastic-coordinator.

#include "coordinator/line_writer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <future>
#include <string>

#include "host/workers/worker_group_harness.h"

namespace elastic::coordinator {
namespace {

// poll() reports that the terminal can be written while it has less space than a line needs, and
// then the write blocks.
TEST(LineWriter, EndsThoughTheTerminalIsNotRead) {
  support::Terminal terminal;
  auto lines = *LineWriter::start(terminal.side.release());  // see LineWriter
  for (int i = 0; i < 200; ++i) lines->write(std::string(1000, 'x'));
  auto ended = std::async(std::launch::async, [&] { lines.reset(); });
  const Duration limit = support::generous_deadline() - os::monotonic_now();
  const bool has_ended = ended.wait_for(limit) == std::future_status::ready;
  EXPECT_TRUE(has_ended);
  while (!has_ended && ended.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    char bytes[4096];
    ASSERT_GT(::read(terminal.screen.get(), bytes, sizeof bytes), 0);
  }
}

TEST(LineWriter, WritesWhatIsPendingBeforeItEnds) {
  support::Pipe pipe;
  {
    const auto lines = *LineWriter::start(pipe.writer.get());
    lines->write("first");
    lines->write("second");
  }
  pipe.writer.reset();
  char bytes[256];
  const ssize_t got = ::read(pipe.reader.get(), bytes, sizeof bytes);
  const std::string text(bytes, static_cast<std::size_t>(got > 0 ? got : 0));
  EXPECT_NE(text.find(" first\n"), std::string::npos) << text;
  EXPECT_NE(text.find(" second\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace elastic::coordinator
