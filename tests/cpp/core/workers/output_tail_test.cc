#include "core/workers/output_lines.h"

#include <gtest/gtest.h>

#include <string>

namespace elastic::core {
namespace {

TEST(OutputTail, KeepsTheLastBytesHoweverTheyCome) {
  std::string all;
  OutputTail tail;
  for (std::size_t i = 0; i < 5000; ++i) {
    const std::string piece = std::to_string(i) + std::string(i % 97, 'x') + "\n";
    all += piece;
    tail.append(piece);
    const std::size_t kept = std::min(all.size(), OutputTail::kBytesMax);
    ASSERT_EQ(tail.bytes(), std::string_view(all).substr(all.size() - kept));
  }
  tail.append(all);
  EXPECT_EQ(tail.bytes(), std::string_view(all).substr(all.size() - OutputTail::kBytesMax));
}

TEST(LastLines, AreWholeAndWithinBothLimits) {
  EXPECT_EQ(last_lines("", 50, 100), "");
  EXPECT_EQ(last_lines("one", 50, 100), "one");
  EXPECT_EQ(last_lines("one\ntwo\n\nfour\n\n", 50, 100), "one\ntwo\n\nfour");
  EXPECT_EQ(last_lines("one\ntwo\nthree\n", 2, 100), "two\nthree");
  EXPECT_EQ(last_lines("one\ntwo\nthree\n", 50, 10), "two\nthree");
  EXPECT_EQ(last_lines("one\ntwo\nthree\n", 50, 9), "three");
  EXPECT_EQ(last_lines("one\nabcdef\n", 50, 3), "def");
}

// A terminal may take U+0080 to U+009F for commands: U+009B begins a sequence as ESC [ does.
TEST(LastLines, HaveNoControlCharacters) {
  EXPECT_EQ(last_lines("a\x07\x7f\tb\xC2\x85 c\xC2\x9B d\xC2\xA0"
                       "e\n",
                       8, 100),
            "a\tb c d\xC2\xA0"
            "e");
}

TEST(LastLines, ShortenAStackToItsFirstFrames) {
  const auto frames = [](int count, const std::string& begin, const std::string& end) {
    std::string text;
    for (int i = 0; i < count; ++i) text += begin + std::to_string(i) + end + "\n";
    return text;
  };
  const std::string cpp = frames(60, "frame #", ": f + 0x1");
  EXPECT_EQ(last_lines("what():  CUDA error\n" + cpp + "\nend\n", 8, 200),
            "what():  CUDA error\n" + frames(3, "frame #", ": f + 0x1") +
                "\xE2\x80\xA6 57 frames\n\nend");
  EXPECT_EQ(last_lines("[rank0]: x\n" + frames(5, "[rank0]: frame #", ": f"), 50, 1000),
            "[rank0]: x\n" + frames(3, "[rank0]: frame #", ": f") + "\xE2\x80\xA6 2 frames");
  EXPECT_EQ(last_lines(frames(4, "frame #", ": f"), 50, 1000) + "\n", frames(4, "frame #", ": f"));
  EXPECT_EQ(last_lines("Fatal\n" + frames(40, "  File \"t.py\", line ", " in f"), 5, 1000),
            "Fatal\n" + frames(3, "  File \"t.py\", line ", " in f") + "\xE2\x80\xA6 37 frames");
  const std::string traceback = frames(9, "  File \"t.py\", line ", ", in f");
  EXPECT_EQ(last_lines(traceback, 50, 1000) + "\n", traceback) << "an exception's";
  EXPECT_EQ(last_lines(frames(9, "keyframe #", ": f"), 50, 1000) + "\n",
            frames(9, "keyframe #", ": f"));
}

TEST(LastLines, ShowWhatATerminalWouldShow) {
  EXPECT_EQ(last_lines("10%\r50%\r100%\r\nend\r\n", 50, 100), "100%\nend");
  EXPECT_EQ(last_lines("\x1B[31mred\x1B[0m\a\tend\x1B", 50, 100), "red\tend");
}

TEST(LastLines, AreValidUtf8) {
  EXPECT_EQ(last_lines("gr\xC3\xBC\xC3\x9F", 50, 100), "gr\xC3\xBC\xC3\x9F");
  EXPECT_EQ(last_lines("a\xFF\xC3", 50, 100), "a\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(last_lines("\xED\xA0\x80", 50, 100), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(last_lines("x\xC3\xBC", 50, 1), "") << "cut between characters";
  for (std::size_t limit = 0; limit < 12; ++limit) {
    EXPECT_LE(last_lines("\xE2\x82\xAC\xE2\x82\xAC\xFF\xE2\x82\xAC", 50, limit).size(), limit);
  }
}

}  // namespace
}  // namespace elastic::core
