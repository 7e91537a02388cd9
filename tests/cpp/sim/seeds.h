#pragma once

// Which seeds the simulations run, by variables of the environment:
//
//   ELASTIC_SIM_PERCENT=5     a share of the seeds that a test has by default, at least two
//   ELASTIC_SIM_COUNT=100000  this many seeds of each scene
//   ELASTIC_SIM_FIRST=1001    beginning with this one

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace elastic::test {

// Averages over fewer seeds than these say nothing.
inline constexpr std::uint64_t kSeedsToJudge = 100;

inline std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::stoull(text);
}

struct Seeds {
  std::uint64_t first = 1;
  std::uint64_t end = 1;  // the seed after the last one
};

// The seeds of a scene that has `count` by default.
inline Seeds seeds_of(std::uint64_t count) {
  const std::uint64_t share = count * number_from("ELASTIC_SIM_PERCENT", 100) / 100;
  const std::uint64_t first = number_from("ELASTIC_SIM_FIRST", 1);
  return {first, first + number_from("ELASTIC_SIM_COUNT", std::max<std::uint64_t>(share, 2))};
}

}  // namespace elastic::test
