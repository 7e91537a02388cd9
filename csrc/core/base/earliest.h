#pragma once

// The earliest of several deadlines, of which some may not be set.

#include <initializer_list>
#include <optional>

#include "elastic/time.h"

namespace elastic::core {

// nullopt: none is set.
inline std::optional<Instant> earliest(std::initializer_list<std::optional<Instant>> deadlines) {
  std::optional<Instant> first;
  for (const std::optional<Instant>& one : deadlines) {
    if (one && (!first || *one < *first)) first = one;
  }
  return first;
}

}  // namespace elastic::core
