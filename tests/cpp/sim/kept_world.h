#pragma once

// A job whose record is kept by a store: processes with a KeptMachine each, one store with faults,
// and links between the processes that break. Their coordinators propose numbered contents, each
// the successor of the one that it continues.

#include <cstdint>
#include <string>
#include <vector>

#include "elastic/time.h"

namespace elastic::test {

enum class KeptScene : std::uint8_t {
  kStart,      // all processes start at once
  kLost,       // the coordinator's process is killed
  kHandOver,   // it ends in order
  kPartition,  // it is cut off from the other processes, and reaches the store
  kAlone,      // it is cut off from the store
  kFaults,     // all of these, and a store that loses answers and reads old versions
};

struct KeptReport {
  std::vector<std::string> violations;
  std::uint64_t offices = 0;  // that were taken
  std::uint64_t in_force = 0;
  Duration recovery{};  // from the last fault until all processes have the same coordinator
};

KeptReport simulate_kept(KeptScene scene, std::uint64_t seed, bool is_traced = false);

}  // namespace elastic::test
