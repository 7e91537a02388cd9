#include "core/workers/output_lines.h"

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
    const LineSplitter::Sink sink = [&](std::string_view text, char terminator) {
      lines.push_back(std::string(text) + terminator);
    };
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
  const LineSplitter::Sink sink = [&](std::string_view text, char) {
    sizes.push_back(text.size());
  };
  LineSplitter splitter;
  splitter.feed(std::string(2 * kMax + 5, 'x'), sink);
  splitter.feed("\n", sink);
  constexpr std::size_t kMark = LineSplitter::kContinuation.size();
  EXPECT_THAT(sizes, ElementsAre(kMax, kMax, 5 + 2 * kMark)) << "every rest begins with the mark";
}

// The lines of pieces that arrive with pauses in between.
std::vector<std::string> lines_with_pauses(const std::vector<std::string_view>& pieces) {
  std::vector<std::string> lines;
  const LineSplitter::Sink sink = [&](std::string_view text, char terminator) {
    lines.push_back(std::string(text) + terminator);
  };
  LineSplitter splitter;
  for (const std::string_view piece : pieces) {
    splitter.feed(piece, sink);
    splitter.pause(sink);
  }
  splitter.flush(sink);
  return lines;
}

TEST(LineSplitter, PassesOnAnUnfinishedLineAfterAPauseAndMarksItsRest) {
  EXPECT_THAT(lines_with_pauses({"loss=", "1.5\nnext\n"}), ElementsAre("loss=\n",
                                                                       "\xE2\x80\xA6"
                                                                       "1.5\n",
                                                                       "next\n"));
  EXPECT_THAT(lines_with_pauses({"Continue? ", "\nnext\n"}), ElementsAre("Continue? \n", "next\n"))
      << "an empty rest is no line";
  EXPECT_THAT(lines_with_pauses({"whole\n", "tail"}), ElementsAre("whole\n", "tail\n"));
}

TEST(LineSplitter, CutsNoCharacter) {
  const std::string mark(LineSplitter::kContinuation);
  EXPECT_THAT(lines_with_pauses({"a\xE2\x82",
                                 "\xAC"
                                 "b\n"}),
              ElementsAre("a\n", mark + "\xE2\x82\xAC"
                                        "b\n"));
  EXPECT_THAT(lines_with_pauses({"\xE2", "\x82\xAC\n"}), ElementsAre("\xE2\x82\xAC\n"));
  EXPECT_THAT(lines_with_pauses({"a\xE2"}), ElementsAre("a\n", mark + "\xE2\n"))
      << "at the end nothing is lost";
  std::vector<std::string> lines;
  std::string text = "x";
  while (text.size() <= LineSplitter::kLineBytesMax) text += "\xC3\xA9";
  LineSplitter splitter;
  splitter.feed(text, [&](std::string_view line, char) { lines.emplace_back(line); });
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0], text.substr(0, LineSplitter::kLineBytesMax - 1));
}

TEST(LineSplitter, KeepsAProgressBarOnItsRowAfterAPause) {
  EXPECT_THAT(lines_with_pauses({"\r10%", "\r20%", "\r30%\ndone\n"}),
              ElementsAre("10%\r", "20%\r", "30%\n", "done\n"));
  EXPECT_THAT(lines_with_pauses({"10%\r", "20%\r", "\n"}), ElementsAre("10%\r", "20%\r", "\n"));
}

std::string expand_prefix(std::string_view text) {
  std::string out;
  const PrefixValues values{"trainer", "9", "1", "node3", "2"};
  LinePrefix(text, values).append_to(&out, "12:00");
  return out;
}

TEST(LinePrefix, ReplacesTheVariablesItKnows) {
  EXPECT_EQ(expand_prefix("[${role_name}${local_rank}]:"), "[trainer1]:");
  EXPECT_EQ(expand_prefix("$rank/$local_rank "), "9/1 ");
  EXPECT_EQ(expand_prefix("${hostname}.${round} "), "node3.2 ");
  EXPECT_EQ(expand_prefix("${time} $time|"), "12:00 12:00|");
  EXPECT_EQ(expand_prefix(""), "");
}

TEST(LinePrefix, LeavesEverythingElse) {
  EXPECT_EQ(expand_prefix("$$ $ ${x} $x ${rank ${"), "$ $ ${x} $x ${rank ${");
  EXPECT_EQ(expand_prefix("${ranks}$ $times"), "${ranks}$ $times");
}

}  // namespace
}  // namespace elastic::core
