#include "host/succession/file_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "os/file/file.h"
#include "os/loop/event_loop.h"

namespace elastic::host {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FileKeeperTest : public ::testing::Test {
 protected:
  FileKeeperTest() : folder_(*os::TemporaryDirectory::create()), path_(folder_.path() + "/state") {}

  Result<std::unique_ptr<FileKeeper>> open(const std::string& path) {
    return FileKeeper::open(
        loop_.get(), path, [this] { return state(); }, nullptr);
  }
  std::string state() const {
    std::string all;
    for (const auto& [job, content] : jobs_) {
      if (keeper_ == nullptr || !keeper_->is_releasing(job)) all += job + "=" + content + " ";
    }
    return all;
  }
  // Called back with what the file has then; the loop ends with the callback named "last".
  std::function<void()> note(const std::string& what) {
    return [this, what] {
      heard_.push_back(what + ": " + os::read_file(path_, 1000)->value());
      if (what == "last") loop_->stop();
    };
  }

  const std::unique_ptr<os::EventLoop> loop_ = *os::EventLoop::create();
  const os::TemporaryDirectory folder_;
  const std::string path_;
  std::map<std::string, std::string> jobs_ = {{"a", "1"}, {"b", "1"}};
  std::unique_ptr<FileKeeper> keeper_;
  std::vector<std::string> heard_;
};

TEST_F(FileKeeperTest, AProposalIsInForceWhenItIsInTheFile) {
  keeper_ = *open(path_);
  EXPECT_EQ(os::read_file(path_, 1000)->value(), "a=1 b=1 ");
  jobs_["a"] = "2";
  keeper_->propose("a", note("last"));
  EXPECT_TRUE(heard_.empty());
  loop_->run();
  EXPECT_THAT(heard_, ElementsAre("last: a=2 b=1 "));
}

TEST_F(FileKeeperTest, AProposalOfAJobThatIsReleasedIsLeftToItsNextKeeper) {
  keeper_ = *open(path_);
  keeper_->propose("a", note("in force"));
  keeper_->release("a", note("released"));
  keeper_->propose("a", note("too late"));
  keeper_->propose("b", note("last"));
  loop_->run();
  EXPECT_THAT(heard_, ElementsAre("released: b=1 ", "last: b=1 "));
}

// The next state is passed while the write of the first one fails.
TEST_F(FileKeeperTest, StatesThatCouldNotBeWrittenAreConfirmedInTheirOrder) {
  const std::string folder = folder_.path() + "/folder";
  std::vector<std::string> confirmed;
  std::promise<void> last;
  std::unique_ptr<StateFile> file;
  file = *StateFile::open(folder + "/state", [&](const Status&) {
    ASSERT_EQ(::mkdir(folder.c_str(), 0700), 0);
    file->put("second", [&] {
      confirmed.push_back("second");
      last.set_value();
    });
  });
  file->put("first", [&] { confirmed.push_back("first"); });
  last.get_future().get();
  file.reset();
  EXPECT_THAT(confirmed, ElementsAre("first", "second"));
  EXPECT_EQ(os::read_file(folder + "/state", 1000)->value(), "second");
}

TEST_F(FileKeeperTest, AFileThatCannotBeWrittenIsAnErrorOfTheStart) {
  const auto keeper = open(folder_.path() + "/missing/state");
  EXPECT_THAT(std::string(keeper.status().message()), HasSubstr("No such file or directory"));
}

}  // namespace
}  // namespace elastic::host
