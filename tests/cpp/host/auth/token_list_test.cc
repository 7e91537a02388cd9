#include "host/auth/token_list.h"
#include "support/hex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace elastic::host {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kSecret = "0123456789abcdef0123456789abcdef";
constexpr const char* kOther = "another-secret-of-the-same-length";

class TokenListTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!os::check_tls().ok()) GTEST_SKIP() << os::check_tls().message();
  }
  static TokenList list(const std::string& text) {
    auto parsed = TokenList::parse(text);
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    return parsed.ok() ? *parsed : TokenList();
  }
  static std::string fault(const std::string& text) {
    return std::string(TokenList::parse(text).status().message());
  }
  // The server accepts the client that has these tokens.
  static bool accepts(const TokenList& server, const TokenList& client, const std::string& job) {
    const auto own = client.client_key(job);
    return own.ok() && server.find(own->identity) == own->key;
  }
};

TEST_F(TokenListTest, KeysAreThoseOfTheDocumentedDerivation) {
  // Computed with Python's hmac, as docs/security.md describes.
  const auto key = list(kSecret).client_key("job-1");
  ASSERT_TRUE(key.ok());
  EXPECT_EQ(key->identity, "elastic/1 node 19649c1884ce46d5 job-1");
  EXPECT_EQ(test::hex(key->key),
            "70d8536ecbdc98875e5734a6c8352fb3a27eb64c1f6fb573c0cbbded75ca7b3f");
  EXPECT_EQ(*list(kSecret).observer_token("job-1"),
            "observer-a4c94eed4ca73fa16312de11cab6afef35a6099124fe69709a5de6612ff2a6d5");
}

TEST_F(TokenListTest, SameTokenIsAcceptedAndAnotherIsNot) {
  EXPECT_TRUE(accepts(list(kSecret), list(kSecret), "job"));
  EXPECT_FALSE(accepts(list(kOther), list(kSecret), "job"));
  EXPECT_FALSE(list(kSecret).find("").has_value());
  EXPECT_FALSE(list(kSecret).find("elastic/1 node").has_value());
  EXPECT_FALSE(list(kSecret).find("elastic/2 node 0123456789abcdef job").has_value());
}

TEST_F(TokenListTest, KeyOfOneJobIsNotThatOfAnother) {
  const TokenList tokens = list(kSecret);
  const auto a = tokens.client_key("a"), b = tokens.client_key("b");
  EXPECT_NE(a->key, b->key);
  EXPECT_NE(a->identity, b->identity);
  EXPECT_EQ(read_identity(a->identity)->job_id, "a");
  EXPECT_EQ(read_identity(tokens.client_key("with blanks in it")->identity)->job_id,
            "with blanks in it");
}

TEST_F(TokenListTest, ReplacementIsAcceptedInEitherOrder) {
  const std::string first = std::string(kSecret) + "\n" + kOther + "\n";
  const std::string second = std::string(kOther) + "\n" + kSecret + "\n";
  for (const std::string& server : {first, second}) {
    EXPECT_TRUE(accepts(list(server), list(kSecret), "job"));
    EXPECT_TRUE(accepts(list(server), list(kOther), "job"));
  }
  EXPECT_TRUE(accepts(list(kSecret), list(first), "job")) << "a node uses the first line";
  EXPECT_FALSE(accepts(list(kSecret), list(second), "job"));
}

TEST_F(TokenListTest, LineWithARunIdIsForThatJobAlone) {
  const TokenList both = list(std::string("a ") + kSecret + "\n# comment\n\nb\t" + kOther + "\r\n");
  EXPECT_TRUE(accepts(both, list(kSecret), "a"));
  EXPECT_TRUE(accepts(both, list(kOther), "b"));
  EXPECT_FALSE(accepts(both, list(kOther), "a")) << "the token of job b does not open job a";
  const TokenList blanks = list(std::string(" c \t ") + kSecret + " \n");
  EXPECT_TRUE(accepts(blanks, list(kSecret), "c"));
  EXPECT_THAT(std::string(both.client_key("c").status().message()),
              HasSubstr("has no line for job c"));
}

TEST_F(TokenListTest, ObserverTokenOpensObserverSessionsOnly) {
  const TokenList job = list(kSecret);
  const std::string token = *job.observer_token("job");
  EXPECT_THAT(token, StartsWith("observer-"));
  const TokenList observer = list(token);
  EXPECT_TRUE(accepts(job, observer, "job"));
  EXPECT_EQ(read_identity(observer.client_key("job")->identity)->role, PeerRole::kObserver);
  EXPECT_EQ(read_identity(job.client_key("job")->identity)->role, PeerRole::kNode);
  EXPECT_FALSE(accepts(observer, job, "job")) << "the job's token cannot be computed from it";
  EXPECT_EQ(*observer.observer_token("job"), token);
}

TEST_F(TokenListTest, FaultsNameTheLine) {
  EXPECT_THAT(fault(""), HasSubstr("has no token"));
  EXPECT_THAT(fault("# only a comment\n\n"), HasSubstr("has no token"));
  EXPECT_THAT(fault(std::string(kSecret) + "\nshort\n"), HasSubstr("line 2 has 5 characters"));
  EXPECT_THAT(fault("observer-0123456789"), HasSubstr("is not a whole observer token"));
  EXPECT_THAT(fault(std::string(TokenList::kBytesMax + 1, 'x')), HasSubstr("is longer than"));
}

}  // namespace
}  // namespace elastic::host
