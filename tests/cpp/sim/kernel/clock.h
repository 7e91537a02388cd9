#pragma once

// Simulated time: the next entry that is due runs next, and ties are broken by a seeded order, so
// that one seed is one run and many seeds explore many orders.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "core/base/random.h"
#include "elastic/time.h"

namespace elastic::test {

// Random values for simulations.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : rng_(seed) {}

  std::uint64_t next() { return rng_.next(); }
  // Both ends included.
  int between(int low, int high) {
    return low + static_cast<int>(rng_.next() % static_cast<std::uint64_t>(high - low + 1));
  }
  Duration between(Duration low, Duration high) {
    const auto span = static_cast<std::uint64_t>((high - low).count()) + 1;
    return low + Duration(static_cast<Duration::rep>(rng_.next() % span));
  }
  bool chance(double probability) { return rng_.next_fraction() < probability; }

 private:
  Rng rng_;
};

class SimClock {
 public:
  static constexpr Instant kBegin{std::chrono::hours(1)};

  explicit SimClock(std::uint64_t seed) : dice_(seed ^ 0x5EEDC10C) {}

  Instant now() const { return now_; }
  void at(Instant when, std::function<void()> what) {
    queue_.push_back({std::max(when, now_), dice_.next(), std::move(what)});
    std::push_heap(queue_.begin(), queue_.end(), Later());
  }
  void after(Duration wait, std::function<void()> what) { at(now_ + wait, std::move(what)); }
  // Advances to the next entry and runs it; false if none is due by `until`.
  bool run_next(Instant until) {
    if (queue_.empty() || queue_.front().when > until) return false;
    std::pop_heap(queue_.begin(), queue_.end(), Later());
    Entry entry = std::move(queue_.back());
    queue_.pop_back();
    now_ = entry.when;
    entry.what();
    return true;
  }

 private:
  struct Entry {
    Instant when;
    std::uint64_t tie;
    std::function<void()> what;
  };
  struct Later {
    bool operator()(const Entry& a, const Entry& b) const {
      return a.when != b.when ? a.when > b.when : a.tie > b.tie;
    }
  };

  Instant now_ = kBegin;
  Dice dice_;
  std::vector<Entry> queue_;
};

// A deadline that moves. Its owner sets it again when it has rung.
class Alarm {
 public:
  // A time that was set before stands if it is earlier, so `ring` may find that nothing is due.
  void set(SimClock* clock, Instant when, std::function<void()> ring) {
    if (at_ > clock->now() && when >= at_) return;
    at_ = when;
    clock->at(when, [this, number = ++number_, ring = std::move(ring)] {
      if (number != number_) return;
      at_ = Instant::max();
      ring();
    });
  }
  void cancel() {
    ++number_;
    at_ = Instant::max();
  }

 private:
  Instant at_ = Instant::max();
  std::uint64_t number_ = 0;
};

// A process that can be paused: what reaches it meanwhile happens when it continues.
class Pause {
 public:
  bool is_on() const { return is_on_; }
  Duration total() const { return total_; }

  void begin(Instant now) {
    is_on_ = true;
    began_ = now;
  }
  // Returns how long it lasted. What waits stays until run_waiting().
  Duration end(Instant now) {
    is_on_ = false;
    total_ += now - began_;
    return now - began_;
  }
  void run_waiting() {
    while (!waiting_.empty() && !is_on_) {
      const auto what = std::move(waiting_.front());
      waiting_.pop_front();
      what();
    }
  }
  // The process ends.
  void cancel() {
    is_on_ = false;
    waiting_.clear();
  }
  void run(std::function<void()> what) {
    if (is_on_) {
      waiting_.push_back(std::move(what));
    } else {
      what();
    }
  }

 private:
  bool is_on_ = false;
  Instant began_;
  Duration total_{};
  std::deque<std::function<void()>> waiting_;
};

}  // namespace elastic::test
