#include "os/file/stream_channel.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <string_view>

#include "os/loop/event_loop.h"
#include "support/loop_group.h"

namespace elastic::os {
namespace {

// Reads one pipe.
class ChannelReaderTest : public ::testing::Test, private LogTail::Observer {
 protected:
  // `is_pausable`: as for follow().
  void open(bool is_pausable = true) {
    auto loop = EventLoop::create(&group_);
    ASSERT_TRUE(loop.ok());
    loop_ = *std::move(loop);
    LogTail::Observer* const observer = this;
    reader_ = std::make_unique<ChannelReader>(loop_.get(), observer);
    auto channel = open_pipe_channel();
    ASSERT_TRUE(channel.ok());
    writer_ = std::move(channel->writer);
    const auto id = reader_->follow(std::move(channel->reader), is_pausable);
    ASSERT_TRUE(id.ok());
    id_ = *id;
  }
  void write(std::string_view bytes) {
    EXPECT_EQ(::write(writer_.get(), bytes.data(), bytes.size()),
              static_cast<ssize_t>(bytes.size()));
  }

  support::LoopGroup group_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<ChannelReader> reader_;
  ChannelReader::ChannelId id_ = 0;
  UniqueFd writer_;
  std::string read_;
  bool is_closed_ = false;

 private:
  void on_bytes(LogTail::FileId file, std::string_view bytes) override {
    EXPECT_EQ(file, id_);
    EXPECT_FALSE(is_closed_);
    read_ += bytes;
  }
  void on_closed(LogTail::FileId file) override {
    EXPECT_EQ(file, id_);
    is_closed_ = true;
  }
};

TEST_F(ChannelReaderTest, ASecondPieceIsReadAfterTheInterval) {
  open();
  write("one\n");
  group_.settle();
  EXPECT_EQ(read_, "one\n");
  write("two\n");
  group_.settle();
  EXPECT_EQ(read_, "one\n");
  group_.advance(ChannelReader::kReadInterval);
  EXPECT_EQ(read_, "one\ntwo\n");
}

TEST_F(ChannelReaderTest, AfterAPieceOf8KiBTheNextOneIsReadAtOnce) {
  open();
  const std::string much(8 * 1024, 'x');
  write(much);
  group_.settle();
  write("next");
  group_.settle();
  EXPECT_EQ(read_, much + "next");
}

TEST_F(ChannelReaderTest, TheEndIsReportedAfterTheLastBytes) {
  open();
  write("last");
  writer_.reset();
  ASSERT_TRUE(group_.run_until([&] { return is_closed_; }));
  EXPECT_EQ(read_, "last");
}

// The end of a pipe is an event whatever is watched.
TEST_F(ChannelReaderTest, AnEndedChannelDoesNotWakeAPausedLoop) {
  open();
  reader_->pause();
  write("last");
  writer_.reset();
  group_.settle();
  EXPECT_FALSE(loop_->turn());
  EXPECT_EQ(read_, "");
  reader_->resume();
  ASSERT_TRUE(group_.run_until([&] { return is_closed_; }));
  EXPECT_EQ(read_, "last");
}

TEST_F(ChannelReaderTest, APausedReaderReadsWhatIsNotPausable) {
  open(false);
  reader_->pause();
  write("hidden\n");
  group_.settle();
  EXPECT_EQ(read_, "hidden\n");
}

TEST_F(ChannelReaderTest, CloseReadsTheRestThoughAWriterIsLeft) {
  open();
  reader_->pause();
  write("rest\n");
  reader_->close(id_);
  group_.settle();
  EXPECT_EQ(read_, "rest\n");
  EXPECT_TRUE(is_closed_);
}

}  // namespace
}  // namespace elastic::os
