#pragma once

// The scenes of the register's simulation. Each takes a seed, which decides what happens when, and
// reports what went against the invariants or against the promise of the scene.

#include <cstdint>
#include <string_view>

#include "sim/register_world.h"

namespace elastic::test {

enum class RegisterScene : std::uint8_t {
  kFaults,       // partitions of every shape, crashes, restarts, stalls, late messages; then an end
  kTwoLineages,  // the same, with two lineages whose nodes change sides
  kOldFiles,     // every node finds the file of its former life when it is started again
  kHostLost,     // any one host is lost for good, and nothing else
  kLosses,       // hosts are lost one after the other, until two are left
  kTwoOfFive,    // two of five new voters are lost at once
  kBadLink,      // one voter and the coordinator cannot reach each other
  kMinority,     // the coordinator is cut off with a minority
  kDeafVoter,    // a voter answers, and accepts nothing; then another one is lost
};
inline constexpr std::string_view kRegisterScenes[] = {"faults",    "two-lineages", "old-files",
                                                       "host-lost", "losses",       "two-of-five",
                                                       "bad-link",  "minority",     "deaf-voter"};

RegisterSimReport simulate_register(RegisterScene scene, std::uint64_t seed,
                                    const RegisterSimOptions& options);

}  // namespace elastic::test
