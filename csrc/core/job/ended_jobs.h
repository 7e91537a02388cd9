#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "elastic/rendezvous_types.h"
#include "elastic/time.h"

namespace elastic::core {

// A node that reconnects later than this is treated like a new node.
inline constexpr Duration kResultKept = std::chrono::minutes(10);

// The results of jobs that have ended and are no longer kept, for nodes that were lost before
// the end and return after it. Without it such a node would wait for a next job of the id, which
// no process starts.
class EndedJobs {
 public:
  // `lost`: the nodes that may not know the result. Replaces what is kept of an earlier job of the
  // id.
  void add(const std::string& id, std::shared_ptr<const JobResult> result,
           const std::vector<NodeId>& lost, Instant now);
  // Null: the node was not lost by an ended job of this id, or that is long ago.
  std::shared_ptr<const JobResult> result_for(const std::string& id, const NodeId& node,
                                              Instant now);

 private:
  struct Ended {
    std::shared_ptr<const JobResult> result;
    std::set<NodeId> lost;
    Instant until;
  };
  std::map<std::string, Ended> all_;
};

}  // namespace elastic::core
