// Which nodes' ports are dialed. What follows from their answers is in
// coordinator_lost_node_test.cc.

#include "host/coordinator/end_proofs.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>

#include "os/loop/thread.h"
#include "os/net/listener.h"
#include "support/loop_group.h"

namespace elastic::host {
namespace {

using namespace std::chrono_literals;

TEST(EndProofs, EachAddressIsTestedHoweverManyWereBefore) {
  support::LoopGroup group;
  const auto thread = *os::LoopThread::start("proofs", &group);
  auto port = *os::Listener::open("127.0.0.1", 0);  // of all nodes
  std::unique_ptr<EndProofs> proofs;
  thread->call(
      [&] { proofs = std::make_unique<EndProofs>(&thread->loop(), [](const NodeId&) {}); });
  for (std::uint64_t i = 0; i < 600; ++i) {
    const NodeId node{.high = 0, .low = i};
    thread->call([&] { proofs->session_began(node, port.address(), port.address().port()); });
    os::UniqueFd connection;
    const auto is_connected = [&] {
      return port.accept(&connection) == os::Listener::AcceptStatus::kAccepted;
    };
    ASSERT_TRUE(group.run_until(is_connected, 1min)) << i;
    group.settle();
    connection.reset();
    thread->call([&] { proofs->forget(node); });
  }
  thread->call([&] { proofs.reset(); });
}

}  // namespace
}  // namespace elastic::host
