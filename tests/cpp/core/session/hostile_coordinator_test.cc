// No frame of a coordinator ends a member that runs a round, unless it decides about the job.

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "core/base/random.h"
#include "support/hostile_member.h"

namespace elastic::test {
namespace {

// ELASTIC_HOSTILE_SEEDS sets how many conversations are tried. fuzz/member_decoder_fuzz.cc looks
// for more of them.
TEST(HostileCoordinator, PropertyNoFrameEndsAMemberOrKeepsItBusy) {
  const char* const wanted = std::getenv("ELASTIC_HOSTILE_SEEDS");
  const int seeds = wanted == nullptr ? 1500 : std::atoi(wanted);
  for (int seed = 0; seed < seeds; ++seed) {
    Rng rng(static_cast<std::uint64_t>(seed));
    std::string input(rng.next() % 600, '\0');
    for (char& byte : input) byte = static_cast<char>(rng.next());
    SCOPED_TRACE("seed " + std::to_string(seed));
    run_hostile_coordinator(input);
  }
}

}  // namespace
}  // namespace elastic::test
