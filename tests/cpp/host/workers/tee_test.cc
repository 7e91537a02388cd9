#include "host/workers/tee.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "host/workers/worker_group_harness.h"
#include "os/loop/thread.h"
#include "support/loop_group.h"

namespace elastic::host {
namespace {

using support::generous_deadline;
using support::ScratchDir;

// A tee on a separate loop whose console is a pipe that the test reads.
class TeeTest : public ::testing::Test {
 protected:
  explicit TeeTest(os::Clock* clock = os::real_clock()) {
    support::Pipe pipe;
    console_ = std::move(pipe.reader);
    console_end_ = std::move(pipe.writer);
    auto thread = os::LoopThread::start("tee-test", clock);
    EXPECT_TRUE(thread.ok());
    thread_ = std::move(*thread);
    thread_->call([&] {
      auto tee = Tee::create(&thread_->loop(), [this](const Status& error) {
        reported_.push_back(std::string(error.message()));
      });
      ASSERT_TRUE(tee.ok()) << tee.status().message();
      tee_ = std::move(*tee);
    });
  }
  ~TeeTest() override {
    thread_->call([&] { tee_.reset(); });
  }

  void begin(std::string prefix, bool merges_lines = false,
             Duration line_pause = std::chrono::hours(1)) {
    thread_->call([&] {
      tee_->begin_round({.prefix = std::move(prefix),
                         .values = {},
                         .merges_lines = merges_lines,
                         .ranks = {{0, 4}, {1, 5}},
                         .line_pause = line_pause});
    });
  }

  void follow_at(int console, const std::string& name) {
    append(name, "");
    thread_->call([&] { ASSERT_TRUE(tee_->follow({dir_ / name, console, 0, nullptr}).ok()); });
  }
  void follow(const std::string& name, int local_rank,
              std::shared_ptr<const LineFilter> filter = nullptr) {
    append(name, "");
    thread_->call([&] {
      const Status status =
          tee_->follow({dir_ / name, console_end_.get(), local_rank, std::move(filter)});
      ASSERT_TRUE(status.ok()) << status.message();
    });
  }
  // A file whose prefix is its name.
  void follow(const std::string& name, const std::string& prefix) {
    begin(prefix);
    follow(name, 0);
  }

  void append(const std::string& name, std::string_view bytes) {
    const os::UniqueFd file(
        ::open((dir_ / name).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    while (!bytes.empty()) {
      const ssize_t put = ::write(file.get(), bytes.data(), bytes.size());
      ASSERT_GT(put, 0);
      bytes.remove_prefix(static_cast<std::size_t>(put));
    }
  }

  // The next line on the console; "" if none arrives.
  std::string next_line() {
    while (true) {
      const std::size_t end = seen_.find('\n');
      if (end != std::string::npos) {
        std::string line = seen_.substr(0, end);
        seen_.erase(0, end + 1);
        return line;
      }
      if (!os::wait_ready(console_.get(), POLLIN, {.deadline = generous_deadline()}).ok())
        return "";
      char chunk[65536];
      const ssize_t got = ::read(console_.get(), chunk, sizeof chunk);
      if (got <= 0) return "";
      seen_.append(chunk, static_cast<std::size_t>(got));
    }
  }

  std::future<void> finish() {
    auto done = std::make_shared<std::promise<void>>();
    thread_->call([&] {
      tee_->end_round();
      tee_->finish([this, done] {
        tee_.reset();
        done->set_value();
      });
    });
    return done->get_future();
  }

  const ScratchDir dir_;
  os::UniqueFd console_;
  os::UniqueFd console_end_;
  std::string seen_;
  std::vector<std::string> reported_;
  std::unique_ptr<os::LoopThread> thread_;
  std::unique_ptr<Tee> tee_;
};

TEST_F(TeeTest, CopiesALineAsSoonAsItIsComplete) {
  follow("a", "[a]:");
  follow("b", "[b]:");
  append("a", "loss=");
  append("b", "first\n");
  EXPECT_EQ(next_line(), "[b]:first");
  append("b", "second\n");
  EXPECT_EQ(next_line(), "[b]:second") << "the half line of a waits for its other half";
  append("a", "1.23\n");
  EXPECT_EQ(next_line(), "[a]:loss=1.23");
}

TEST_F(TeeTest, CopiesEverythingAtTheEndAndTerminatesTheLastLine) {
  follow("a", "[a]:");
  std::string text;
  for (int i = 0; i < 2000; ++i) text += std::to_string(i) + "\n";
  append("a", text + "tail");
  auto done = finish();
  for (int i = 0; i < 2000; ++i) ASSERT_EQ(next_line(), "[a]:" + std::to_string(i));
  EXPECT_EQ(next_line(), "[a]:tail");
  EXPECT_EQ(done.wait_for(std::chrono::seconds(60)), std::future_status::ready);
}

TEST_F(TeeTest, CopiesAnUnfinishedLineAfterAPause) {
  begin("[a]:", false, std::chrono::milliseconds(50));
  follow("a", 0);
  append("a", "Continue? ");
  EXPECT_EQ(next_line(), "[a]:Continue? ");
  append("a", "yes\n");
  EXPECT_EQ(next_line(), "[a]:\xE2\x80\xA6yes");
}

struct InVirtualTime {
  support::LoopGroup group;
};

class TeeMergeTest : public InVirtualTime, public TeeTest {
 protected:
  TeeMergeTest() : TeeTest(&group) {
    begin("[${rank} ${local_rank}] ", true);
    follow("a", 0);
    follow("b", 1);
  }
};

// Workers that were started before their first round have no rank in it.
TEST_F(TeeTest, LinesHaveTheRanksOfTheRoundThatTheirWorkersAreIn) {
  const auto round_of = [](std::map<int, int> ranks) {
    return TeeRound{.prefix = "[${rank}]", .values = {}, .ranks = std::move(ranks)};
  };
  thread_->call([&] { tee_->begin_round(round_of({{0, -1}})); });
  follow("a", 0);
  append("a", "early\n");
  EXPECT_EQ(next_line(), "[?]early");
  thread_->call([&] { tee_->continue_round(round_of({{0, 3}})); });
  append("a", "late\n");
  EXPECT_EQ(next_line(), "[3]late");
}

// It merges what comes within 200 ms.
TEST_F(TeeMergeTest, MergesALineOfTwoWorkers) {
  append("a", "ready\nonly a\n");
  group.advance(std::chrono::milliseconds(100));
  append("b", "ready\n");
  group.advance(std::chrono::seconds(1));
  EXPECT_EQ(next_line(), "[4-5 0-1] ready");
  EXPECT_EQ(next_line(), "[4 0] only a");
  append("b", "end");
  finish();
  group.advance(std::chrono::seconds(1));
  EXPECT_EQ(next_line(), "[5 1] end");
}

TEST_F(TeeTest, AFilterDecidesAboutWholeLines) {
  const auto filter = std::make_shared<const LineFilter>(LineFilter{{"loss"}, dir_ / "filtered"});
  begin("", false, std::chrono::milliseconds(1));
  follow("a", 0, filter);
  append("a", "lo");
  EXPECT_EQ(next_line(), "lo");
  const std::string line = "loss" + std::string(300'000, 'x');
  append("a", "ss=1\n" + line + "\nlast loss");
  auto done = finish();
  EXPECT_EQ(next_line(), "\xE2\x80\xA6ss=1");
  for (std::size_t got = 0; got < line.size();) {
    const std::string piece = next_line();
    ASSERT_NE(piece, "");
    got += piece.size();
  }
  EXPECT_EQ(done.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_EQ(support::read_all(dir_ / "filtered"), "loss=1\n" + line + "\nlast loss\n");
}

TEST_F(TeeTest, ReportsOnceThatAConsoleCannotBeWritten) {
  const os::UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  begin("");
  follow_at(full.get(), "a");
  for (const char* line : {"1\n", "2\n"}) append("a", line);
  finish().wait();
  EXPECT_EQ(reported_, std::vector<std::string>{
                           "cannot write the lines of workers to stdout: No space left on device"});
}

// A file that stays unread until its writer pauses would miss the writes after the pause.
TEST_F(TeeTest, ReportsOnceThatTheFileOfAFilterCannotBeWritten) {
  const std::string path = dir_ / "missing/filtered";
  begin("");
  follow("a", 0, std::make_shared<const LineFilter>(LineFilter{{"loss"}, path}));
  for (const std::string line : {"loss 1", "loss 2"}) {
    append("a", line + "\n");
    EXPECT_EQ(next_line(), line);
  }
  finish().wait();
  EXPECT_EQ(reported_, std::vector{"cannot write " + path + ": No such file or directory"});
}

TEST_F(TeeTest, ReadsAFileThatGrowsInBursts) {
  follow("a", "");
  for (int burst = 0; burst < 20; ++burst) {
    for (int i = 0; i < 20; ++i) append("a", std::to_string(burst * 20 + i) + "\n");
    for (int i = 0; i < 20; ++i) ASSERT_EQ(next_line(), std::to_string(burst * 20 + i));
  }
}

// Two files of 8 MiB, far more than pipe and queue hold, and a reader that begins late: the files
// keep the rest, and every line is copied completely and in the order of its file.
TEST_F(TeeTest, LosesNothingOnASlowConsole) {
  constexpr int kLines = 100000;
  const std::string filler(70, 'x');
  follow("a", "a");
  follow("b", "b");
  for (const char* name : {"a", "b"}) {
    std::string text;
    for (int i = 0; i < kLines; ++i) text += std::to_string(i) + filler + "\n";
    append(name, text);
  }
  auto done = finish();
  std::map<char, int> next;
  for (int i = 0; i < 2 * kLines; ++i) {
    const std::string line = next_line();
    ASSERT_FALSE(line.empty());
    ASSERT_EQ(line, line.substr(0, 1) + std::to_string(next[line.front()]++) + filler);
  }
  EXPECT_EQ(done.wait_for(std::chrono::seconds(60)), std::future_status::ready);
}

// The pipe and the queue hold less than what is written: the writer waits for the console.
TEST_F(TeeTest, LosesNothingOfAPipeOnASlowConsole) {
  constexpr int kLines = 40000;
  const std::string filler(70, 'x');
  begin("");
  append("a", "");
  thread_->call([&] {
    TeeStream stream{dir_ / "a", console_end_.get(), 0, nullptr, dir_ / "pipe"};
    stream.bytes_max = 100000;
    stream.files_max = 2;
    const Status status = tee_->follow(stream);
    ASSERT_TRUE(status.ok()) << status.message();
  });
  std::thread writer([&] {
    std::string text;
    for (int i = 0; i < kLines; ++i) text += std::to_string(i) + filler + "\n";
    append("pipe", text);
  });
  for (int i = 0; i < kLines; ++i) ASSERT_EQ(next_line(), std::to_string(i) + filler);
  writer.join();
  EXPECT_EQ(finish().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_NE(::access((dir_ / "pipe").c_str(), F_OK), 0) << "the pipe is removed";
  const std::string text = support::read_all(dir_ / "a");
  EXPECT_LE(text.size(), 100000u);
  EXPECT_TRUE(text.ends_with(std::to_string(kLines - 1) + filler + "\n"));
}

TEST_F(TeeTest, EndsAlthoughTheConsoleIsClosed) {
  follow("a", "");
  console_.reset();
  std::string line(200001, 'x');
  line.back() = '\n';
  append("a", line);
  EXPECT_EQ(finish().wait_for(std::chrono::seconds(60)), std::future_status::ready);
}

TEST_F(TeeTest, CanBeDestroyedWhileTheConsoleIsStuck) {
  follow("a", "");
  append("a", std::string(4000000, '\n'));
  EXPECT_EQ(next_line(), "") << "it has begun";
  thread_->call([&] { tee_.reset(); });
}

// For poll() a terminal is writable if it has space for a few bytes, but a longer write blocks
// until the terminal is read. A launcher that joins the blocked thread never ends.
TEST_F(TeeTest, CanBeDestroyedWhileATerminalIsNotRead) {
  support::Terminal terminal;
  console_ = std::move(terminal.screen);
  console_end_ = std::move(terminal.side);
  follow("a", "");
  append("a", std::string(4000000, 'x'));
  append("a", "\n");
  ASSERT_TRUE(os::wait_ready(console_.get(), POLLIN, {.deadline = generous_deadline()}).ok());
  thread_->call([&] { tee_.reset(); });
  // The blocked thread still uses the terminal, as it may use a launcher's until the process ends.
  [[maybe_unused]] const int abandoned = console_end_.release();
}

}  // namespace
}  // namespace elastic::host
