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

// A raw client with a TLS session over its connection.
class SecureClient : public SessionClient {
 public:
  SecureClient(std::uint16_t port, const std::string& token, const std::string& job)
      : SessionClient(port) {
    const auto key = TokenList::parse(token)->client_key(job);
    tls_ = *os::TlsSession::connect(key->identity, key->key);
    raw().send(TestClient::list_frame(wire::Opcode::kCheck, {std::string(session::kTokenKey)}));
    EXPECT_EQ(raw().receive(1), std::string(1, wire::kReady));
  }

  std::string take_output() { return std::exchange(tls_->output(), {}); }
  bool shake_hands() { return await_server() && send_bytes(take_output()); }
  // All of the handshake but its last message, which is in take_output().
  bool await_server() {
    send_bytes(take_output());
    while (!tls_->is_established()) {
      const std::string bytes = raw().receive_some();
      if (bytes.empty() || !tls_->receive(bytes, &plain_)) return false;
    }
    return true;
  }
  bool send_bytes(std::string_view bytes) {
    for (std::size_t at = 0; at < bytes.size(); at += step) {
      if (!raw().send(bytes.substr(at, step))) return false;
    }
    return true;
  }

  std::size_t step = 1 << 20;  // so many bytes are sent at once

 protected:
  bool write(const std::string& plain) override {
    EXPECT_TRUE(tls_->send(plain));
    return send_bytes(take_output());
  }
  std::string read() override {
    while (plain_.empty()) {
      const std::string bytes = raw().receive_some();
      if (bytes.empty() || !tls_->receive(bytes, &plain_)) return "";
    }
    return std::exchange(plain_, {});
  }

 private:
  std::unique_ptr<os::TlsSession> tls_;
  std::string plain_;
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
    node->be(1);
    node->greet(job);
    node->join(nnodes(1, 1));
    node->expect<rdzv::Round>();
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
  node.step = 1;
  ASSERT_TRUE(node.shake_hands());
  node.be(1);
  node.greet("job");
  node.join(nnodes(1, 1));
  node.expect<rdzv::Round>();
}

TEST_F(CoordinatorTokenTest, FirstMessageMayArriveWithTheEndOfTheHandshake) {
  start_with({.text = kSecret});
  SecureClient node(coordinator->port(), kSecret, "job");
  ASSERT_TRUE(node.await_server());
  node.be(1);
  node.greet("job");
  node.expect<session::ServerHello>();
}

TEST_F(CoordinatorTokenTest, SessionOfOneJobCannotNameAnother) {
  start_with({.text = std::string("job ") + kSecret + "\nanother " + kOther});
  const auto victim = run_job();
  EXPECT_TRUE(is_rejected(kOther)) << "the token of another job";
  SecureClient client(coordinator->port(), kOther, "another");
  ASSERT_TRUE(client.shake_hands());
  client.be(9);
  client.greet("job");
  EXPECT_THAT(std::string(client.expect<rdzv::Refused>().error.message()),
              HasSubstr("is for another job than job"));
  EXPECT_FALSE(victim->receives<rdzv::Restart>());
}

TEST_F(CoordinatorTokenTest, ObserverChangesNothing) {
  start_with({.text = kSecret});
  const auto node = run_job();
  const std::string token = *observer_token({.text = kSecret}, "job");
  SecureClient observer(coordinator->port(), token, "job");
  ASSERT_TRUE(observer.shake_hands());
  observer.say_first({.job_id = "job", .observer = session::ObserverRequest{}});
  observer.expect<session::JobFacts>();
  observer.send_message(rdzv::Close{{}, {}});
  observer.expect<rdzv::Refused>();
  SecureClient intruder(coordinator->port(), token, "job");
  ASSERT_TRUE(intruder.shake_hands());
  intruder.be(3);
  intruder.greet("job");
  EXPECT_THAT(std::string(intruder.expect<rdzv::Refused>().error.message()),
              HasSubstr("an observer's token"));
  EXPECT_FALSE(node->receives<rdzv::Restart>());
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

TEST_F(CoordinatorTokenDeadline, HalfHandshakesAreLimited) {
  if (const Status missing = os::check_tls(); !missing.ok()) GTEST_SKIP() << missing.message();
  constexpr std::uint64_t kHandshakesMax = 16;  // of 256 connections
  CoordinatorOptions options;
  options.token = {.file = "", .text = kSecret};
  options.store_limits.connections_max = 256;
  start(options);
  SecureClient node(coordinator->port(), kSecret, "job");
  ASSERT_TRUE(node.shake_hands());
  node.be(1);
  node.greet("job");
  node.join(nnodes(1, 1));
  node.expect<rdzv::Round>();

  std::vector<std::unique_ptr<TestClient>> open(100);
  for (int i = 0; i < 2'000; ++i) {
    auto client = std::make_unique<TestClient>(coordinator->port());
    ASSERT_TRUE(SessionClient::find_coordinator(client.get()));
    client->send(std::string("\x16\x03\x01\x02\x00\x01\x00", 7));
    open[i % open.size()] = std::move(client);
    if (i % 100 == 99) {
      ASSERT_LE(coordinator->stats().sessions, 1 + kHandshakesMax);
    }
  }
  EXPECT_TRUE(open.back()->is_closed()) << "the hello timeout ends the newest one";
  EXPECT_EQ(coordinator->stats().sessions, 1U);
  SecureClient other(coordinator->port(), kSecret, "job");
  EXPECT_TRUE(other.shake_hands());
}

// ELASTIC_TOKEN_ATTACKS sets how many connections are tried.
TEST_F(CoordinatorTokenTest, ReplayedAndChangedBytesDoNotAffectTheJob) {
  start_with({.text = kSecret});
  const auto node = run_job();
  // Everything that a node sends to close the job.
  SecureClient sender(coordinator->port(), kSecret, "job");
  std::string recorded = sender.take_output();
  sender.send_bytes(recorded);
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
    other.send(SessionClient::first_bytes({.job_id = "job"}));
    // A node that is silent for node_timeout would be lost without any attack.
    if (i % 1000 == 999) {
      ASSERT_FALSE(node->receives<rdzv::Restart>());
    }
  }
  EXPECT_FALSE(node->receives<rdzv::Restart>());
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
  EXPECT_FALSE(node->receives<rdzv::Restart>()) << "an open session is not closed";
  EXPECT_FALSE(third->receives<rdzv::Restart>());
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
