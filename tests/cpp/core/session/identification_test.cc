// Which server answers at an address, by its reply.

#include "core/session/identification.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "elastic/agent.h"

namespace elastic::session {
namespace {

using namespace std::string_view_literals;
using Server = Identification::Server;
using testing::HasSubstr;

struct ReplyCase {
  std::string_view reply;
  bool has_token;
  Server server;
  const char* says;  // why there is no session
  bool is_foreign;   // the process is no coordinator
};

constexpr ReplyCase kReplies[] = {
    {"\r\n\r\n\0"sv, false, Server::kCoordinator, "", false},
    {"\r\n\r\n\0\0"sv, true, Server::kCoordinator, "", false},
    {"\r\n\r\n\1"sv, false, Server::kPlainStore, "p is a plain TCPStore", true},
    {"\r\n\r\n\1\1"sv, true, Server::kPlainStore, "p is a plain TCPStore", true},
    {"\r\n\r\n\0\1"sv, true, Server::kWithoutToken, "p has no token, and this node has one (file)",
     false},
    {"HTTP/1.1"sv, false, Server::kForeign, "p speaks another protocol and is not a coordinator",
     true},
    {"\r\n\r\n\2"sv, false, Server::kForeign, "it sent \".....\"", true},
    {"\r\n\r\n\0\2"sv, true, Server::kForeign, "it sent", true},
};

TEST(Identification, IsMadeByTheReplyAndEndsWhereTheSessionBegins) {
  for (const ReplyCase& one : kReplies) {
    SCOPED_TRACE(one.says);
    Identification whole(one.has_token);
    const std::size_t used = whole.receive(std::string(one.reply) + "session");
    EXPECT_LE(used, one.has_token ? 6U : 5U);
    EXPECT_EQ(whole.server(), one.server);
    Identification bytewise(one.has_token);
    for (std::size_t i = 0; i < used; ++i) {
      EXPECT_THAT(bytewise.server(), testing::AnyOf(Server::kUnknown, one.server));
      EXPECT_EQ(bytewise.receive(one.reply.substr(i, 1)), 1U);
    }
    EXPECT_EQ(bytewise.server(), one.server);
    if (one.server == Server::kCoordinator) continue;
    const auto failure = whole.rejection("p", "file");
    EXPECT_THAT(failure.why.message(), HasSubstr(one.says));
    EXPECT_EQ(failure.why.code(), StatusCode::kPeerViolation);
    EXPECT_EQ(failure.exit_code, kExitRejected);
    EXPECT_EQ(failure.is_foreign, one.is_foreign);
  }
}

TEST(Identification, AForeignServerIsKnownByItsFirstWrongByte) {
  Identification foreign(false);
  foreign.receive("\r\nX");
  EXPECT_EQ(foreign.server(), Server::kForeign);
}

TEST(Identification, TheSecondQuestionIsOnlySentWithAToken) {
  const std::string plain = Identification(false).request();
  const std::string with_token = Identification(true).request();
  EXPECT_TRUE(with_token.starts_with(plain));
  EXPECT_GT(with_token.size(), plain.size());
  EXPECT_THAT(plain, HasSubstr("\r\n\r\n")) << "servers of line-based protocols reply to it";
}

}  // namespace
}  // namespace elastic::session
