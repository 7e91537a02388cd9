#include "core/base/text.h"

#include <gtest/gtest.h>

namespace elastic::core {
namespace {

TEST(ShellQuote, QuotesWhatTheShellWouldChange) {
  EXPECT_EQ(shell_quote("train-7_b.2"), "train-7_b.2");
  EXPECT_EQ(shell_quote("10.0.0.1:29400"), "10.0.0.1:29400");
  EXPECT_EQ(shell_quote(""), "''");
  EXPECT_EQ(shell_quote("my job"), "'my job'");
  EXPECT_EQ(shell_quote("$(reboot);`x`"), "'$(reboot);`x`'");
  EXPECT_EQ(shell_quote("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_quote("~\\\n*"), "'~\\\n*'");
}

}  // namespace
}  // namespace elastic::core
