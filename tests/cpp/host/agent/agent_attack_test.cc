// What clients that are no nodes of its job can do to an agent that hosts the coordinator.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "core/base/random.h"
#include "core/session/session_messages.h"
#include "host/agent/agent_harness.h"
#include "host/coordinator/session_test_client.h"
#include "os/base/process.h"
#include "os/net/tls.h"
#include "support/eventually.h"

namespace elastic::host {
namespace {

using Kind = AgentEvent::Kind;

int wanted(const char* variable, int usual) {
  const char* const given = std::getenv(variable);
  return given == nullptr ? usual : std::atoi(given);
}

std::size_t num_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

std::uint16_t free_port() {
  const os::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  return ntohs(address.sin_port);
}

// An agent whose job of one worker runs, in this process. The parameter: with a token.
class AgentAttack : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && !os::check_tls().ok()) GTEST_SKIP() << os::check_tls().message();
    AgentOptions options =
        support::options_of({support::stub_worker({"pause"}, StreamTarget::kDiscard)});
    options.run_id = "job";
    options.rendezvous.endpoint_host = "127.0.0.1";
    options.rendezvous.endpoint_port = port_ = free_port();
    options.rendezvous.is_host = true;
    options.rendezvous.settings.max_nodes = 2;
    options.rendezvous.settings.last_call_timeout = Duration::zero();
    if (GetParam()) options.rendezvous.token.text = "0123456789abcdef0123456789abcdef";
    agent_ = std::make_unique<support::RunningAgent>(options);
    agent_->wait_for(Kind::kWorkersRunning);
  }
  void TearDown() override {
    if (agent_ == nullptr) return;
    (*agent_)->request_stop(SIGTERM);
    EXPECT_EQ(agent_->finish().exit_code, 128 + SIGTERM) << agent_->finish().message;
    EXPECT_TRUE(agent_->all(Kind::kRestarting).empty()) << "its job was not disturbed";
  }
  // What a node of another job sends, as far as the coordinator reads it.
  std::string conversation(Rng* rng) const {
    std::string bytes = SessionClient::first_bytes(
        {.job_id = "other", .node = {9, rng->next() % 8}, .attempt = rng->next() % 100});
    const auto messages = session::client_messages();
    for (std::uint64_t left = rng->next() % 6; left > 0; --left) {
      session::ClientMessage message = messages[1 + rng->next() % (messages.size() - 1)];
      if (!std::holds_alternative<session::ClientHello>(message)) session::append(&bytes, message);
    }
    return bytes;
  }
  static void change(std::string* bytes, Rng* rng) {
    for (std::uint64_t changes = rng->next() % 4; changes > 0; --changes) {
      const std::size_t at = rng->next() % bytes->size();
      switch (rng->next() % 4) {
        case 0: (*bytes)[at] = static_cast<char>(rng->next()); break;
        case 1: bytes->resize(at + 1); break;
        case 2: bytes->insert(at, bytes->substr(at, rng->next() % 64)); break;
        default: bytes->erase(at, std::min<std::size_t>(rng->next() % 16, bytes->size() - 1));
      }
      if (bytes->empty()) bytes->push_back('x');
    }
  }

  std::uint16_t port_ = 0;
  std::unique_ptr<support::RunningAgent> agent_;
};

// ELASTIC_SESSION_ATTACKS sets how many sessions are tried.
TEST_P(AgentAttack, ChangedSessionsDoNotAffectTheJob) {
  const std::size_t before = num_descriptors();
  Rng rng(1);
  const int attacks = wanted("ELASTIC_SESSION_ATTACKS", 1000);
  for (int i = 0; i < attacks; ++i) {
    TestClient client(port_);
    if (i % 8 != 7) {
      ASSERT_TRUE(SessionClient::find_coordinator(&client)) << "session " << i;
    }
    std::string bytes = conversation(&rng);
    if (i % 2 == 1) change(&bytes, &rng);
    if (i % 16 == 15) bytes[0] = session::kTlsFirstByte;
    client.send(bytes);
    if (i % 6 == 0) client.receive(1);  // unchanged bytes are answered
    if (i % 2 == 0) client.reset();
  }
  TestClient client(port_);
  EXPECT_TRUE(SessionClient::find_coordinator(&client)) << "it serves others";
  client.close();
  EXPECT_TRUE(support::eventually([&] { return num_descriptors() <= before; }));
}

// ELASTIC_HALF_HANDSHAKES sets how many are tried.
TEST_P(AgentAttack, HalfHandshakesHaveAPartOfTheDescriptors) {
  const std::size_t before = num_descriptors();
  const auto handshakes = static_cast<std::size_t>(wanted("ELASTIC_HALF_HANDSHAKES", 1000));
  const std::size_t limit = os::descriptor_limit();
  std::vector<std::unique_ptr<TestClient>> open(std::min<std::size_t>(handshakes, limit / 4));
  const std::string begun = GetParam() ? std::string("\x16\x03\x01\x02\x00\x01\x00", 7)
                                       : std::string(session::kMagic.substr(0, 5));
  for (std::size_t i = 0; i < handshakes; ++i) {
    auto client = std::make_unique<TestClient>(port_);
    if (i % 4 != 3) {
      ASSERT_TRUE(SessionClient::find_coordinator(client.get())) << "client " << i;
    }
    client->send(begun);
    open[i % open.size()] = std::move(client);
    if (i % 100 != 99) continue;
    const std::size_t own = std::min(i + 1, open.size());
    ASSERT_LE(num_descriptors(), before + own + limit / 4 + 1);
  }
  for (const auto& client : open) {
    if (client != nullptr) {
      ASSERT_TRUE(client->is_closed()) << "at the limit of a greeting";
    }
  }
  open.clear();
  EXPECT_TRUE(support::eventually([&] { return num_descriptors() <= before; }));
}

INSTANTIATE_TEST_SUITE_P(AndToken, AgentAttack, testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "With" : "Without");
});

}  // namespace
}  // namespace elastic::host
