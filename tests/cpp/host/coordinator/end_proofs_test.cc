// Which nodes' ports are dialed. What follows from their answers is in
// coordinator_lost_node_test.cc.

#include "host/coordinator/end_proofs.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <vector>

#include "os/loop/loop_thread.h"
#include "os/net/listener.h"
#include "support/loop_group.h"

namespace elastic::host {
namespace {

using namespace std::chrono_literals;

// One listening socket is the liveness port of all nodes.
class EndProofsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = os::Listener::open("127.0.0.1", 0);
    ASSERT_TRUE(opened.ok());
    port_ = std::make_unique<os::Listener>(*std::move(opened));
    thread_->call(
        [this] { proofs_ = std::make_unique<EndProofs>(&thread_->loop(), [](const NodeId&) {}); });
  }
  void TearDown() override {
    thread_->call([this] { proofs_.reset(); });
  }

  void began(const NodeId& node) {
    thread_->call([&] {
      const os::SocketAddress& address = port_->address();
      proofs_->session_began(node, address, address.port());
    });
  }
  // Whether the nodes' port is connected to.
  bool accept() {
    os::UniqueFd connection;
    return group_.run_until(
        [&] {
          const bool found = port_->accept(&connection) == os::Listener::AcceptStatus::kAccepted;
          if (found) connections_.push_back(std::move(connection));
          return found;
        },
        1min);
  }

  support::LoopGroup group_;
  const std::unique_ptr<os::LoopThread> thread_ = *os::LoopThread::start("proofs", &group_);
  std::unique_ptr<os::Listener> port_;
  std::vector<os::UniqueFd> connections_;
  std::unique_ptr<EndProofs> proofs_;
};

TEST_F(EndProofsTest, EachAddressIsTestedHoweverManyWereBefore) {
  for (int i = 0; i < 600; ++i) {
    const NodeId node{.high = 0, .low = static_cast<std::uint64_t>(i)};
    began(node);
    ASSERT_TRUE(accept()) << i;
    group_.settle();
    connections_.clear();
    thread_->call([&] { proofs_->forget(node); });
  }
}

}  // namespace
}  // namespace elastic::host
