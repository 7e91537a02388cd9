#pragma once

#include <cstddef>
#include <variant>

namespace elastic::core {

// A variant with its alternative of this index, default-constructed. An index that is too great
// gives the last one.
template <typename Variant, std::size_t Index = 0>
Variant alternative_of(std::size_t index) {
  if constexpr (Index + 1 < std::variant_size_v<Variant>) {
    if (index != Index) return alternative_of<Variant, Index + 1>(index);
  }
  return Variant(std::in_place_index<Index>);
}

}  // namespace elastic::core
