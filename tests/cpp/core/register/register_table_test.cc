// The table of responses as docs/rendezvous.md shows it, and the rules that the page names.

#include "core/register/register_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

namespace elastic::reg {
namespace {

std::string page() {
  std::ifstream file(ELASTIC_TEST_DOCS "rendezvous.md");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string table_text() {
  std::string text = "| node is |";
  for (const std::string_view message : kMessageNames) text += " " + std::string(message) + " |";
  text += "\n|---|";
  for (std::size_t i = 0; i < kMessages; ++i) text += "---|";
  text += "\n";
  for (std::size_t role = 0; role < kRoles; ++role) {
    text += "| " + std::string(kRoleNames[role]) + " |";
    for (std::size_t message = 0; message < kMessages; ++message) {
      const Response response = response_to(static_cast<Role>(role), message);
      text += " " + std::string(kResponseNames[static_cast<std::size_t>(response)]) + " |";
    }
    text += "\n";
  }
  return text;
}

TEST(RegisterTable, ThePageShowsTheTable) {
  EXPECT_THAT(page(), testing::HasSubstr(table_text())) << "put this into docs/rendezvous.md:\n"
                                                        << table_text();
}

TEST(RegisterTable, ThePageHasEveryRuleThatATestDeletes) {
  const std::string text = page();
  for (const std::string_view name : kRuleNames) {
    EXPECT_THAT(text, testing::HasSubstr("`" + std::string(name) + "`"));
  }
}

}  // namespace
}  // namespace elastic::reg
