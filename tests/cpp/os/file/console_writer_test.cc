#include "os/file/console_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/uio.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "os/loop/thread.h"

namespace elastic::os {
namespace {

class ConsoleWriterTest : public ::testing::Test {
 protected:
  ConsoleWriterTest() {
    int fds[2];
    EXPECT_EQ(::pipe2(fds, O_CLOEXEC), 0);
    console_.reset(fds[0]);
    console_end_.reset(fds[1]);
    auto thread = LoopThread::start("console-test");
    EXPECT_TRUE(thread.ok());
    thread_ = std::move(*thread);
    thread_->call([&] {
      auto writer = ConsoleWriter::start(&thread_->loop(), [] {});
      ASSERT_TRUE(writer.ok());
      writer_ = std::move(*writer);
    });
  }
  ~ConsoleWriterTest() override {
    thread_->call([&] { writer_.reset(); });
  }

  void push(const std::string& lines) {
    thread_->call([&] { writer_->push(console_end_.get(), lines); });
  }
  // Without waiting; "" if nothing can be read.
  std::string read_now() const {
    pollfd item{console_.get(), POLLIN, 0};
    if (::poll(&item, 1, 0) != 1) return "";
    return read_some();
  }
  std::string read_some() const {
    char bytes[65536];
    const ssize_t got = ::read(console_.get(), bytes, sizeof bytes);
    return got > 0 ? std::string(bytes, static_cast<std::size_t>(got)) : "";
  }

  UniqueFd console_;
  UniqueFd console_end_;
  std::unique_ptr<LoopThread> thread_;
  std::unique_ptr<ConsoleWriter> writer_;
};

TEST_F(ConsoleWriterTest, WritesAShortLineToAPipeBeforePushReturns) {
  char letter = 'x';
  const iovec piece{&letter, 1};
  if (::pwritev2(console_end_.get(), &piece, 1, -1, RWF_NOWAIT) != 1) {
    GTEST_SKIP() << "this kernel has no RWF_NOWAIT for pipes";
  }
  ASSERT_EQ(read_now(), "x");
  push("one\n");
  EXPECT_EQ(read_now(), "one\n");
  EXPECT_EQ(writer_->pending_bytes(), 0u);
}

TEST_F(ConsoleWriterTest, KeepsTheOrderOfLinesWhileThePipeIsFull) {
  const std::string line(ConsoleWriter::next_write(std::string(100000, 'x')), 'x');
  std::string expected;
  for (int i = 0; i < 100; ++i) {  // more than a pipe holds
    push(std::to_string(i) + line + "\n");
    push(std::to_string(i) + "\n");
    expected += std::to_string(i) + line + "\n" + std::to_string(i) + "\n";
  }
  std::string found;
  while (found.size() < expected.size()) found += read_some();
  EXPECT_EQ(found, expected);
}

}  // namespace
}  // namespace elastic::os
