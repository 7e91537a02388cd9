#pragma once

#include <cstdint>

namespace elastic::os {

// A number from the kernel's generator, to seed one of core/base/rng.h. Any thread.
std::uint64_t random_seed();

}  // namespace elastic::os
