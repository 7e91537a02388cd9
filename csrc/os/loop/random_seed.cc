#include "os/loop/random_seed.h"

#include <sys/random.h>

#include "os/loop/clock.h"

namespace elastic::os {

std::uint64_t random_seed() {
  std::uint64_t seed = 0;
  if (::getrandom(&seed, sizeof seed, 0) == sizeof seed) return seed;
  // Only a kernel without the call gets here; what the seed serves needs to differ, not to be
  // secret.
  return static_cast<std::uint64_t>(monotonic_now().time_since_epoch().count());
}

}  // namespace elastic::os
