// The invariant: no frame of a coordinator ends a member that runs a round, unless it decides about
// the job, and none keeps it busy (support/hostile_member.h).
//
// The bytes of the input choose the frames, and what else happens. Run:
// member_decoder_fuzz tests/cpp/fuzz/member_corpus -max_total_time=60

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "support/hostile_member.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  elastic::test::run_hostile_coordinator({reinterpret_cast<const char*>(data), size});
  return 0;
}
