#include "os/file/rotating_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "os/file/file.h"

namespace elastic::os {
namespace {

class RotatingFileTest : public ::testing::Test {
 protected:
  RotatingFileTest() {
    auto directory = TemporaryDirectory::create();
    EXPECT_TRUE(directory.ok());
    directory_ = std::make_unique<TemporaryDirectory>(std::move(*directory));
    path_ = directory_->path() + "/stdout.log";
    EXPECT_TRUE(create_file(path_).ok());
  }

  RotatingFile open(std::uint64_t bytes_max, int files_max) {
    auto file = RotatingFile::open(path_, bytes_max, files_max);
    EXPECT_TRUE(file.ok());
    return std::move(*file);
  }
  std::string content(int age) const {
    std::ifstream file(rotated_path(path_, age));
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  bool exists(int age) const {
    struct stat info {};
    return ::stat(rotated_path(path_, age).c_str(), &info) == 0;
  }

  std::string path_;

 private:
  std::unique_ptr<TemporaryDirectory> directory_;
};

TEST_F(RotatingFileTest, KeepsTheLastLinesInFilesOfTheLimitedSize) {
  RotatingFile file = open(100, 3);
  std::string written;
  for (int i = 0; i < 60; ++i) {
    const std::string line = "line " + std::to_string(i) + "\n";
    EXPECT_TRUE(file.write(line).ok());
    written += line;
  }
  EXPECT_FALSE(exists(3));
  std::string kept;
  for (int age = 2; age >= 0; --age) {
    const std::string text = content(age);
    EXPECT_LE(text.size(), 100U);
    EXPECT_TRUE(text.ends_with("\n")) << text;
    kept += text;
  }
  EXPECT_GT(kept.size(), 180U);
  EXPECT_TRUE(written.ends_with(kept)) << kept;
}

TEST_F(RotatingFileTest, SplitsAPieceOfManyLinesBetweenTwoLines) {
  RotatingFile file = open(10, 4);
  EXPECT_TRUE(file.write("one\ntwo\nthree\nfo").ok());
  EXPECT_TRUE(file.write("ur\nfive\n").ok());
  EXPECT_EQ(content(2), "one\ntwo\n");
  EXPECT_EQ(content(1), "three\nfour\n");
  EXPECT_EQ(content(0), "five\n");
}

TEST_F(RotatingFileTest, ALineLongerThanTheLimitStaysWhole) {
  RotatingFile file = open(10, 3);
  const std::string line(1000, 'x');
  EXPECT_TRUE(file.write("a\n" + line.substr(0, 500)).ok());
  EXPECT_TRUE(file.write(line.substr(500) + "\nb\n").ok());
  EXPECT_EQ(content(2), "a\n");
  EXPECT_EQ(content(1), line + "\n");
  EXPECT_EQ(content(0), "b\n");
}

TEST_F(RotatingFileTest, OutputWithoutAnyLineIsLimitedToo) {
  RotatingFile file = open(10, 2);
  const std::string piece(64 * 1024, 'x');
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(file.write(piece).ok());
  EXPECT_LE(content(0).size() + content(1).size(), 2 * (piece.size() + 10));
}

TEST_F(RotatingFileTest, ASingleFileBeginsAgain) {
  RotatingFile file = open(10, 1);
  EXPECT_TRUE(file.write("12345678\nabcd\n").ok());
  EXPECT_EQ(content(0), "abcd\n");
  EXPECT_FALSE(exists(1));
}

TEST_F(RotatingFileTest, BytesThatCannotBeWrittenAreCountedInTheFile) {
  // The limit of this process has the effect of a full disk.
  struct sigaction ignored {};
  struct sigaction saved {};
  ignored.sa_handler = SIG_IGN;
  ASSERT_EQ(::sigaction(SIGXFSZ, &ignored, &saved), 0);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  RotatingFile file = open(1000, 2);
  rlimit limit = before;
  limit.rlim_cur = 20;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const Status first = file.write("0123456789\nabcdefghij\n");  // the last two bytes do not fit
  const Status second = file.write("lost\n");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::sigaction(SIGXFSZ, &saved, nullptr);
  EXPECT_NE(std::string(first.message()).find("cannot write " + path_), std::string::npos);
  EXPECT_TRUE(second.ok()) << "reported already";
  EXPECT_TRUE(file.write("kept\n").ok());
  EXPECT_EQ(content(0),
            "0123456789\nabcdefghi\n[elastic-launch: 7 bytes could not be written here]\nkept\n");
}

}  // namespace
}  // namespace elastic::os
