// One end of a connection of a small protocol; the other one is a socket of the test.

#include "host/base/framed_peer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/auth/token_source.h"
#include "os/loop/thread.h"
#include "support/loop_group.h"

namespace elastic::host {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kToken = "a-token-of-32-characters-00000000";
constexpr const char* kOtherToken = "another-token-of-32-characters-0";
constexpr std::size_t kUnsentMax = 1 << 20;
constexpr Duration kGreetingTimeout = 7s;

const FrameProtocol kFrames{
    .frames = {"test", 100},
    .greeting_bytes_max = 10,
    .magic = "\x01magic",
    .no_magic = "no magic",
    .no_greeting = "no greeting",
    .silent = "silent",
    .no_token = "no token",
    .set_token = ": set one",
    .closed = "closed",
    .broke = "broke",
    .does_not_read = "does not read",
};

std::string frame_of(std::string_view payload) {
  std::string bytes;
  {
    const core::FrameWriter frame(&bytes);
    bytes.append(payload);
  }
  return bytes;
}

std::string magic_and(std::string_view bytes) {
  return std::string(kFrames.magic) + std::string(bytes);
}

class TestPeer final : public FramedPeer {
 public:
  TestPeer(PeerGroup* group, PendingConnections* pending, Tokens* tokens)
      : FramedPeer(group, kFrames), pending_(pending), tokens_(tokens) {}
  Status accept(os::UniqueFd fd) {
    return FramedPeer::accept(
        {.fd = std::move(fd)},
        {.greeting_timeout = kGreetingTimeout, .pending = pending_, .tokens = tokens_});
  }
  Status connect(os::UniqueFd fd) { return FramedPeer::connect({.fd = std::move(fd)}); }
  using FramedPeer::finish;
  using FramedPeer::write;

  void reject(const Status& why) override {
    if (!sends_reasons) return FramedPeer::reject(why);
    finish(frame_of(why.message()));
  }
  void on_secured() override { is_secured = true; }
  void on_frame(std::string_view frame) override {
    if (!is_greeted()) greeted();
    frames.emplace_back(frame.substr(core::kFrameHeaderBytes));
  }
  void on_lost(const Status& why) override {
    EXPECT_FALSE(is_open());
    ends.push_back(std::string(why.message()));
    codes.push_back(why.code());
  }
  void on_closed() override { is_closed = true; }

  bool sends_reasons = false;
  bool is_secured = false;
  bool is_closed = false;
  std::vector<std::string> frames, ends;
  std::vector<StatusCode> codes;

 private:
  PendingConnections* const pending_;
  Tokens* const tokens_;
};

class FramedPeerTest : public ::testing::Test {
 protected:
  ~FramedPeerTest() override {
    thread_->call([this] {
      peers_->streams.abandon();
      peer_.reset();
      peers_.reset();
    });
  }

  void begin(bool is_accepted = true, const char* token = nullptr) {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    other_.reset(fds[1]);
    thread_->call([&] {
      if (token != nullptr) tokens_ = *TokenSource::open({.file = "", .text = token}, nullptr);
      peer_ = std::make_unique<TestPeer>(peers_.get(), &pending_, tokens_.get());
      os::UniqueFd fd(fds[0]);
      const Status started =
          is_accepted ? peer_->accept(std::move(fd)) : peer_->connect(std::move(fd));
      EXPECT_TRUE(started.ok()) << started.message();
    });
  }
  void send(std::string_view bytes) {
    EXPECT_EQ(::send(other_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    group_.settle();
  }
  // What the peer has sent so far; nullopt: it has closed.
  std::optional<std::string> received() {
    group_.settle();
    std::string bytes(1 << 16, '\0');
    const ssize_t got = ::recv(other_.get(), bytes.data(), bytes.size(), 0);
    if (got == 0) return std::nullopt;
    bytes.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
    return bytes;
  }
  void in_loop(const std::function<void()>& work) {
    thread_->call(work);
    group_.settle();
  }

  support::LoopGroup group_;
  const std::unique_ptr<os::LoopThread> thread_ = *os::LoopThread::start("peer", &group_);
  std::unique_ptr<PeerGroup> peers_ =
      std::make_unique<PeerGroup>(&thread_->loop(), kUnsentMax, 4 * kUnsentMax);
  PendingConnections pending_{4};
  std::shared_ptr<Tokens> tokens_;
  std::unique_ptr<TestPeer> peer_;
  os::UniqueFd other_;
};

TEST_F(FramedPeerTest, FramesAreCompleteWhateverThePartsInWhichTheyArrive) {
  begin();
  for (const char byte : magic_and(frame_of("hello") + frame_of(std::string(100, 'x')))) {
    send(std::string_view(&byte, 1));
  }
  send(frame_of("one") + frame_of("two"));
  EXPECT_THAT(peer_->frames, ElementsAre("hello", std::string(100, 'x'), "one", "two"));
  EXPECT_THAT(peer_->ends, IsEmpty());
}

TEST_F(FramedPeerTest, TheSideThatConnectsSendsTheMagicBeforeItsFirstFrameOnly) {
  begin(false);
  EXPECT_EQ(received(), "");
  in_loop([&] {
    peer_->write(frame_of("one"));
    peer_->write(frame_of("two"));
  });
  EXPECT_EQ(received(), magic_and(frame_of("one") + frame_of("two")));
  send(frame_of("reply"));  // without magic
  EXPECT_THAT(peer_->frames, ElementsAre("reply"));
}

TEST_F(FramedPeerTest, AFrameOverTheLimitEndsTheConnectionBeforeItIsRead) {
  struct Case {
    std::string bytes;
    const char* end;
  };
  const Case cases[] = {
      {magic_and(frame_of(std::string(11, 'x')).substr(0, 4)), "no greeting"},
      {magic_and(frame_of(std::string(101, 'x')).substr(0, 4)), "a test frame of 101 bytes"},
      {magic_and(frame_of("x")), "a test frame of 1 bytes; 2 to 100 are allowed"},
      {magic_and(frame_of("hello") + frame_of(std::string(101, 'x')).substr(0, 4)),
       "a test frame of 101 bytes"},
      {"GET / HTTP/1.0", "no magic"},
      {"\x16\x03\x01", "it uses a token, and this node has none: set one"},
  };
  for (const Case& one : cases) {
    begin();
    send(one.bytes);
    EXPECT_THAT(peer_->ends, ElementsAre(HasSubstr(one.end)));
    EXPECT_EQ(received(), std::nullopt);
    EXPECT_TRUE(peer_->is_closed);
    EXPECT_EQ(pending_.size(), 0U);
  }
}

TEST_F(FramedPeerTest, TheReasonIsTheLastFrameIfTheProtocolSendsIt) {
  begin();
  peer_->sends_reasons = true;
  const Instant begun = group_.now();
  send("GET / HTTP/1.0");
  EXPECT_EQ(received(), frame_of("no magic"));
  EXPECT_EQ(received(), std::nullopt);
  EXPECT_FALSE(peer_->is_open());
  in_loop([&] { peer_->finish(frame_of("again")); });
  // It waits for the other side to close, but not for ever.
  EXPECT_FALSE(peer_->is_closed);
  EXPECT_TRUE(group_.run_until([&] { return peer_->is_closed; }));
  EXPECT_EQ(group_.now() - begun, kFinishTimeout);
  EXPECT_THAT(peer_->ends, IsEmpty());
}

TEST_F(FramedPeerTest, WithoutAGreetingItEndsAtTheDeadline) {
  begin();
  const Instant begun = group_.now();
  send(magic_and(frame_of("hello").substr(0, 6)));
  EXPECT_EQ(pending_.size(), 1U);
  EXPECT_TRUE(group_.run_until([&] { return !peer_->ends.empty(); }));
  EXPECT_EQ(group_.now() - begun, kGreetingTimeout);
  EXPECT_THAT(peer_->ends, ElementsAre("silent"));
  EXPECT_EQ(pending_.size(), 0U);
}

// Its bytes count towards the limit of all peers.
TEST_F(FramedPeerTest, AFrameThatIsNeverCompleteEndsTheConnection) {
  begin();
  send(magic_and(frame_of("hello") + frame_of("part").substr(0, 6)));
  group_.advance(59s);
  send(frame_of("part").substr(6) + frame_of("next").substr(0, 5));  // another one begins
  EXPECT_THAT(peer_->frames, ElementsAre("hello", "part"));
  const Instant begun = group_.now();
  group_.advance(59s);
  EXPECT_TRUE(peer_->is_open());
  EXPECT_TRUE(group_.run_until([&] { return !peer_->ends.empty(); }));
  EXPECT_EQ(group_.now() - begun, 60s);
  EXPECT_THAT(peer_->ends, ElementsAre("it sent a part of a message, and not the rest"));
  EXPECT_THAT(peer_->codes, ElementsAre(StatusCode::kUnavailable));
}

TEST_F(FramedPeerTest, ACompleteFrameEndsTheDeadline) {
  begin();
  send(magic_and(frame_of("hello") + frame_of("part").substr(0, 6)));
  send(frame_of("part").substr(6));
  group_.advance(10min);
  EXPECT_TRUE(peer_->is_open());
}

TEST_F(FramedPeerTest, AfterTheGreetingItMayBeSilent) {
  begin();
  send(magic_and(frame_of("hello")));
  EXPECT_EQ(pending_.size(), 0U);
  group_.advance(4 * kGreetingTimeout);
  EXPECT_TRUE(peer_->is_open());
  other_.reset();
  group_.settle();
  EXPECT_THAT(peer_->ends, ElementsAre("closed"));
  EXPECT_THAT(peer_->codes, ElementsAre(StatusCode::kUnavailable));
}

TEST_F(FramedPeerTest, APeerThatDoesNotReadIsClosed) {
  begin();
  send(magic_and(frame_of("hello")));
  std::size_t written = 0;
  while (peer_->ends.empty() && written < 8 * kUnsentMax) {
    in_loop([&] { peer_->write(std::string(1 << 16, 'x')); });
    written += 1 << 16;
  }
  EXPECT_THAT(peer_->ends, ElementsAre("does not read"));
  EXPECT_GT(written, kUnsentMax);
}

class FramedPeerWithToken : public FramedPeerTest {
 protected:
  void SetUp() override {
    if (const Status missing = os::check_tls(); !missing.ok()) GTEST_SKIP() << missing.message();
  }
  // The other side's part of the handshake. The bytes arrive in pieces of this size.
  void shake_hands(const char* token, std::size_t piece) {
    const auto source = *TokenSource::open({.file = "", .text = token}, nullptr);
    tls_ = *source->connect("job");
    std::string plain;
    ASSERT_TRUE(tls_->receive("", &plain));  // the client begins
    do {
      const std::string bytes = std::exchange(tls_->output(), {});
      for (std::size_t at = 0; at < bytes.size(); at += piece) {
        send(std::string_view(bytes).substr(at, piece));
      }
    } while (tls_->receive(received().value_or(""), &plain) && !tls_->output().empty());
  }
  std::unique_ptr<os::TlsSession> tls_;
};

TEST_F(FramedPeerWithToken, FramesAreEncrypted) {
  for (const std::size_t piece : {std::size_t{1}, std::size_t{1} << 14}) {
    begin(true, kToken);
    shake_hands(kToken, piece);
    ASSERT_TRUE(tls_->is_established());
    EXPECT_TRUE(peer_->is_secured);
    ASSERT_TRUE(tls_->send(magic_and(frame_of("hello"))));
    send(std::exchange(tls_->output(), {}));
    EXPECT_THAT(peer_->frames, ElementsAre("hello"));
    in_loop([&] { peer_->write(frame_of("reply")); });
    std::string plain;
    EXPECT_TRUE(tls_->receive(received().value_or(""), &plain));
    EXPECT_EQ(plain, frame_of("reply"));
  }
}

TEST_F(FramedPeerWithToken, AnotherTokenIsRefusedAndTheOtherSideLearnsIt) {
  begin(true, kToken);
  shake_hands(kOtherToken, 1 << 14);
  EXPECT_EQ(tls_->error(), os::TlsSession::Error::kRejectedByPeer);
  EXPECT_THAT(peer_->ends, ElementsAre("its token is not valid here: set one"));
  EXPECT_THAT(peer_->codes, ElementsAre(StatusCode::kFailedPrecondition));
  EXPECT_EQ(received(), std::nullopt);
}

TEST_F(FramedPeerWithToken, BytesThatAreNoHandshakeAreRefused) {
  begin(true, kToken);
  send("GET / HTTP/1.0\r\n\r\n");
  EXPECT_THAT(peer_->ends, ElementsAre(HasSubstr("it does not know the token of this node")));
  EXPECT_FALSE(peer_->is_secured);
}

TEST_F(FramedPeerWithToken, APeerWithoutATokenIsSentTheReasonInClear) {
  begin(true, kToken);
  peer_->sends_reasons = true;
  send(magic_and(frame_of("hello")));
  EXPECT_EQ(received(), frame_of("no token: set one"));
  EXPECT_THAT(peer_->frames, IsEmpty());
}

TEST_F(FramedPeerWithToken, ASilentPeerEndsAtTheDeadlineInsideOfTheHandshake) {
  begin(true, kToken);
  const Instant begun = group_.now();
  send("\x16\x03");
  EXPECT_TRUE(group_.run_until([&] { return !peer_->ends.empty(); }));
  EXPECT_EQ(group_.now() - begun, kGreetingTimeout);
}

TEST_F(FramedPeerWithToken, ChangedBytesBreakTheConnection) {
  begin(true, kToken);
  shake_hands(kToken, 1 << 14);
  ASSERT_TRUE(tls_->send(magic_and(frame_of("hello"))));
  std::string bytes = std::exchange(tls_->output(), {});
  bytes.back() ^= 1;
  send(bytes);
  EXPECT_THAT(peer_->ends, ElementsAre(HasSubstr("broke: ")));
  EXPECT_THAT(peer_->codes, ElementsAre(StatusCode::kUnavailable));
}

}  // namespace
}  // namespace elastic::host
