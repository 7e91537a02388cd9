#pragma once

// Estimates the offset of another process's clock from replies that contain its time.
//
// Pure. The error is at most half the round trip, so the shortest one is used, and only of the
// latest samples, because clocks drift.

#include <algorithm>
#include <cstddef>
#include <vector>

#include "elastic/time.h"

namespace elastic::core {

class ClockEstimate {
 public:
  void clear() {
    samples_.clear();
    next_ = 0;
  }
  // `sent`, `received`: the times of request and reply, on this clock. `time`: on the other clock.
  void add(Instant sent, Instant received, Instant time) {
    const Duration round_trip = received - sent;
    if (round_trip < Duration::zero()) return;
    const Sample sample{time - (sent + round_trip / 2), round_trip};
    if (samples_.size() < kSamples) {
      samples_.push_back(sample);
      return;
    }
    samples_[next_] = sample;
    next_ = (next_ + 1) % kSamples;
  }
  // The other clock minus this clock; zero without a sample.
  Duration offset() const {
    const auto best = std::min_element(
        samples_.begin(), samples_.end(),
        [](const Sample& a, const Sample& b) { return a.round_trip < b.round_trip; });
    return best == samples_.end() ? Duration::zero() : best->offset;
  }

 private:
  static constexpr std::size_t kSamples = 8;
  struct Sample {
    Duration offset{};
    Duration round_trip{};
  };
  std::vector<Sample> samples_;  // the latest, as a ring
  std::size_t next_ = 0;
};

}  // namespace elastic::core
