#pragma once

// A coordinator and the nodes of a test.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "elastic/coordinator.h"
#include "host/coordinator/session_test_client.h"
#include "host/coordinator/turned_coordinator.h"
#include "support/loop_group.h"

namespace elastic::host {

// `Server`: Coordinator, on its thread; or TurnedCoordinator, which needs a group in `Base`.
template <typename Server, typename Base>
class CoordinatorFixture : public Base {
 protected:
  void start(const CoordinatorOptions& options = {}) {
    coordinator.reset();
    auto started = Server::start(options);
    ASSERT_TRUE(started.ok()) << started.status().message();
    coordinator = *std::move(started);
  }
  std::unique_ptr<SessionClient> connect(std::uint64_t node, const std::string& job = "job") {
    return std::make_unique<SessionClient>(coordinator->port(), node, job);
  }
  // A running round of nodes 1 to n.
  std::vector<std::unique_ptr<SessionClient>> run_round(int n, const JobSettings& settings) {
    std::vector<std::unique_ptr<SessionClient>> nodes;
    for (int i = 1; i <= n; ++i) {
      nodes.push_back(connect(static_cast<std::uint64_t>(i)));
      nodes.back()->join(settings);
    }
    for (const auto& node : nodes) node->expect<rdzv::Round>();
    return nodes;
  }

  std::unique_ptr<Server> coordinator;
};

class InVirtualTime : public testing::Test {
 protected:
  support::LoopGroup group;
};

using CoordinatorTest = CoordinatorFixture<Coordinator, testing::Test>;
using TurnedCoordinatorTest = CoordinatorFixture<TurnedCoordinator, InVirtualTime>;

}  // namespace elastic::host
