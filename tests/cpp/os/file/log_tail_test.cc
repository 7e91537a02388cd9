#include "os/file/log_tail.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>

#include "os/loop/event_loop.h"
#include "os/loop/thread.h"

namespace elastic::os {
namespace {

// Enough turns for the tail to find that a file is idle.
constexpr int kTurnsUntilIdle = 20;

// Follows a file, and a pipe that is written after it.
class LogTailTest : public ::testing::Test, private LogTail::Observer, private FdHandler {
 protected:
  LogTailTest() {
    int fds[2];
    EXPECT_EQ(::pipe2(fds, O_CLOEXEC), 0);
    pipe_.reset(fds[0]);
    pipe_end_.reset(fds[1]);
    std::string path = ::testing::TempDir() + "log_tail_test.XXXXXX";
    file_.reset(::mkostemp(path.data(), O_APPEND | O_CLOEXEC));
    EXPECT_TRUE(file_.valid());
    auto thread = LoopThread::start("tail-test");
    EXPECT_TRUE(thread.ok());
    thread_ = std::move(*thread);
    thread_->call([&] {
      auto tail = LogTail::create(&thread_->loop(), this);
      ASSERT_TRUE(tail.ok());
      tail_ = std::move(*tail);
      auto watch = thread_->loop().watch(pipe_.get(), EPOLLIN, this);
      ASSERT_TRUE(watch.ok());
      watch_ = std::move(*watch);
      const auto id = tail_->follow(path);
      ASSERT_TRUE(id.ok());
      id_ = *id;
    });
    ::unlink(path.c_str());
  }
  ~LogTailTest() override {
    thread_->call([&] {
      watch_.reset();
      tail_.reset();
    });
  }

  // A timer with the tail's interval fires at most once for each of its turns.
  void wait_until_idle() {
    std::promise<void> done;
    int turns = 0;
    std::unique_ptr<Timer> timer;
    const auto arm = [&] { timer->arm(thread_->loop().now() + LogTail::kReadInterval); };
    thread_->call([&] {
      timer = std::make_unique<Timer>(&thread_->loop(), [&] {
        if (++turns < kTurnsUntilIdle) return arm();
        done.set_value();
      });
      arm();
    });
    done.get_future().wait();
    thread_->call([&] { timer.reset(); });
  }
  // Writes to the file, then to the pipe, before the loop handles either; returns what the tail had
  // delivered when the loop handled the pipe. `resumes`: after the line, although it is not paused.
  std::string delivered_before_the_pipe(const std::string& line, bool resumes = false) {
    return at_next_pipe([&] {
      delivered_.clear();
      EXPECT_EQ(::write(file_.get(), line.data(), line.size()), static_cast<ssize_t>(line.size()));
      if (resumes) tail_->resume();
    });
  }
  void truncate() { ASSERT_EQ(::ftruncate(file_.get(), 0), 0); }
  void close() {
    auto closed = closed_.get_future();
    thread_->call([&] { tail_->close(id_); });
    closed.wait();
  }
  // Of all inotify instances of this process, which has one; -1: it has none.
  static int num_watches() {
    int count = -1;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      if (std::filesystem::read_symlink(entry, gone) != "anon_inode:inotify") continue;
      count = std::max(count, 0);
      std::ifstream info("/proc/self/fdinfo/" + entry.path().filename().string());
      for (std::string line; std::getline(info, line);) count += line.starts_with("inotify wd:");
    }
    return count;
  }
  // Calls the function on the loop's thread, then writes to the pipe; returns what was delivered
  // when the loop handled that.
  std::string at_next_pipe(const std::function<void()>& function = [] {}) {
    std::promise<std::string> promise;
    thread_->call([&] {
      function();
      at_pipe_ = &promise;
      EXPECT_EQ(::write(pipe_end_.get(), "x", 1), 1);
    });
    return promise.get_future().get();
  }

 private:
  void on_bytes(LogTail::FileId, std::string_view bytes) override { delivered_ += bytes; }
  void on_closed(LogTail::FileId) override { closed_.set_value(); }
  void on_ready(std::uint32_t) override {
    char byte = 0;
    EXPECT_EQ(::read(pipe_.get(), &byte, 1), 1);
    at_pipe_->set_value(delivered_);
  }

  UniqueFd pipe_;
  UniqueFd pipe_end_;
  UniqueFd file_;
  LogTail::FileId id_ = 0;
  std::string delivered_;
  std::promise<void> closed_;
  std::promise<std::string>* at_pipe_ = nullptr;
  std::unique_ptr<LoopThread> thread_;
  std::unique_ptr<LogTail> tail_;
  Watch watch_;
};

// Whoever writes the lines resumes after each write. A turn of its own for each would read a busy
// file in small pieces. The next turn may be due for another reason on a busy machine: so one of
// many attempts must show it.
TEST_F(LogTailTest, ResumingATailThatIsNotPausedCausesNoTurn) {
  bool is_left = false;
  for (int attempt = 0; attempt < 100 && !is_left; ++attempt) {
    wait_until_idle();
    ASSERT_EQ(delivered_before_the_pipe("first\n"), "first\n");
    delivered_before_the_pipe("second\n", true);
    is_left = at_next_pipe().empty();  // the timers of an iteration run after its descriptors
  }
  EXPECT_TRUE(is_left);
}

TEST_F(LogTailTest, DeliversTheFirstLineAfterAPauseInTheIterationThatReportsIt) {
  for (const std::string line : {"one\n", "two\n", "three\n"}) {
    wait_until_idle();
    EXPECT_EQ(delivered_before_the_pipe(line), line);
  }
}

// logrotate's copytruncate: the worker goes on to append to the emptied file.
TEST_F(LogTailTest, ReadsATruncatedFileFromItsBeginning) {
  wait_until_idle();
  ASSERT_EQ(delivered_before_the_pipe("a long line before\n"), "a long line before\n");
  wait_until_idle();
  truncate();
  wait_until_idle();
  EXPECT_EQ(delivered_before_the_pipe("after\n"), "after\n");
}

TEST_F(LogTailTest, AClosedFileHasNoWatch) {
  if (num_watches() < 0) GTEST_SKIP() << "there is no inotify";
  wait_until_idle();
  EXPECT_EQ(num_watches(), 1);
  close();
  EXPECT_EQ(num_watches(), 0);
}

}  // namespace
}  // namespace elastic::os
