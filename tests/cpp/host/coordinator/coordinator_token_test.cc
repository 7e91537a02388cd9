// Sessions with a token: who is admitted, and what clients without it can do.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "host/auth/token_list.h"
#include "host/coordinator/coordinator_fixture.h"
#include "os/net/tls.h"

namespace elastic::host {
namespace {

using testing::HasSubstr;

constexpr const char* kSecret = "0123456789abcdef0123456789abcdef";
constexpr const char* kOther = "fedcba9876543210fedcba9876543210";

// A raw client with a TLS session over a blocking socket.
class SecureClient {
 public:
  SecureClient(std::uint16_t port, const std::string& token, const std::string& job)
      : client_(port) {
    const auto key = TokenList::parse(token)->client_key(job);
    tls_ = *os::TlsSession::connect(key->identity, key->key);
    EXPECT_TRUE(SessionClient::find_coordinator(&client_));
    client_.send(TestClient::list_frame(wire::Opcode::kCheck, {std::string(session::kTokenKey)}));
    EXPECT_EQ(client_.receive(1), std::string(1, wire::kReady));
  }

  std::string take_output() { return std::exchange(tls_->output(), {}); }
  bool shake_hands(std::size_t step = 1 << 20) {
    return await_server(step) && send_bytes(take_output(), step);
  }
  // All of the handshake but its last message, which is in take_output().
  bool await_server(std::size_t step = 1 << 20) {
    send_bytes(take_output(), step);
    while (!tls_->is_established()) {
      const std::string bytes = client_.receive_some();
      if (bytes.empty() || !tls_->receive(bytes, &plain_)) return false;
    }
    return true;
  }
  bool send_bytes(std::string_view bytes, std::size_t step = 1 << 20) {
    for (std::size_t at = 0; at < bytes.size(); at += step) {
      if (!client_.send(bytes.substr(at, step))) return false;
    }
    return true;
  }
  void encrypt(std::string_view plain) { EXPECT_TRUE(tls_->send(plain)); }
  void greet(std::uint64_t node, const std::string& job,
             std::optional<session::ObserverRequest> observer = {}, std::size_t step = 1 << 20) {
    info.id = {1, node};
    info.name = "127.0.0.1_" + std::to_string(node) + "_0";
    info.address = "127.0.0.1";
    info.store_port = static_cast<std::uint16_t>(20000 + node);
    encrypt(hello(job, observer));
    send_bytes(take_output(), step);
  }
  std::string hello(const std::string& job, std::optional<session::ObserverRequest> observer = {}) {
    std::string bytes(session::kMagic);
    session::append(
        &bytes, session::ClientMessage(session::ClientHello{
                    .job_id = job, .node = info.id, .attempt = ++hellos_, .observer = observer}));
    return bytes;
  }
  bool send(const session::ClientMessage& message, std::size_t step = 1 << 20) {
    std::string bytes;
    session::append(&bytes, message);
    encrypt(bytes);
    return send_bytes(take_output(), step);
  }
  void join(const JobSettings& settings, std::size_t step = 1 << 20) {
    send(rdzv::Join{info, settings}, step);
  }
  std::optional<session::ServerMessage> receive() {
    while (true) {
      session::ServerMessage message;
      const session::DecodeResult decoded = session::decode(plain_, &message);
      EXPECT_NE(decoded.status, session::DecodeStatus::kViolation) << decoded.error.message();
      if (decoded.status == session::DecodeStatus::kMessage) {
        plain_.erase(0, decoded.bytes);
        return message;
      }
      const std::string bytes = client_.receive_some();
      if (bytes.empty() || !tls_->receive(bytes, &plain_)) return std::nullopt;
    }
  }
  template <typename Message>
  std::optional<Message> expect() {
    while (auto message = receive()) {
      if (auto* found = std::get_if<Message>(&*message)) return std::move(*found);
    }
    ADD_FAILURE() << "the session ended before the expected message";
    return std::nullopt;
  }
  bool is_alive() {
    return send(session::Heartbeat{Instant(Duration(1))}) &&
           expect<session::HeartbeatReply>().has_value();
  }
  TestClient& raw() { return client_; }

  core::NodeInfo info;

 private:
  TestClient client_;
  std::unique_ptr<os::TlsSession> tls_;
  std::string plain_;
  static inline std::uint64_t hellos_ = 0;
};

class CoordinatorTokenTest : public CoordinatorTest {
 protected:
  void SetUp() override {
    if (!os::check_tls().ok()) GTEST_SKIP() << os::check_tls().message();
  }
  void TearDown() override { coordinator.reset(); }  // it logs to a member of this object
  void start_with(const TokenOptions& token) {
    CoordinatorOptions options;
    options.token = token;
    options.log = [this](std::string_view line) {
      const std::lock_guard lock(mutex_);
      lines_.emplace_back(line);
    };
    start(options);
  }
  std::size_t num_lines_with(const std::string& text) {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(std::count_if(
        lines_.begin(), lines_.end(),
        [&](const std::string& line) { return line.find(text) != std::string::npos; }));
  }
  // A job of one node that runs.
  std::unique_ptr<SecureClient> run_job(const std::string& job = "job",
                                        const std::string& token = kSecret) {
    auto node = std::make_unique<SecureClient>(coordinator->port(), token, job);
    EXPECT_TRUE(node->shake_hands());
    node->greet(1, job);
    node->join(nnodes(1, 1));
    EXPECT_TRUE(node->expect<rdzv::Round>().has_value());
    return node;
  }
  bool is_rejected(const std::string& token, const std::string& job = "job") {
    SecureClient client(coordinator->port(), token, job);
    return !client.shake_hands() || !client.receive().has_value();
  }

  std::mutex mutex_;
  std::vector<std::string> lines_;
};

TEST_F(CoordinatorTokenTest, BytesMayArriveOneByOne) {
  start_with({.text = kSecret});
  SecureClient node(coordinator->port(), kSecret, "job");
  ASSERT_TRUE(node.shake_hands(1));
  node.greet(1, "job", {}, 1);
  node.join(nnodes(1, 1), 1);
  EXPECT_TRUE(node.expect<rdzv::Round>().has_value());
}

TEST_F(CoordinatorTokenTest, FirstMessageMayArriveWithTheEndOfTheHandshake) {
  start_with({.text = kSecret});
  SecureClient node(coordinator->port(), kSecret, "job");
  ASSERT_TRUE(node.await_server());
  node.greet(1, "job");
  EXPECT_TRUE(node.expect<session::ServerHello>().has_value());
}

TEST_F(CoordinatorTokenTest, SessionOfOneJobCannotNameAnother) {
  start_with({.text = std::string("job ") + kSecret + "\nanother " + kOther});
  const auto victim = run_job();
  EXPECT_TRUE(is_rejected(kOther)) << "the token of another job";
  SecureClient client(coordinator->port(), kOther, "another");
  ASSERT_TRUE(client.shake_hands());
  client.greet(9, "job");
  const auto refused = client.expect<rdzv::Refused>();
  ASSERT_TRUE(refused.has_value());
  EXPECT_THAT(std::string(refused->error.message()), HasSubstr("is for another job than job"));
  EXPECT_TRUE(victim->is_alive());
}

TEST_F(CoordinatorTokenTest, ObserverChangesNothing) {
  start_with({.text = kSecret});
  const auto node = run_job();
  const std::string token = *observer_token({.text = kSecret}, "job");
  SecureClient observer(coordinator->port(), token, "job");
  ASSERT_TRUE(observer.shake_hands());
  observer.greet(2, "job", session::ObserverRequest{});
  EXPECT_TRUE(observer.expect<session::JobFacts>().has_value());
  JobResult closed;
  closed.outcome = JobOutcome::kClosed;
  observer.send(rdzv::Close{{}, closed});
  EXPECT_TRUE(observer.expect<rdzv::Refused>().has_value());
  SecureClient intruder(coordinator->port(), token, "job");
  ASSERT_TRUE(intruder.shake_hands());
  intruder.greet(3, "job");
  const auto refused = intruder.expect<rdzv::Refused>();
  ASSERT_TRUE(refused.has_value());
  EXPECT_THAT(std::string(refused->error.message()), HasSubstr("an observer's token"));
  EXPECT_TRUE(node->is_alive());
}

class CoordinatorTokenDeadline : public TurnedCoordinatorTest {};

TEST_F(CoordinatorTokenDeadline, EndsAHandshakeThatStops) {
  if (const Status missing = os::check_tls(); !missing.ok()) GTEST_SKIP() << missing.message();
  const CoordinatorLimits limits;
  start({.limits = limits, .token = {.file = "", .text = kSecret}});
  SecureClient finished(coordinator->port(), kSecret, "job");
  ASSERT_TRUE(finished.shake_hands());
  SecureClient silent(coordinator->port(), kSecret, "job");
  const std::string hello = silent.take_output();
  silent.send_bytes(hello.substr(0, hello.size() / 2));
  const Instant begun = group.now();
  EXPECT_TRUE(silent.raw().is_closed());
  EXPECT_EQ(group.now() - begun, limits.hello_timeout);
  EXPECT_FALSE(finished.receive().has_value()) << "no hello follows the handshake";
}

// ELASTIC_TOKEN_ATTACKS sets how many connections are tried.
TEST_F(CoordinatorTokenTest, ReplayedAndChangedBytesDoNotAffectTheJob) {
  start_with({.text = kSecret});
  const auto node = run_job();
  // Everything that a node sends to close the job.
  SecureClient sender(coordinator->port(), kSecret, "job");
  std::string recorded = sender.take_output();
  sender.send_bytes(recorded);
  std::string hello = recorded;
  const char* const wanted = std::getenv("ELASTIC_TOKEN_ATTACKS");
  const int attacks = wanted == nullptr ? 2000 : std::atoi(wanted);
  std::mt19937_64 random(1);
  for (int i = 0; i < attacks; ++i) {
    TestClient other(coordinator->port());
    ASSERT_TRUE(SessionClient::find_coordinator(&other));
    std::string bytes = recorded;
    if (i % 4 == 1) bytes[random() % bytes.size()] ^= static_cast<char>(1 + random() % 255);
    if (i % 4 == 2) bytes.resize(random() % bytes.size());
    if (i % 4 == 3) {
      bytes = session::kTlsFirstByte;
      for (int n = 0; n < 64; ++n) bytes += static_cast<char>(random());
    }
    // Then what an attacker would like to say, in clear and as a record.
    other.send(bytes);
    other.send(std::string("\x17\x03\x03\x00\x20", 5) + std::string(32, 'x'));
    other.send(sender.hello("job"));
    // A node that is silent for node_timeout would be lost without any attack.
    if (i % 1000 == 999) {
      ASSERT_TRUE(node->is_alive());
    }
  }
  EXPECT_TRUE(node->is_alive());
  EXPECT_EQ(coordinator->stats().jobs, 1u);
  EXPECT_GE(num_lines_with("127.0.0.1: a session was refused"), 1u);
  EXPECT_LE(num_lines_with("127.0.0.1: a session was refused"), 1 + attacks / 1000u);
  EXPECT_EQ(num_lines_with("is lost"), 0u);
}

class TokenFile {
 public:
  TokenFile() : path_(testing::TempDir() + "token_XXXXXX") {
    const int fd = ::mkstemp(path_.data());
    EXPECT_GE(fd, 0);
    ::close(fd);
  }
  ~TokenFile() { std::filesystem::remove(path_); }
  // As an editor or Kubernetes does: a new file takes the name.
  void write(const std::string& text) {
    const std::string next = path_ + ".new";
    std::ofstream(next) << text;
    ::chmod(next.c_str(), 0600);
    std::filesystem::rename(next, path_);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST_F(CoordinatorTokenTest, TokenIsReplacedWhileTheJobRuns) {
  TokenFile file;
  file.write(kSecret);
  start_with({.file = file.path()});
  const auto node = run_job();
  EXPECT_TRUE(is_rejected(kOther));
  file.write(std::string(kOther) + "\n" + kSecret + "\n");
  const auto second = run_job("second", kOther);
  const auto third = run_job("third", kSecret);
  file.write(kOther);
  EXPECT_TRUE(is_rejected(kSecret));
  const auto fourth = run_job("fourth", kOther);
  EXPECT_TRUE(node->is_alive()) << "an open session is not closed";
  EXPECT_TRUE(third->is_alive());
  file.write("bad\n");
  const auto fifth = run_job("fifth", kOther);
  EXPECT_EQ(num_lines_with("the tokens that were read before stay in force"), 1u);
}

TEST_F(CoordinatorTokenTest, FaultyTokenFileIsNotUsed) {
  TokenFile file;
  const auto fault = [&] {
    CoordinatorOptions options;
    options.token.file = file.path();
    const Status status = Coordinator::start(options).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(fault(), HasSubstr("has no token: write the output of 'openssl rand -hex 32'"));
  file.write(kSecret);
  ::chmod(file.path().c_str(), 0644);
  EXPECT_THAT(fault(), HasSubstr("is accessible by other users (mode 0644): run chmod 600 "));
  std::filesystem::remove(file.path());
  EXPECT_THAT(fault(), HasSubstr("cannot be read: No such file or directory"));
  std::filesystem::create_directory(file.path());
  EXPECT_THAT(fault(), HasSubstr("is not a regular file"));
}

}  // namespace
}  // namespace elastic::host
