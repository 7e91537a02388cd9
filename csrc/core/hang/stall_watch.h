#pragma once

// Decides when a job whose ranks wait in collective operations is looked at, and when the rank that
// they wait for is named: it does nothing, which two looks have shown.
//
// Pure. A part of HangWatch, which collects the evidence.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/hang/collective_verdict.h"
#include "core/hang/hang_types.h"
#include "elastic/time.h"

namespace elastic::core {

// From the last progress to the first look, and from each look to the next one. The second one is
// the earliest that names a rank: a line is logged within 15 s, with what a report takes.
inline constexpr Duration kFirstLook = std::chrono::seconds(7);
inline constexpr Duration kLookInterval = std::chrono::seconds(5);
inline constexpr Duration kLookIntervalMax = std::chrono::seconds(10);  // of a rank that works
// After a line, while the same ranks wait.
inline constexpr Duration kLateLookInterval = std::chrono::seconds(30);
inline constexpr Duration kLateLookIntervalMax = std::chrono::minutes(5);
// Ranks wait no more: their operation may have failed, and a process takes its time to end by it.
inline constexpr Duration kStallOverDelay = std::chrono::seconds(10);
// Reports of one wait are placed on the watch's clock by their ages, which the network delays.
inline constexpr Duration kSameStall = std::chrono::seconds(2);

class StallWatch {
 public:
  // Since when nothing in the job has made progress and a rank waits; nullopt: none waits.
  // `allowed`: how long that may take by an open section.
  void follow(std::optional<Instant> since, Duration allowed, Instant now);
  // When a look is due, until looked() is called; nullopt: no rank waits.
  std::optional<Instant> look_at() const { return look_at_; }
  // When take_end() has a line.
  std::optional<Instant> end_at() const { return end_at_; }

  // What the nodes have measured. `idle`: sorted; ranks that have done nothing since the last look.
  // `all`: every rank that runs; `is_complete`: all nodes have replied.
  // Returns true if the stall is to be reported, with stacks.
  bool looked(const CollectiveVerdict& verdict, const std::vector<std::int32_t>& idle,
              const std::vector<std::int32_t>& all, bool is_complete, Instant now);
  // The verdict with stacks. Returns the line to report; "": the ranks are elsewhere by now.
  std::string report(const CollectiveVerdict& verdict, Instant now);
  // The line for the end of a stall that was reported; "": the end of one that was only noted;
  // nullopt: it is not due.
  std::optional<std::string> take_end(Instant now);
  // Once for each stall whose cause works, after the looked() that found it: one sentence, in case
  // that it makes a worker fail. "": there is none.
  std::string take_note() { return std::exchange(note_, ""); }

  // nullopt: none is known.
  std::optional<hang::Stall> stall() const;
  // The line about it was logged, and the ranks still wait: the cause does nothing.
  bool is_reported() const { return !reported_.empty(); }

  void shift(Duration gap);
  // The round is over.
  void clear() { *this = {}; }

 private:
  void look_again(Instant now);
  void look_later(Instant now);

  std::optional<Instant> since_;
  std::optional<Instant> look_at_;
  Duration interval_ = kLookInterval;
  Duration later_ = kLateLookInterval;  // to the next look after a line
  std::string seen_;                    // the key of the last look's verdict
  std::int32_t suspect_ = -1;
  std::string told_;   // the key of the line that was logged last for this stall
  std::string place_;  // of the suspect in that line
  std::string note_;
  bool is_noted_ = false;     // this stall
  bool have_exited_ = false;  // all that the ranks wait for
  // The line that was logged for this stall was about these; empty `reported_`: none was.
  std::string reported_;
  std::optional<Instant> end_at_;
  std::string end_;
};

}  // namespace elastic::core
