#include "os/net/stream.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "os/loop/clock.h"
#include "os/loop/event_loop.h"
#include "os/loop/thread.h"

namespace elastic::os {
namespace {

constexpr auto kReplyMax = std::chrono::seconds(30);

// A stream on a separate loop that collects lines, and the other end as a blocking socket.
class StreamTest : public ::testing::Test, public Stream::Handler {
 protected:
  explicit StreamTest(const StreamLimits& limits = {}, std::size_t bytes_max = 64 << 20)
      : budget_(bytes_max), thread_(*LoopThread::start("test-stream")) {
    in_loop([&] { group_ = std::make_unique<StreamGroup>(&thread_->loop(), &budget_, limits); });
  }
  // Not in the destructor: the loop calls virtual functions of this object until its streams end.
  void TearDown() override {
    in_loop([&] {
      stream_.reset();
      group_.reset();
    });
  }

  void connect(int type = SOCK_STREAM, std::string unread = {}) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends), 0);
    peer_.reset(ends[1]);
    const timeval limit{.tv_sec = 30, .tv_usec = 0};
    ::setsockopt(peer_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    UniqueFd ours(ends[0]);
    const int flags = ::fcntl(ours.get(), F_GETFL);
    ASSERT_EQ(::fcntl(ours.get(), F_SETFL, flags | O_NONBLOCK), 0);
    in_loop([&] {
      stream_ = std::make_unique<Stream>(group_.get(), this);
      EXPECT_TRUE(stream_->start({.fd = std::move(ours), .unread = std::move(unread)}).ok());
    });
  }

  void in_loop(const std::function<void()>& work) { thread_->call(work); }
  void send(std::string_view bytes) {
    ASSERT_EQ(::send(peer_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  std::string receive() {
    std::string bytes(1 << 16, '\0');
    const ssize_t got = ::recv(peer_.get(), bytes.data(), bytes.size(), 0);
    bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return bytes;
  }
  // The end that the stream reported; nullopt: none within the limit.
  std::optional<Stream::End> wait_for_end() {
    auto future = ended_.get_future();
    if (future.wait_for(kReplyMax) != std::future_status::ready) return std::nullopt;
    return future.get();
  }

  // The reply to each line is the line itself, or the one that the test sets.
  std::size_t on_bytes(std::string_view bytes) override {
    std::size_t used = 0;
    while (!stream_->should_pause()) {
      const std::size_t end = bytes.find('\n', used);
      if (end == std::string_view::npos) break;
      const std::string_view line = bytes.substr(used, end + 1 - used);
      used = end + 1;
      ++lines_;
      stream_->turn_output()->append(answer_.empty() ? line : answer_);
    }
    return used;
  }
  void on_end(Stream::End why, int) override { ended_.set_value(why); }

  MemoryBudget budget_;
  std::string answer_;
  int lines_ = 0;
  UniqueFd peer_;
  std::promise<Stream::End> ended_;
  std::unique_ptr<LoopThread> thread_;
  std::unique_ptr<StreamGroup> group_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(StreamTest, DeliversAMessageThatArrivesByteByByteAsAWhole) {
  connect();
  for (const char c : std::string("message\n")) send(std::string_view(&c, 1));
  EXPECT_EQ(receive(), "message\n");
  in_loop([&] { EXPECT_EQ(budget_.used(), 0u) << "an idle stream holds no buffer"; });
}

TEST_F(StreamTest, SendsAllWritesOfOneIterationInOneSegment) {
  connect(SOCK_SEQPACKET);
  in_loop([&] {
    stream_->write("one ");
    stream_->write("two");
  });
  EXPECT_EQ(receive(), "one two");
}

TEST_F(StreamTest, HandlesUnreadBytesOfAConnectionThatItTakesOver) {
  connect(SOCK_STREAM, "line\nnext");
  EXPECT_EQ(receive(), "line\n");
  send(" end");
  send("\n");
  EXPECT_EQ(receive(), "next end\n");
  in_loop([&] {
    ASSERT_TRUE(stream_->can_detach());
    const DetachedStream detached = stream_->detach("rest");
    EXPECT_TRUE(detached.fd.valid());
    EXPECT_EQ(detached.unread, "rest");
    EXPECT_FALSE(stream_->is_open());
  });
}

TEST_F(StreamTest, ReportsThatThePeerHasClosed) {
  connect();
  peer_.reset();
  EXPECT_EQ(wait_for_end(), Stream::End::kClosedByPeer);
}

TEST_F(StreamTest, EndsAtItsDeadline) {
  connect();
  in_loop([&] { stream_->set_deadline(thread_->loop().now() + std::chrono::milliseconds(1)); });
  EXPECT_EQ(wait_for_end(), Stream::End::kDeadline);
  EXPECT_EQ(receive(), "") << "the connection is closed";
}

TEST_F(StreamTest, FinishSendsPendingBytesAndThenCloses) {
  connect();
  in_loop([&] {
    stream_->write("reason");
    stream_->finish(thread_->loop().now() + kReplyMax);
    EXPECT_FALSE(stream_->write("more"));
  });
  EXPECT_EQ(receive(), "reason");
  EXPECT_EQ(receive(), "");
  send("ignored\n");
  peer_.reset();
  EXPECT_TRUE(wait_for_end());
  EXPECT_EQ(lines_, 0);
}

class OutputLimitTest : public StreamTest {
 protected:
  OutputLimitTest() : StreamTest({.output_bytes_max = 4 << 20}) {}
};

TEST_F(OutputLimitTest, EndsAStreamWhosePeerDoesNotRead) {
  connect();
  in_loop([&] {
    while (stream_->write(std::string(64 << 10, 'x'))) {
    }
  });
  EXPECT_EQ(wait_for_end(), Stream::End::kOutputLimit);
}

class BudgetTest : public StreamTest {
 protected:
  BudgetTest() : StreamTest({}, 1 << 20) {}
};

TEST_F(BudgetTest, EndsAStreamThatExceedsTheBudget) {
  connect();
  in_loop([&] { EXPECT_FALSE(stream_->write(std::string(2 << 20, 'x'))); });
  EXPECT_EQ(wait_for_end(), Stream::End::kMemoryLimit);
  in_loop([&] {
    stream_.reset();
    EXPECT_EQ(budget_.used(), 0u);
  });
}

class PauseTest : public StreamTest {
 protected:
  PauseTest() : StreamTest({.pause_bytes = 256 << 10}) {}
};

TEST_F(PauseTest, RepliesToEveryMessageOfAPeerThatReadsOnlyAfterSendingAll) {
  answer_ = std::string(64 << 10, 'x');
  connect();
  constexpr int kLines = 200;
  for (int i = 0; i < kLines; ++i) send("line\n");
  std::size_t got = 0;
  while (got < kLines * answer_.size()) {
    in_loop([&] { EXPECT_LE(stream_->num_unsent(), (256u << 10) + answer_.size()); });
    const std::size_t more = receive().size();
    ASSERT_GT(more, 0u);
    got += more;
  }
  EXPECT_EQ(got, kLines * answer_.size());
}

// Streams on a loop that the test turns itself.
struct TurnedStream final : Stream::Handler {
  explicit TurnedStream(StreamGroup* group, std::string unread = {}) : stream(group, this) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    peer.reset(ends[1]);
    EXPECT_TRUE(stream.start({.fd = UniqueFd(ends[0]), .unread = std::move(unread)}).ok());
  }
  std::size_t on_bytes(std::string_view bytes) override {
    received += bytes;
    return bytes.size();
  }
  void on_sending() override {
    if (!later.empty()) stream.write(std::exchange(later, {}));
  }
  void on_end(Stream::End, int) override {}
  bool has_sent() const {
    char byte = 0;
    return ::recv(peer.get(), &byte, 1, MSG_PEEK) == 1;
  }

  UniqueFd peer;
  std::string received;
  std::string later;  // is written when it is the stream's turn to send
  Stream stream;
};

TEST(StreamGroup, SendsToSomeOfManyStreamsInEachIterationAndToAllInTheEnd) {
  const auto loop = *EventLoop::create();
  MemoryBudget budget(64 << 20);
  StreamGroup group(loop.get(), &budget, {});
  std::vector<std::unique_ptr<TurnedStream>> all;
  for (std::size_t i = 0; i < 2 * StreamGroup::kSendersPerIteration + 1; ++i) {
    all.push_back(std::make_unique<TurnedStream>(&group));
    all.back()->stream.write("news");
  }
  const auto num_sent = [&] {
    return std::count_if(all.begin(), all.end(), [](const auto& one) { return one->has_sent(); });
  };
  const auto each = static_cast<std::ptrdiff_t>(StreamGroup::kSendersPerIteration);
  for (const auto expected : {each, 2 * each, 2 * each + 1}) {
    EXPECT_TRUE(loop->turn());
    EXPECT_EQ(num_sent(), expected);
  }
  EXPECT_FALSE(loop->turn()) << "nothing is left";
}

TEST(StreamGroup, FillsTheBufferOfAStreamWhenItIsItsTurnToSend) {
  const auto loop = *EventLoop::create();
  MemoryBudget budget(64 << 20);
  StreamGroup group(loop.get(), &budget, {});
  std::vector<std::unique_ptr<TurnedStream>> all;
  for (std::size_t i = 0; i < StreamGroup::kSendersPerIteration + 1; ++i) {
    all.push_back(std::make_unique<TurnedStream>(&group));
    all.back()->later = "news";
    all.back()->stream.send_soon();
  }
  EXPECT_EQ(budget.used(), 0U);
  EXPECT_TRUE(loop->turn());
  EXPECT_TRUE(all.front()->has_sent());
  EXPECT_EQ(all.back()->later, "news");
  EXPECT_TRUE(loop->turn());
  EXPECT_TRUE(all.back()->has_sent());
  EXPECT_FALSE(loop->turn()) << "nothing is left";
}

TEST(StreamGroup, HandlesReceivedMessagesBeforeWrittenBytesAreSent) {
  const auto loop = *EventLoop::create();
  MemoryBudget budget(64 << 20);
  StreamGroup group(loop.get(), &budget, {});
  TurnedStream sender(&group);
  sender.stream.write("news");
  TurnedStream receiver(&group, "held");
  group.process_received();
  EXPECT_EQ(receiver.received, "held");
  EXPECT_FALSE(sender.has_sent());
  EXPECT_TRUE(loop->turn());
  EXPECT_TRUE(sender.has_sent());
}

}  // namespace
}  // namespace elastic::os
