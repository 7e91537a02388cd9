// Encrypted streams: with each other, and with OpenSSL's own programs as peers.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "os/loop/event_loop.h"
#include "os/loop/thread.h"
#include "os/net/dialer.h"
#include "os/net/listener.h"
#include "os/net/stream.h"
#include "os/net/tls_identity.h"
#include "support/eventually.h"
#include "support/loop_group.h"

namespace elastic::os {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr auto kWaitMax = std::chrono::seconds(60);
constexpr const char* kKeyText = "0707070707070707070707070707070707070707070707070707070707070707";

std::unique_ptr<TlsSession> client_end(unsigned char fill = 7) {
  return *TlsSession::connect(std::string(kIdentity), key_of(fill));
}
std::unique_ptr<TlsSession> server_end() {
  return *TlsSession::accept([](std::string_view identity) {
    return identity == kIdentity ? std::optional(key_of()) : std::nullopt;
  });
}

// One stream that collects what it receives, and can send it back.
class End final : public Stream::Handler {
 public:
  End(StreamGroup* group, bool echoes) : stream(group, this), echoes_(echoes) {}

  std::size_t on_bytes(std::string_view bytes) override {
    EXPECT_TRUE(is_secured) << "bytes were delivered before the handshake was complete";
    received.append(bytes);
    if (echoes_) stream.turn_output()->append(bytes);
    if (received.size() >= wanted) arrived.set_value();
    if (received.size() >= wanted) wanted = std::string::npos;
    return bytes.size();
  }
  void on_secured() override { is_secured = true; }
  void on_end(Stream::End why, int) override { ended.set_value(why); }

  Stream stream;
  bool is_secured = false;
  std::string received;
  std::size_t wanted = std::string::npos;
  std::promise<void> arrived;
  std::promise<Stream::End> ended;

 private:
  const bool echoes_;
};

class TlsStreamTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!check_tls().ok()) GTEST_SKIP() << check_tls().message();
    in_loop([&] { group_ = std::make_unique<StreamGroup>(&thread_->loop(), &budget_, limits_); });
  }
  void TearDown() override {
    in_loop([&] {
      ends_.clear();
      group_.reset();
    });
  }
  void in_loop(const std::function<void()>& work) { thread_->call(work); }
  End* add(UniqueFd fd, std::unique_ptr<TlsSession> tls, bool echoes = false) {
    End* end = nullptr;
    in_loop([&] {
      ends_.push_back(std::make_unique<End>(group_.get(), echoes));
      end = ends_.back().get();
      if (!tls->output().empty()) {  // a client secures a stream that is open
        EXPECT_TRUE(end->stream.start({.fd = std::move(fd)}).ok());
        end->stream.secure(std::move(tls));
      } else {
        EXPECT_TRUE(end->stream.start({.fd = std::move(fd), .tls = std::move(tls)}).ok());
      }
    });
    return end;
  }
  static void pair(UniqueFd* a, UniqueFd* b) {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    a->reset(fds[0]);
    b->reset(fds[1]);
  }
  std::string exchange(End* end, const std::string& bytes, std::size_t wanted) {
    auto arrived = end->arrived.get_future();
    in_loop([&] {
      end->wanted = wanted;
      end->stream.write(bytes);
    });
    EXPECT_EQ(arrived.wait_for(kWaitMax), std::future_status::ready);
    std::string received;
    in_loop([&] { received = end->received; });
    return received;
  }
  static std::optional<Stream::End> wait_for_end(End* end) {
    auto future = end->ended.get_future();
    if (future.wait_for(kWaitMax) != std::future_status::ready) return std::nullopt;
    return future.get();
  }

  const StreamLimits limits_ = {};
  MemoryBudget budget_{64 << 20};
  std::unique_ptr<LoopThread> thread_ = *LoopThread::start("test-tls");
  std::unique_ptr<StreamGroup> group_;
  std::vector<std::unique_ptr<End>> ends_;
};

TEST_F(TlsStreamTest, BytesWrittenBeforeTheHandshakeArriveAfterIt) {
  UniqueFd a, b;
  pair(&a, &b);
  add(std::move(b), server_end(), true);
  EXPECT_EQ(exchange(add(std::move(a), client_end()), "early", 5), "early");
}

TEST_F(TlsStreamTest, CarriesMoreThanTheSocketAndTheRecordsHold) {
  UniqueFd a, b;
  pair(&a, &b);
  add(std::move(b), server_end(), true);
  std::string much(3 << 20, '\0');
  for (std::size_t i = 0; i < much.size(); ++i) much[i] = static_cast<char>(i * 2654435761U >> 24);
  EXPECT_TRUE(exchange(add(std::move(a), client_end()), much, much.size()) == much);
  in_loop([&] {
    for (const auto& end : ends_) EXPECT_EQ(end->stream.num_unsent(), 0u);
  });
}

TEST_F(TlsStreamTest, WrongKeyEndsBothStreams) {
  UniqueFd a, b;
  pair(&a, &b);
  End* const server = add(std::move(b), server_end());
  End* const client = add(std::move(a), client_end(8));
  EXPECT_EQ(wait_for_end(server), Stream::End::kTlsFailed);
  EXPECT_EQ(wait_for_end(client), Stream::End::kTlsFailed);
  in_loop([&] {
    EXPECT_EQ(client->stream.tls()->error(), TlsSession::Error::kRejectedByPeer);
    EXPECT_FALSE(server->is_secured || client->is_secured);
  });
}

TEST_F(TlsStreamTest, HandshakeEndsAtTheDeadline) {
  UniqueFd a, b;
  pair(&a, &b);
  End* const client = add(std::move(a), client_end());
  in_loop(
      [&] { client->stream.set_deadline(thread_->loop().now() + std::chrono::milliseconds(20)); });
  EXPECT_EQ(wait_for_end(client), Stream::End::kDeadline);
}

// Written bytes cannot be sent before the handshake is complete, although the socket has room.
TEST(TlsStream, WaitsForAPeerThatDoesNotAnswerWithoutTurningTheLoop) {
  if (!check_tls().ok()) GTEST_SKIP() << check_tls().message();
  support::LoopGroup group;
  auto thread = *LoopThread::start("test-tls", &group);
  MemoryBudget budget(1 << 20);
  StreamGroup streams(&thread->loop(), &budget, {});
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
  const UniqueFd silent(fds[1]);
  End client(&streams, false);
  ASSERT_TRUE(client.stream.start({.fd = UniqueFd(fds[0])}).ok());
  client.stream.secure(client_end());
  client.stream.write("greeting");
  int turns = 0;
  while (thread->loop().turn() && turns < 1000) ++turns;
  EXPECT_LT(turns, 10);
  EXPECT_GT(client.stream.num_unsent(), 0U);
}

TEST_F(TlsStreamTest, ChargesTheMemoryOfASession) {
  UniqueFd a, b;
  pair(&a, &b);
  End* const server = add(std::move(b), server_end(), true);
  in_loop([&] { EXPECT_GE(budget_.used(), TlsSession::kHandshakeBytes); });
  EXPECT_EQ(exchange(add(std::move(a), client_end()), "one", 3), "one");
  in_loop([&] {
    EXPECT_GE(budget_.used(), 2 * TlsSession::kEstablishedBytes);
    EXPECT_LT(budget_.used(), 2 * TlsSession::kHandshakeBytes);
    EXPECT_TRUE(server->is_secured);
    ends_.clear();
    EXPECT_EQ(budget_.used(), 0U);
  });
}

TEST(TlsStream, EndsIfTheBudgetHasNoRoomForASession) {
  if (!check_tls().ok()) GTEST_SKIP() << check_tls().message();
  support::LoopGroup group;
  auto thread = *LoopThread::start("test-tls", &group);
  MemoryBudget budget(TlsSession::kHandshakeBytes - 1);
  StreamGroup streams(&thread->loop(), &budget, {});
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
  const UniqueFd other(fds[1]);
  End client(&streams, false);
  ASSERT_TRUE(client.stream.start({.fd = UniqueFd(fds[0])}).ok());
  client.stream.secure(client_end());
  EXPECT_EQ(client.ended.get_future().get(), Stream::End::kMemoryLimit);
  group.settle();
}

TEST_F(TlsStreamTest, ContinuesOnAnotherOwnerAfterTheHandshake) {
  UniqueFd a, b;
  pair(&a, &b);
  add(std::move(b), server_end(), true);
  End* const first = add(std::move(a), client_end());
  EXPECT_EQ(exchange(first, "one", 3), "one");
  End* second = nullptr;
  in_loop([&] {
    ASSERT_TRUE(first->stream.can_detach());
    ends_.push_back(std::make_unique<End>(group_.get(), false));
    second = ends_.back().get();
    second->is_secured = true;
    EXPECT_TRUE(second->stream.start(first->stream.detach("rest ")).ok());
  });
  EXPECT_EQ(exchange(second, "two", 8), "rest two");
}

// A program of OpenSSL's, with pipes.
class Openssl {
 public:
  explicit Openssl(const std::vector<std::string>& arguments) {
    int in[2], out[2];
    EXPECT_EQ(::pipe2(in, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(out, O_CLOEXEC), 0);
    std::vector<char*> words{const_cast<char*>("openssl")};
    for (const std::string& one : arguments) words.push_back(const_cast<char*>(one.c_str()));
    words.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(in[0], 0);
      ::dup2(out[1], 1);
      ::dup2(out[1], 2);
      ::execvp(words[0], words.data());
      ::_exit(127);
    }
    ::close(in[0]);
    ::close(out[1]);
    in_.reset(in[1]);
    out_.reset(out[0]);
  }
  ~Openssl() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  void write(std::string_view text) {
    EXPECT_EQ(::write(in_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  // The output up to this text and the rest of its line; "": the program has ended before.
  std::string read_until(const std::string& text) {
    std::string output;
    while (true) {
      const std::size_t found = output.find(text);
      if (found != std::string::npos && output.find('\n', found) != std::string::npos)
        return output;
      char byte;
      if (::read(out_.get(), &byte, 1) != 1) return "";
      output += byte;
    }
  }

 private:
  pid_t pid_ = -1;
  UniqueFd in_, out_;
};

class OpensslPeerTest : public TlsStreamTest {
 protected:
  void SetUp() override {
    TlsStreamTest::SetUp();
    if (IsSkipped()) return;
    if (std::system("openssl version >/dev/null 2>&1") != 0) GTEST_SKIP() << "no openssl program";
  }
  // Connects to a server that has printed its address.
  UniqueFd dial(Openssl* server) {
    const std::string output = server->read_until("ACCEPT 127.0.0.1:");
    const std::size_t colon = output.rfind(':');
    EXPECT_NE(colon, std::string::npos) << output;
    if (colon == std::string::npos) return UniqueFd();
    SocketAddress address = *parse_address("127.0.0.1");
    reinterpret_cast<sockaddr_in*>(address.get())->sin_port =
        htons(static_cast<std::uint16_t>(std::stoi(output.substr(colon + 1))));
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(fd.get(), address.get(), address.size), 0);
    ::fcntl(fd.get(), F_SETFL, O_NONBLOCK);
    return fd;
  }
};

TEST_F(OpensslPeerTest, ClientTalksToOpensslsServer) {
  Openssl server({"s_server", "-accept", "127.0.0.1:0", "-nocert", "-tls1_3", "-psk_identity",
                  std::string(kIdentity), "-psk", kKeyText, "-rev"});
  End* const client = add(dial(&server), client_end());
  EXPECT_EQ(exchange(client, "hello\n", 6), "olleh\n");
}

TEST_F(OpensslPeerTest, ServerTalksToOpensslsClient) {
  auto listener = Listener::open("127.0.0.1", 0);
  ASSERT_TRUE(listener.ok());
  Openssl client({"s_client", "-quiet", "-connect",
                  "127.0.0.1:" + std::to_string(listener->address().port()), "-tls1_3",
                  "-psk_identity", std::string(kIdentity), "-psk", kKeyText});
  UniqueFd fd;
  ASSERT_TRUE(support::eventually(
      [&] { return listener->accept(&fd) == Listener::AcceptStatus::kAccepted; }));
  add(std::move(fd), server_end(), true);
  client.write("echo this\n");
  EXPECT_THAT(client.read_until("echo this"), HasSubstr("echo this\n"));
}

TEST_F(OpensslPeerTest, ServerWithACertificateIsNotAccepted) {
  const std::string stem = testing::TempDir() + "rogue" + std::to_string(::getpid());
  const std::string make =
      "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 "
      "-subj /CN=coordinator -keyout " +
      stem + ".key -out " + stem + ".pem >/dev/null 2>&1";
  ASSERT_EQ(std::system(make.c_str()), 0);
  Openssl server({"s_server", "-accept", "127.0.0.1:0", "-cert", stem + ".pem", "-key",
                  stem + ".key", "-tls1_3", "-rev"});
  End* const client = add(dial(&server), client_end());
  EXPECT_EQ(wait_for_end(client), Stream::End::kTlsFailed);
  in_loop([&] { EXPECT_FALSE(client->is_secured); });
  std::remove((stem + ".pem").c_str());
  std::remove((stem + ".key").c_str());
}

}  // namespace
}  // namespace elastic::os
