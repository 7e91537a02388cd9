#pragma once

#include <cstdint>

namespace elastic::os {

// A random number from the kernel, as the seed of an Rng (core/base/rng.h). Any thread.
std::uint64_t random_seed();

}  // namespace elastic::os
