#include "core/rendezvous/round_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <string>

#include "core/base/random.h"

namespace elastic::core {
namespace {

// The latest entry, searched from the end.
const FormerNode* search(const std::deque<FormerNode>& all, const NodeId& id) {
  const auto found =
      std::find_if(all.rbegin(), all.rend(), [&](const FormerNode& one) { return one.id == id; });
  return found == all.rend() ? nullptr : &*found;
}

FormerNode former(std::uint64_t id, const std::string& reason) {
  return {.id = {0, id}, .name = "node" + std::to_string(id), .reason = reason};
}

// Nodes leave again and again, and more of them than are kept.
TEST(FormerNodes, FindsTheLatestEntryOfEachNode) {
  Rng rng(7);
  FormerNodes nodes;
  constexpr std::size_t kMax = 16;
  for (int step = 0; step < 2000; ++step) {
    nodes.add(former(rng.next() % 24, "step " + std::to_string(step)), kMax);
    if (step % 500 == 499) nodes.assign(std::deque<FormerNode>(nodes.all()));
    ASSERT_LE(nodes.all().size(), kMax);
    ASSERT_EQ(nodes.newest().reason, "step " + std::to_string(step));
    for (std::uint64_t id = 0; id < 24; ++id) {
      ASSERT_EQ(nodes.find({0, id}), search(nodes.all(), {0, id})) << "node " << id;
    }
  }
  nodes.clear();
  EXPECT_EQ(nodes.find({0, 1}), nullptr);
}

}  // namespace
}  // namespace elastic::core
