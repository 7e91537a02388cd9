#include "core/snapshot/snapshot_status.h"

#include <gtest/gtest.h>

namespace elastic::snapshot {
namespace {

TEST(SnapshotStatus, TheNodeWithTheLeastMemoryIsNamed) {
  SnapshotStatus status;
  const NodeId ids[] = {{1, 1}, {1, 2}, {1, 3}};
  const auto save = [&](const NodeId& node, const MemoryUse& memory) {
    status.step(Saved{node, 7, Instant{}, memory}, {});
  };
  for (const NodeId& one : ids) save(one, {});
  EXPECT_EQ(status.newest(3, Instant{})->memory, std::nullopt);
  save(ids[0], MemoryUse{.own = 2, .copies = 2, .needed = 8, .limit = 20});
  save(ids[1], MemoryUse{.own = 4, .copies = 1, .needed = 8, .limit = 6});
  save(ids[2], MemoryUse{.own = 1, .needed = 4, .limit = 7});
  save(ids[2], MemoryUse{});  // of an older version
  const ObservedMemory expected{.own = 7, .copies = 3, .node = ids[1], .needed = 8, .limit = 6};
  EXPECT_EQ(status.newest(3, Instant{})->memory, expected);
  status.step(core::round_event::Left{ids[1]}, {});
  EXPECT_EQ(status.newest(2, Instant{})->memory->node, ids[2]);
  status.reset();
  EXPECT_EQ(status.newest(3, Instant{}), std::nullopt);
}

}  // namespace
}  // namespace elastic::snapshot
