#pragma once

// Runs simulations seed by seed, and one of them again with a trace. Variables of the environment
// choose the seeds:
//
//   ELASTIC_SIM_PERCENT=5     a share of the seeds that a test has by default, at least two
//   ELASTIC_SIM_COUNT=100000  this many seeds of each scene
//   ELASTIC_SIM_FIRST=1001    beginning with this one
//   ELASTIC_SIM_REPLAY=scene:7  for the test Replay: a failure prints it

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>

#include "sim/kernel/world.h"

namespace elastic::test {

// One of the suites of tests: how it runs a scene.
struct Simulation {
  const char* suite;
  SimReport (*run)(const std::string& scene, std::uint64_t seed, bool is_traced);
};

inline std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::stoull(text);
}

// The one of these, which have a name each.
template <typename Scenes>
const auto& scene_named(const Scenes& scenes, std::string_view name) {
  const auto found = std::find_if(std::begin(scenes), std::end(scenes),
                                  [&](const auto& one) { return one.name == name; });
  if (found == std::end(scenes)) throw std::invalid_argument("no scene " + std::string(name));
  return *found;
}

inline bool is_good(const Simulation& simulation, const std::string& scene, std::uint64_t seed,
                    const SimReport& report) {
  for (const std::string& violation : report.violations) ADD_FAILURE() << violation;
  if (report.violations.empty()) return true;
  ADD_FAILURE() << "replay: ELASTIC_SIM_REPLAY=" << scene << ":" << seed
                << " build/quick/tests/cpp/sim/sim_tests --gtest_filter=" << simulation.suite
                << ".Replay";
  return false;
}

struct Totals {
  std::uint64_t seeds = 0;
  std::map<std::string, std::uint64_t> counts;
  Duration longest{};  // recovery

  std::uint64_t operator[](const std::string& what) const {
    const auto found = counts.find(what);
    return found == counts.end() ? 0 : found->second;
  }
  // Averages over few seeds say nothing.
  bool can_be_judged() const { return seeds >= 100 && !testing::Test::HasFailure(); }
};

// `count`: of seeds, by default.
inline Totals sweep(const Simulation& simulation, const std::string& scene, std::uint64_t count) {
  const std::uint64_t share = count * number_from("ELASTIC_SIM_PERCENT", 100) / 100;
  const std::uint64_t first = number_from("ELASTIC_SIM_FIRST", 1);
  const std::uint64_t end =
      first + number_from("ELASTIC_SIM_COUNT", std::max<std::uint64_t>(share, 2));
  Totals total;
  int failed = 0;
  for (std::uint64_t seed = first; seed < end && failed < 3; ++seed) {
    const SimReport report = simulation.run(scene, seed, false);
    ++total.seeds;
    for (const auto& [what, times] : report.counts) total.counts[what] += times;
    total.longest = std::max(total.longest, report.recovery);
    if (!is_good(simulation, scene, seed, report)) ++failed;
  }
  return total;
}

inline void replay(const Simulation& simulation) {
  const char* which = std::getenv("ELASTIC_SIM_REPLAY");
  if (which == nullptr) GTEST_SKIP() << "set ELASTIC_SIM_REPLAY=<scene>:<seed> to see one run";
  const std::string text = which;
  const std::size_t colon = text.find(':');
  const std::string scene = text.substr(0, colon);
  const std::uint64_t seed = std::stoull(text.substr(colon + 1));
  const SimReport report = simulation.run(scene, seed, true);
  for (const std::string& line : report.trace) std::cout << line << "\n";
  is_good(simulation, scene, seed, report);
}

inline void expect_same_run(const Simulation& simulation, const std::string& scene) {
  const SimReport once = simulation.run(scene, 7, true);
  EXPECT_EQ(once.trace, simulation.run(scene, 7, true).trace) << scene;
  EXPECT_FALSE(once.trace.empty());
}

}  // namespace elastic::test
