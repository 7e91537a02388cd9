#pragma once

// From which snapshots a new round continues, given what its nodes hold; and what is said about it.
//
//   held by the nodes of the new round                          | the round continues
//   ------------------------------------------------------------|------------------------------
//   a save that each rank has: of the same world size, on the   | each rank from its own
//   node on which it runs again, or as a copy on another node   |
//   a newer save that is replicated, of any rank of any round,  | each node from one that it has;
//   on every node, or on one that sends it to the others        | the others get one of a node
//   neither; or a node whose workers keep their processes       | from none
//
// A save is what ranks have saved after one step in one round. It is replicated if no node holds a
// state of its round that is not.
//
// Pure.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/held_state.h"
#include "elastic/resume_point.h"

namespace elastic::snapshot {

// By the table, and without the steps that a node could not get. `nodes`: by node rank.
ResumePoint plan_resume(const std::vector<NodeHoldings>& nodes, int world_size);

// The newest step of which a node holds a snapshot of each of its ranks; -1: none.
std::int64_t newest_step(const std::vector<HeldState>& held, int world_size, int base_rank,
                         int ranks);

// Where the node of this rank gets the snapshots of its ranks that it does not hold: one for each.
// Of a replicated one: the only one, shared by its ranks that have none of their own. A node that
// holds it has itself as the source, and the other nodes get it from there.
std::vector<HeldSource> plan_sources(const std::vector<NodeHoldings>& nodes, int world_size,
                                     const ResumePoint& point, std::size_t node);

// What a node reports when a round begins for which it holds snapshots. `last`: the last step that
// its ranks had reported; -1: unknown. `base_rank`, `ranks`: its ranks in the round.
std::string describe_plan(const ResumePoint& point, std::int64_t last,
                          const std::vector<HeldState>& held, int world_size, int base_rank,
                          int ranks);

}  // namespace elastic::snapshot
