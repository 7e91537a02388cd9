#pragma once

// One whole job: agents with their sessions, voters, coordinators that come and go, from one seed.
// Each process has the machines that production runs (session, succession, register, rendezvous,
// gate); the network between them cuts links one way or both, and delays.

#include <cstdint>
#include <string>
#include <vector>

#include "sim/sim_server.h"

namespace elastic::test {

enum class SuccessionScene : std::uint8_t {
  kHostLost,         // 3 hosts; the one of the hosting agent is lost
  kProcessLost,      // the same, and only the agent's process ends
  kStandaloneLost,   // 4 nodes; a separate coordinator ends and is not started again
  kStandaloneAgain,  // the same, and it is started again at once, without state
  kHandOver,         // the hosting agent resigns
  kPartition,        // five hosts: the coordinator's and another one are cut off, then it heals
  kTwoOfFive,        // two of five hosts are lost at once, the coordinator's among them
  kWitness,          // two nodes and a witness: one of them, or a link, is lost
  kOverride,         // a majority of the voters is lost for good, and an operator says so
  kFaults,           // crashes, cut links, leaves and failing workers at random
  kWitnessFaults,    // the same, with two nodes and a witness
  kSameId,           // a job's processes end, and the next job of its id has the same witness
  kReturn,           // the coordinator's host is replaced, and begins the job again at the endpoint
  kDoneLost,         // 3 hosts; that of the hosting agent, whose workers are done, is lost
};
inline constexpr const char* kSuccessionScenes[] = {
    "host-lost",      "process-lost", "standalone-lost", "standalone-again", "hand-over",
    "partition",      "two-of-five",  "witness",         "override",         "faults",
    "witness-faults", "same-id",      "return",          "done-lost"};

struct SuccessionOptions {
  ServiceRule deleted = ServiceRule::kNone;
  bool is_traced = false;
};

struct SuccessionReport {
  std::vector<std::string> violations;
  std::vector<std::string> trace;
  std::uint64_t rounds = 0;
  std::uint64_t elections = 0;
  std::uint64_t displaced = 0;  // jobs that began rounds at the endpoint, and dissolved
  Duration recovery{};          // from the loss to the first action of the next coordinator's round
};

SuccessionReport simulate_succession(SuccessionScene scene, std::uint64_t seed,
                                     const SuccessionOptions& options);

}  // namespace elastic::test
