#include "core/base/text.h"

#include <gtest/gtest.h>

#include <string>

namespace elastic::core {
namespace {

TEST(Utf8, PrintableIsValidAndWithoutControlCharacters) {
  for (const char* good : {"", "node-7", "Z\xC3\xBCrich", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"}) {
    EXPECT_TRUE(is_printable(good, Lines::kOne)) << good;
  }
  for (const char* bad :
       {"\xFF", "a\x80", "\xC3", "\xC0\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\x1B[2J", "\x7F",
        "\xC2\x9B"
        "2J",
        "a\r"}) {
    EXPECT_FALSE(is_printable(bad, Lines::kOne)) << bad;
    EXPECT_FALSE(is_printable(bad, Lines::kMany)) << bad;
  }
  EXPECT_FALSE(is_printable(std::string("a\0", 2), Lines::kMany));
  EXPECT_TRUE(is_printable("a\n\tb", Lines::kMany));
  EXPECT_FALSE(is_printable("a\nb", Lines::kOne));
}

TEST(Utf8, WhatIsMadePrintableIs) {
  EXPECT_EQ(to_printable("a\xFF"
                         "b\x1B[1m",
                         Lines::kOne, 100),
            "a\uFFFDb\uFFFD[1m");
  EXPECT_EQ(to_printable("a\nb", Lines::kMany, 100), "a\nb");
  EXPECT_EQ(to_printable("a\nb", Lines::kOne, 100), "a\uFFFDb");
  EXPECT_EQ(to_printable("a\xC2\x9B"
                         "b",
                         Lines::kMany, 100),
            "a\uFFFDb");
  EXPECT_EQ(to_printable("12\xE2\x82\xAC", Lines::kOne, 4), "12") << "no half character";
}

}  // namespace
}  // namespace elastic::core
