#include "os/net/local_socket.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "os/file/file.h"

namespace elastic::os {
namespace {

using testing::HasSubstr;

class LocalSocketTest : public ::testing::Test {
 protected:
  LocalSocketTest() : directory_(TemporaryDirectory::create()) {
    EXPECT_TRUE(directory_.ok());
    path_ = directory_->path() + "/job.sock";
  }
  std::optional<mode_t> mode() const {
    struct stat found {};
    if (::stat(path_.c_str(), &found) != 0) return std::nullopt;
    return found.st_mode & 0777;
  }

  Result<TemporaryDirectory> directory_;
  std::string path_;
};

TEST_F(LocalSocketTest, IsForItsUserOnlyAndRemovedAtTheEnd) {
  {
    auto listener = LocalListener::open(path_);
    ASSERT_TRUE(listener.ok()) << listener.status().message();
    EXPECT_EQ(mode(), 0600u);
    const auto client = connect_local(path_);
    ASSERT_TRUE(client.ok());
    UniqueFd accepted;
    EXPECT_EQ(listener->accept(&accepted), Listener::AcceptStatus::kAccepted);
    EXPECT_EQ(listener->accept(&accepted), Listener::AcceptStatus::kEmpty);
  }
  EXPECT_EQ(mode(), std::nullopt);
  EXPECT_EQ(connect_local(path_).status().code(), StatusCode::kUnavailable);
}

TEST_F(LocalSocketTest, ASocketIsReplacedOnlyIfNobodyListens) {
  {
    auto listener = LocalListener::open(path_);
    ASSERT_TRUE(listener.ok());
    EXPECT_EQ(LocalListener::open(path_).status().code(), StatusCode::kUnavailable);
    EXPECT_TRUE(connect_local(path_).ok()) << "the second listener must not remove the first";
    // As a killed process leaves it.
    ASSERT_EQ(::link(path_.c_str(), (path_ + ".left").c_str()), 0);
  }
  ASSERT_EQ(::rename((path_ + ".left").c_str(), path_.c_str()), 0);
  EXPECT_EQ(connect_local(path_).status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(LocalListener::open(path_).ok());
}

TEST_F(LocalSocketTest, AFileThatIsNoSocketIsNotRemoved) {
  const int file = ::open(path_.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
  ASSERT_GE(file, 0);
  ::close(file);
  EXPECT_EQ(LocalListener::open(path_).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(mode(), 0644u);
}

TEST_F(LocalSocketTest, APathThatIsTooLongIsAnError) {
  const auto opened = LocalListener::open(path_ + std::string(108, 'x'));
  EXPECT_EQ(opened.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(opened.status().message()), HasSubstr("107 bytes"));
}

TEST_F(LocalSocketTest, AConnectionOfAnotherUserIsClosed) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can act as another user";
  auto listener = LocalListener::open(path_);
  ASSERT_TRUE(listener.ok());
  ASSERT_EQ(::chmod(path_.c_str(), 0666), 0);
  ASSERT_EQ(::chmod(directory_->path().c_str(), 0755), 0);
  bool is_connected = false;
  std::thread([&] {  // the system call changes the user of its thread only
    ASSERT_EQ(::syscall(SYS_setresuid, -1, 65534, -1), 0);
    is_connected = connect_local(path_).ok();
  })
      .join();
  EXPECT_TRUE(is_connected);
  UniqueFd accepted;
  EXPECT_EQ(listener->accept(&accepted), Listener::AcceptStatus::kGone);
  EXPECT_FALSE(accepted.valid());
}

}  // namespace
}  // namespace elastic::os
