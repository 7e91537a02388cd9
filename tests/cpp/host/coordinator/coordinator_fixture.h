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

namespace elastic::host {

class CoordinatorTest : public testing::Test {
 protected:
  void start(const CoordinatorOptions& options = {}) {
    auto started = Coordinator::start(options);
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

  std::unique_ptr<Coordinator> coordinator;
};

}  // namespace elastic::host
