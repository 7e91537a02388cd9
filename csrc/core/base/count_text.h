#pragma once

// A number and its noun in a message: "1 node", "2 nodes".

#include <concepts>
#include <string>
#include <string_view>

namespace elastic::core {

template <std::integral Number>
std::string count_text(Number count, std::string_view noun) {
  return std::to_string(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}

}  // namespace elastic::core
