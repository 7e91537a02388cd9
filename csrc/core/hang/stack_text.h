#pragma once

// Finds out from the text of faulthandler where a worker is.
//
// Pure.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/base/worker_evidence.h"
#include "core/hang/hang_types.h"

namespace elastic::core {

// The place of one worker, as a group of one.
hang::StackGroup locate(const WorkerEvidence& worker);

// The evidence of each worker as a person reads it: its rank and place, and all its threads.
std::string describe_stacks(const std::vector<WorkerEvidence>& workers);

// Joins workers at the same place, node by node. Sorted once at the end, so that the cost grows
// with the number of ranks, also if all of them are at one place.
class StackGroups {
 public:
  // Adds a group of one node. A group without ranks is ignored.
  void add(hang::StackGroup group);
  // Ranks are sorted, the groups are in the order of their first rank.
  std::vector<hang::StackGroup> take();

 private:
  std::vector<hang::StackGroup> groups_;
  std::map<std::pair<hang::StackGroup::Kind, std::string>, std::size_t> index_;  // by the place
};
// At most hang::kGroupsMax groups: the last one has the ranks of all further places.
std::vector<hang::StackGroup> group_stacks(const std::vector<WorkerEvidence>& workers);

// The rank that most probably keeps the others waiting; -1: the stacks do not tell.
std::int32_t find_suspect(const std::vector<hang::StackGroup>& groups);

}  // namespace elastic::core
