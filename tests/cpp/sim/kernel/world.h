#pragma once

// What every simulated world has: dice and a clock of one seed, links that can be cut, broken
// promises, counts and a trace.

#include <array>
#include <bitset>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "sim/kernel/clock.h"

namespace elastic::test {

struct SimReport {
  std::vector<std::string> violations;          // empty: every promise was kept
  std::vector<std::string> trace;               // only if asked for
  std::map<std::string, std::uint64_t> counts;  // what happened how often
  Duration recovery{};  // from the last fault, in the scenes that measure it
};

// Which of a few parties do not reach which.
class Cuts {
 public:
  void cut(std::size_t from, std::size_t to, bool is_cut = true) { cut_.at(from).set(to, is_cut); }
  void heal() { cut_ = {}; }
  bool has(std::size_t from, std::size_t to) const { return cut_.at(from).test(to); }
  bool has_any(std::size_t a, std::size_t b) const { return has(a, b) || has(b, a); }

 private:
  static constexpr std::size_t kParties = 32;
  std::array<std::bitset<kParties>, kParties> cut_;
};

class SimWorld {
 public:
  // `beside`: another world, whose clock and trace this one shares.
  SimWorld(std::uint64_t seed, bool is_traced, SimWorld* beside = nullptr)
      : own_clock_(seed),
        is_traced_(is_traced),
        beside_(beside),
        dice_(seed),
        clock_(beside == nullptr ? own_clock_ : beside->clock_) {}
  SimWorld(const SimWorld&) = delete;
  SimWorld& operator=(const SimWorld&) = delete;

  SimClock& clock() { return clock_; }
  Dice& dice() { return dice_; }
  bool is_good() const { return report_.violations.empty(); }
  void violate(const std::string& what) { report_.violations.push_back(what); }
  void count(const char* what, std::uint64_t times = 1) { report_.counts[what] += times; }
  void trace(const std::string& what) {
    if (beside_ != nullptr) return beside_->trace(what);
    if (!is_traced_) return;
    char at[32];
    std::snprintf(at, sizeof at, "%9.4f  ", to_seconds(clock_.now() - SimClock::kBegin));
    report_.trace.push_back(at + what);
  }

  // Both end when a promise is broken.
  void run(Duration time) {
    const Instant end = clock_.now() + time;
    while (is_good() && clock_.run_next(end)) {
    }
    clock_.at(end, [] {});
    clock_.run_next(end);
  }
  // Whether it was reached.
  template <typename Condition>
  bool run_until(Duration limit, const Condition& is_reached) {
    const Instant end = clock_.now() + limit;
    while (is_good() && !is_reached()) {
      if (!clock_.run_next(end)) return false;
    }
    return true;
  }

 private:
  SimClock own_clock_;
  bool is_traced_;
  SimWorld* beside_;

 protected:
  ~SimWorld() = default;

  Dice dice_;
  SimClock& clock_;
  SimReport report_;
};

}  // namespace elastic::test
