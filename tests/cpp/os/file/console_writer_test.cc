#include "os/file/console_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <string>

#include "os/base/fd.h"
#include "os/loop/thread.h"
#include "support/eventually.h"

namespace elastic::os {
namespace {

constexpr std::size_t kPendingMax = 1 << 20;

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
      auto writer =
          ConsoleWriter::start(&thread_->loop(), kPendingMax, [this] { has_space_.set_value(); });
      ASSERT_TRUE(writer.ok());
      writer_ = std::move(*writer);
    });
  }
  ~ConsoleWriterTest() override {
    thread_->call([&] { writer_.reset(); });
  }

  void push(const std::string& lines) { push(console_end_, lines); }
  void push(const UniqueFd& fd, const std::string& lines) {
    thread_->call([&] { writer_->push(fd.get(), lines); });
  }
  void wait_until_written() const {
    ASSERT_TRUE(support::eventually([&] { return writer_->pending_bytes() == 0; }));
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
  std::string read_bytes(std::size_t count) const {
    std::string found;
    while (found.size() < count) found += read_some();
    return found;
  }

  UniqueFd console_;
  UniqueFd console_end_;
  std::promise<void> has_space_;
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
  push("first\n");  // the thread finds out that it is a pipe
  ASSERT_EQ(read_bytes(6), "first\n");
  wait_until_written();
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
  EXPECT_EQ(read_bytes(expected.size()), expected);
}

// Other processes have the open file, too.
TEST_F(ConsoleWriterTest, WritesToAFileAtItsOffset) {
  const UniqueFd file(::memfd_create("console", MFD_CLOEXEC));
  for (const std::string line : {"one\n", "two\n"}) {
    push(file, line);
    wait_until_written();
    ASSERT_EQ(::write(file.get(), "other\n", 6), 6);
  }
  char bytes[64];
  const ssize_t got = ::pread(file.get(), bytes, sizeof bytes, 0);
  ASSERT_GT(got, 0);
  EXPECT_EQ(std::string(bytes, static_cast<std::size_t>(got)), "one\nother\ntwo\nother\n");
}

// A frozen or full disk blocks a write, however local it is.
TEST_F(ConsoleWriterTest, LeavesEveryWriteToAFileToItsThread) {
  // Write calls of the calling thread.
  const auto num_writes = [] {
    std::ifstream counters("/proc/thread-self/io");
    std::string name;
    long value = -1;
    while (counters >> name >> value && name != "syscw:") {
    }
    return name == "syscw:" ? value : -1;
  };
  if (num_writes() < 0) GTEST_SKIP() << "this kernel does not count the writes of a thread";
  const UniqueFd file(::open(testing::TempDir().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  ASSERT_TRUE(file.valid());
  push(file, "first\n");  // the thread finds out that it is a file
  wait_until_written();
  long before = 0;
  long after = 0;
  std::string lines = "first\n";
  for (int i = 0; i < 100; ++i) {
    thread_->call([&] {
      before = num_writes();
      writer_->push(file.get(), std::to_string(i) + "\n");
      after = num_writes();
    });
    EXPECT_EQ(after, before);
    lines += std::to_string(i) + "\n";
    if (i % 10 == 0) wait_until_written();
  }
  wait_until_written();
  std::string found(lines.size() + 1, '\0');
  const ssize_t got = ::pread(file.get(), found.data(), found.size(), 0);
  ASSERT_GE(got, 0);
  found.resize(static_cast<std::size_t>(got));
  EXPECT_EQ(found, lines);
}

TEST_F(ConsoleWriterTest, ReportsSpaceAfterTooMuchWasPending) {
  auto reported = has_space_.get_future();
  std::size_t pushed = 0;
  thread_->call([&] {
    const std::string line = std::string(50000, 'x') + "\n";
    for (; !writer_->is_full(); pushed += line.size()) writer_->push(console_end_.get(), line);
  });
  EXPECT_GT(pushed, kPendingMax);
  EXPECT_NE(reported.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  read_bytes(pushed);
  reported.wait();
  thread_->call([&] { EXPECT_FALSE(writer_->is_full()); });
}

TEST_F(ConsoleWriterTest, FinishesWhenTheLastLineIsWritten) {
  const std::string much(200000, 'x');
  std::promise<void> done;
  push(much);
  thread_->call([&] { writer_->finish([&] { done.set_value(); }); });
  push(much);
  auto finished = done.get_future();
  thread_->call([&] { writer_->close_input(); });
  EXPECT_NE(finished.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  read_bytes(2 * much.size());
  finished.wait();
  EXPECT_EQ(writer_->pending_bytes(), 0u);
}

}  // namespace
}  // namespace elastic::os
