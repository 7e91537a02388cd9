#include "os/loop/random_seed.h"

#include <sys/random.h>

#include <cerrno>

#include "core/base/check.h"

namespace elastic::os {

std::uint64_t random_seed() {
  std::uint64_t seed = 0;
  ssize_t got = 0;
  do {
    got = ::getrandom(&seed, sizeof seed, 0);
  } while (got < 0 && errno == EINTR);
  ELASTIC_CHECK(got == sizeof seed);  // also the secrets of nodes come from here: no substitute
  return seed;
}

}  // namespace elastic::os
