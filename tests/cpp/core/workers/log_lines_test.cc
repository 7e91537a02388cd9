#include "core/workers/log_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace elastic::core {
namespace {

using ::testing::ElementsAre;

struct SplitCase {
  const char* name;
  std::string_view input;
  std::vector<std::string> lines;  // with the flush at the end
};

class Split : public ::testing::TestWithParam<SplitCase> {};

// The lines do not depend on how the input is split into pieces.
TEST_P(Split, GivesTheSameLinesForEveryPieceSize) {
  const SplitCase& param = GetParam();
  for (std::size_t piece = 1; piece <= param.input.size() + 1; ++piece) {
    std::vector<std::string> lines;
    const LineSplitter::Sink sink = [&](std::string_view line) { lines.emplace_back(line); };
    LineSplitter splitter;
    for (std::size_t at = 0; at < param.input.size(); at += piece) {
      splitter.feed(param.input.substr(at, piece), sink);
    }
    splitter.flush(sink);
    EXPECT_EQ(lines, param.lines) << "pieces of " << piece;
  }
}

INSTANTIATE_TEST_SUITE_P(
    LineSplitter, Split,
    ::testing::Values(
        SplitCase{"empty", "", {}}, SplitCase{"one", "a\n", {"a\n"}},
        SplitCase{"two", "a\nbc\n", {"a\n", "bc\n"}},
        SplitCase{"empty_lines", "\n\na\n", {"\n", "\n", "a\n"}},
        SplitCase{"partial_at_end", "a\nb", {"a\n", "b\n"}},
        SplitCase{"dos", "a\r\nb\r\n", {"a\n", "b\n"}},
        SplitCase{"progress", "\r10%\r20%\ndone\n", {"10%\r", "20%\n", "done\n"}},
        SplitCase{"progress_at_end", "10%\r20%\r", {"10%\r", "20%\n"}},
        SplitCase{"returns_alone", "\r\r\ra\n", {"a\n"}},
        SplitCase{"binary", std::string_view("\xff\0\xfe\n", 4), {std::string("\xff\0\xfe\n", 4)}}),
    [](const auto& test) { return test.param.name; });

TEST(LineSplitter, SplitsAVeryLongLine) {
  constexpr std::size_t kMax = LineSplitter::kLineBytesMax;
  std::vector<std::size_t> sizes;
  const LineSplitter::Sink sink = [&](std::string_view line) { sizes.push_back(line.size()); };
  LineSplitter splitter;
  splitter.feed(std::string(2 * kMax + 5, 'x'), sink);
  splitter.feed("\n", sink);
  EXPECT_THAT(sizes, ElementsAre(kMax + 1, kMax + 1, 6u));
}

TEST(LinePrefix, ReplacesTheVariablesItKnows) {
  EXPECT_EQ(expand_prefix("[${role_name}${local_rank}]:", "trainer", 9, 1), "[trainer1]:");
  EXPECT_EQ(expand_prefix("$rank/$local_rank ", "trainer", 9, 1), "9/1 ");
  EXPECT_EQ(expand_prefix("", "trainer", 9, 1), "");
}

TEST(LinePrefix, LeavesEverythingElse) {
  EXPECT_EQ(expand_prefix("$$ $ ${x} $x ${rank ${", "r", 9, 1), "$ $ ${x} $x ${rank ${");
  EXPECT_EQ(expand_prefix("${ranks}$", "r", 9, 1), "${ranks}$");
}

}  // namespace
}  // namespace elastic::core
