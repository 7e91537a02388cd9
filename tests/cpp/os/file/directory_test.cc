#include "os/file/file.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "os/file/temporary_sweep.h"

namespace elastic::os {
namespace {

namespace fs = std::filesystem;

// Sets $TMPDIR to a directory of this test while the object lives.
class OwnTmpdir {
 public:
  OwnTmpdir() {
    std::string name = ::testing::TempDir() + "directory-test-XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path = name;
    const char* before = ::getenv("TMPDIR");
    before_ = before == nullptr ? "" : before;
    ::setenv("TMPDIR", path.c_str(), 1);
  }
  ~OwnTmpdir() {
    if (before_.empty()) {
      ::unsetenv("TMPDIR");
    } else {
      ::setenv("TMPDIR", before_.c_str(), 1);
    }
    fs::remove_all(path);
  }
  fs::path path;

 private:
  std::string before_;
};

TEST(TemporaryDirectory, IsPrivateAndRemovedByItsDestructor) {
  const OwnTmpdir tmp;
  fs::path path;
  {
    const auto directory = TemporaryDirectory::create();
    ASSERT_TRUE(directory.ok()) << directory.status().message();
    path = directory->path();
    EXPECT_EQ(path.parent_path(), tmp.path);
    EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_all);
    std::ofstream(path / "file") << "x";
    fs::create_directory(path / "below");
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST(TemporaryDirectory, ErrorNamesTheDirectory) {
  const OwnTmpdir tmp;
  ::setenv("TMPDIR", "/dev/null/tmp", 1);
  const auto directory = TemporaryDirectory::create();
  ASSERT_FALSE(directory.ok());
  EXPECT_NE(directory.status().message().find("/dev/null/tmp"), std::string_view::npos)
      << directory.status().message();
}

TEST(TemporaryDirectory, WithoutADescriptorNamesTheCauseAndLeavesNothing) {
  const OwnTmpdir tmp;
  const pid_t child = ::fork();
  if (child == 0) {
    rlimit none{};
    ::getrlimit(RLIMIT_NOFILE, &none);
    none.rlim_cur = 0;
    ::setrlimit(RLIMIT_NOFILE, &none);
    const auto directory = TemporaryDirectory::create();
    const bool is_named =
        directory.status().message().find("cannot lock") == 0 &&
        directory.status().message().find("Too many open files") != std::string_view::npos;
    ::_exit(!directory.ok() && is_named ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(fs::is_empty(tmp.path));
}

TEST(TemporaryDirectory, CreatesNoParent) {
  const OwnTmpdir tmp;
  ::setenv("TMPDIR", (tmp.path / "missing").c_str(), 1);
  EXPECT_FALSE(TemporaryDirectory::create().ok());
  EXPECT_FALSE(fs::exists(tmp.path / "missing"));
}

TEST(TemporaryDirectory, RemovesOnlyTheDirectoriesOfKilledProcesses) {
  const OwnTmpdir tmp;
  const auto alive = TemporaryDirectory::create();
  fs::create_directory(tmp.path / "elastic-other");
  const pid_t child = ::fork();
  if (child == 0) {
    const auto left = TemporaryDirectory::create();
    ::_exit(left.ok() ? 0 : 1);  // as a kill: no destructor runs
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  const auto entries = [&] { return std::distance(fs::directory_iterator(tmp.path), {}); };
  EXPECT_EQ(entries(), 3);
  const auto next = TemporaryDirectory::create();
  EXPECT_EQ(entries(), 3) << "the killed process's is removed and the new one exists";
  EXPECT_TRUE(fs::exists(alive->path()));
  EXPECT_TRUE(fs::exists(tmp.path / "elastic-other"));
}

// Hosts may share the file system, but not its locks.
TEST(TemporaryDirectory, IsNotRemovedIfItIsOfAnotherHostOrBoot) {
  const OwnTmpdir tmp;
  const std::string own = temporary_stem();
  const fs::path of_host =
      tmp.path / ("elastic-run_other" + own.substr(own.rfind('_')) + "_AbCdEf");
  const fs::path of_boot = tmp.path / (own.substr(0, own.rfind('_')) + "_ffffffff_AbCdEf");
  const fs::path of_longer_name = tmp.path / (own + "0_AbCdEf");
  const fs::path left_here = tmp.path / (own + "_AbCdEf");
  for (const fs::path& path : {of_host, of_boot, of_longer_name, left_here}) {
    fs::create_directory(path);
  }
  const auto started = TemporaryDirectory::create();
  ASSERT_TRUE(started.ok()) << started.status().message();
  EXPECT_EQ(started->path().find((tmp.path / own).string() + "_"), 0u) << started->path();
  EXPECT_TRUE(fs::exists(of_host));
  EXPECT_TRUE(fs::exists(of_boot));
  EXPECT_TRUE(fs::exists(of_longer_name));
  EXPECT_FALSE(fs::exists(left_here));
}

TEST(UniqueDirectory, CreatesParentsAndNamesThePathThatFails) {
  const OwnTmpdir tmp;
  const auto first = make_unique_directory(tmp.path / "a/b", "job");
  const auto second = make_unique_directory(tmp.path / "a/b", "job");
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(*first, *second);
  EXPECT_EQ(first->find((tmp.path / "a/b/job_").string()), 0u);
  const auto failed = make_unique_directory("/proc/self/nowhere", "job");
  ASSERT_FALSE(failed.ok());
  EXPECT_NE(std::string(failed.status().message()).find("/proc/self/nowhere"), std::string::npos);
}

// In a directory of several users another one may have made the file, or a link, first.
TEST(ReplaceFile, WritesNothingThroughAnExistingName) {
  const OwnTmpdir tmp;
  const fs::path victim = tmp.path / "victim";
  std::ofstream(victim) << "kept";
  fs::create_symlink(victim, tmp.path / "state.new");
  ASSERT_TRUE(replace_file(tmp.path / "state", "secret").ok());
  std::string kept, written;
  std::ifstream(victim) >> kept;
  std::ifstream(tmp.path / "state") >> written;
  EXPECT_EQ(kept, "kept");
  EXPECT_EQ(written, "secret");
  EXPECT_FALSE(fs::is_symlink(tmp.path / "state"));
}

TEST(WriteNewFile, OneThatExistsIsKept) {
  const OwnTmpdir tmp;
  const std::string path = tmp.path / "record";
  EXPECT_EQ(*write_new_file(path, "first"), true);
  EXPECT_EQ(*write_new_file(path, "second"), false);
  EXPECT_EQ(**read_file(path, 100), "first");
  EXPECT_FALSE(fs::exists(path + ".new"));
  EXPECT_FALSE(write_new_file(tmp.path / "missing" / "record", "first").ok());
}

TEST(IsOnNetwork, OnlyWhatIsKnownToBeLocalIsNot) {
  EXPECT_FALSE(is_on_network("/proc/self/status"));
  EXPECT_FALSE(is_on_network("/no/such/file"));
  EXPECT_TRUE(is_on_network("/sys/kernel"));  // not in the list
}

}  // namespace
}  // namespace elastic::os
