#pragma once

// Where the coordinator of a job runs, and how it came to run there. Plain values.

#include <cstdint>
#include <string>
#include <vector>

#include "elastic/time.h"

namespace elastic {

struct CoordinatorInfo {
  std::string address;  // where it accepts sessions: host:port; "": unknown
  // Terms are compared within a lineage: 32 hexadecimal digits; "": the job has one voter.
  std::string lineage;
  std::uint64_t term = 1;
  std::vector<std::string> voters;  // their voter ports; empty: the job has one voter

  bool operator==(const CoordinatorInfo&) const = default;
};

// The coordinator of a job runs in another process than before, as a node saw it.
struct CoordinatorMove {
  std::string from;   // the address of the former coordinator
  std::string cause;  // "connection_closed", "silent" or "handed_over"
  Duration took{};    // from the last contact with the former coordinator to the new session
};

}  // namespace elastic
