#include "os/loop/random_seed.h"

#include <sys/random.h>

#include "os/loop/clock.h"

namespace elastic::os {

std::uint64_t random_seed() {
  std::uint64_t seed = 0;
  if (::getrandom(&seed, sizeof seed, 0) == sizeof seed) return seed;
  // Fallback for a kernel without getrandom: seeds must differ but need not be secret.
  return static_cast<std::uint64_t>(monotonic_now().time_since_epoch().count());
}

}  // namespace elastic::os
