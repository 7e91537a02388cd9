#include "os/net/tls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>

#include "os/net/tls_identity.h"

namespace elastic::os {
namespace {

using testing::HasSubstr;
using testing::Not;

TlsSession::FindKey knows(const TlsKey& key) {
  return [key](std::string_view identity) {
    return identity == kIdentity ? std::optional(key) : std::nullopt;
  };
}

// Both ends of a connection in memory.
class TlsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!check_tls().ok()) GTEST_SKIP() << check_tls().message();
    make(key_of(7), key_of(7));
  }
  void make(const TlsKey& of_client, const TlsKey& of_server) {
    client = *TlsSession::connect(std::string(kIdentity), of_client);
    server = *TlsSession::accept(knows(of_server));
  }
  // Moves what one end has written to the other. False: the receiver has failed.
  static bool pass(TlsSession* from, TlsSession* to, std::string* plain,
                   std::size_t step = 1 << 20) {
    const std::string bytes = std::exchange(from->output(), {});
    for (std::size_t at = 0; at < bytes.size(); at += step) {
      if (!to->receive(std::string_view(bytes).substr(at, step), plain)) return false;
    }
    return true;
  }
  bool shake_hands(std::size_t step = 1 << 20) {
    std::string none;
    for (int turn = 0; turn < 3; ++turn) {
      if (!pass(client.get(), server.get(), &none, step)) return false;
      if (!pass(server.get(), client.get(), &none, step)) return false;
    }
    return client->is_established() && server->is_established() && none.empty();
  }

  std::unique_ptr<TlsSession> client, server;
};

TEST_F(TlsTest, DerivesTheKeyOfTheStandard) {
  // RFC 5869, A.1: the first 32 bytes.
  const std::string secret(22, '\x0b');
  const std::string salt("\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c", 13);
  const std::string info("\xf0\xf1\xf2\xf3\xf4\xf5\xf6\xf7\xf8\xf9", 10);
  const TlsKey expected{0x3c, 0xb2, 0x5f, 0x25, 0xfa, 0xac, 0xd5, 0x7a, 0x90, 0x43, 0x4f,
                        0x64, 0xd0, 0x36, 0x2f, 0x2a, 0x2d, 0x2d, 0x0a, 0x90, 0xcf, 0x1a,
                        0x5a, 0x4c, 0x5d, 0xb0, 0x2d, 0x56, 0xec, 0xc4, 0xc5, 0xbf};
  EXPECT_EQ(*derive_key(secret, salt, info), expected);
}

TEST_F(TlsTest, EndsWithTheSameKeyExchangeBytes) {
  ASSERT_TRUE(shake_hands());
  EXPECT_EQ(server->identity(), kIdentity);
  std::string plain;
  ASSERT_TRUE(client->send("from the client"));
  EXPECT_THAT(client->output(), Not(HasSubstr("from the client")));
  ASSERT_TRUE(pass(client.get(), server.get(), &plain));
  EXPECT_EQ(plain, "from the client");
  const std::string much(100'000, 'x');
  plain.clear();
  ASSERT_TRUE(server->send(much));
  ASSERT_TRUE(pass(server.get(), client.get(), &plain));
  EXPECT_EQ(plain, much);
}

TEST_F(TlsTest, AcceptsBytesOneByOne) {
  ASSERT_TRUE(shake_hands(1));
  std::string plain;
  ASSERT_TRUE(client->send("heartbeat"));
  ASSERT_TRUE(pass(client.get(), server.get(), &plain, 1));
  EXPECT_EQ(plain, "heartbeat");
}

TEST_F(TlsTest, WrongKeyFailsOnBothEnds) {
  make(key_of(7), key_of(8));
  EXPECT_FALSE(shake_hands());
  EXPECT_FALSE(server->is_established());
  EXPECT_EQ(server->error(), TlsSession::Error::kOther);
  std::string none;
  EXPECT_FALSE(pass(server.get(), client.get(), &none)) << "the server sends an alert";
  EXPECT_EQ(client->error(), TlsSession::Error::kRejectedByPeer);
  EXPECT_FALSE(client->error_text().empty());
}

TEST_F(TlsTest, UnknownIdentityIsReportedAndRejected) {
  client = *TlsSession::connect("elastic/1 node 0123456789abcdef another", key_of(7));
  EXPECT_FALSE(shake_hands());
  EXPECT_EQ(server->error(), TlsSession::Error::kUnknownIdentity);
  std::string none;
  EXPECT_FALSE(pass(server.get(), client.get(), &none));
  EXPECT_EQ(client->error(), TlsSession::Error::kRejectedByPeer);
}

TEST_F(TlsTest, BytesThatAreNotTlsFail) {
  std::string none;
  EXPECT_FALSE(client->receive("220 mail.example.com ESMTP\r\n", &none));
  EXPECT_EQ(client->error(), TlsSession::Error::kOther);
  EXPECT_FALSE(client->receive("more", &none)) << "a failed session stays failed";
  EXPECT_FALSE(server->receive(std::string(64, '\0'), &none));
}

TEST_F(TlsTest, ReplayedConnectionIsRejected) {
  // An attacker records a whole connection and sends the client's bytes again.
  std::string recorded = client->output();
  std::string none;
  ASSERT_TRUE(pass(client.get(), server.get(), &none));
  ASSERT_TRUE(pass(server.get(), client.get(), &none));
  ASSERT_TRUE(client->send("leave"));
  recorded += client->output();
  ASSERT_TRUE(pass(client.get(), server.get(), &none));
  ASSERT_EQ(none, "leave");

  auto victim = *TlsSession::accept(knows(key_of(7)));
  none.clear();
  EXPECT_FALSE(victim->receive(recorded, &none));
  EXPECT_FALSE(victim->is_established());
  EXPECT_EQ(none, "");
}

TEST_F(TlsTest, RecordSentTwiceFails) {
  ASSERT_TRUE(shake_hands());
  ASSERT_TRUE(client->send("failed"));
  const std::string record = std::exchange(client->output(), {});
  std::string plain;
  ASSERT_TRUE(server->receive(record, &plain));
  EXPECT_FALSE(server->receive(record, &plain));
  EXPECT_EQ(plain, "failed");
}

// No changed byte of a connection passes: every mutation is detected before any byte is delivered.
// ELASTIC_TLS_MUTATIONS sets how many are tried.
TEST_F(TlsTest, ChangedBytesDeliverNothing) {
  const char* const wanted = std::getenv("ELASTIC_TLS_MUTATIONS");
  const int rounds = wanted == nullptr ? 1000 : std::atoi(wanted);
  std::mt19937_64 random(1);
  for (int i = 0; i < rounds; ++i) {
    make(key_of(7), key_of(7));
    std::string plain;
    std::string hello = std::exchange(client->output(), {});
    const bool hits_hello = random() % 2 == 0;
    if (hits_hello) hello[random() % hello.size()] ^= static_cast<char>(1 + random() % 255);
    const bool passed = server->receive(hello, &plain);
    if (hits_hello) {
      // Some bytes of the record's header are ignored by the standard; then the handshake must
      // fail at the transcript, or a byte is awaited that never comes.
      if (passed) {
        std::string none;
        const bool continued =
            pass(server.get(), client.get(), &none) && pass(client.get(), server.get(), &none);
        const bool is_header = hello.substr(0, 3) != std::string("\x16\x03\x01");
        EXPECT_TRUE(is_header || !continued || !server->is_established());
      }
      continue;
    }
    ASSERT_TRUE(passed && pass(server.get(), client.get(), &plain));
    ASSERT_TRUE(client->send("close the job"));
    std::string rest = std::exchange(client->output(), {});
    rest[random() % rest.size()] ^= static_cast<char>(1 + random() % 255);
    server->receive(rest, &plain);
    EXPECT_EQ(plain, "") << "round " << i;
  }
}

}  // namespace
}  // namespace elastic::os
