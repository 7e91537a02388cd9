#pragma once

// Whether a guardian that does not confirm its SIGKILL in time is killed, or gets more time.
//
// Pure. Not thread-safe.

#include <chrono>
#include <utility>

#include "elastic/time.h"

namespace elastic::core {

// A guardian that is stopped, or that the kernel does not let run, never kills the workers: its own
// end does. One that is ready to run will: it has so many processes beside it, such as those of a
// worker that forks without end, that it rarely gets a processor.
class SilentGuardian {
 public:
  static constexpr Duration kPause = std::chrono::milliseconds(200);  // from a look to the next
  static constexpr Duration kStarvedMax = std::chrono::seconds(60);
  // A guardian at work sleeps now and then for a moment (a lock of a process that it looks at).
  static constexpr int kIdleLooksMax = 2;

  explicit SilentGuardian(Instant since) : until_(since + kStarvedMax) {}

  // `state` as in /proc/<pid>/stat. True: it is killed now; false: look again after kPause.
  bool must_end(char state, Instant now) {
    constexpr char kRunnable = 'R';
    idle_looks_ = state == kRunnable ? 0 : idle_looks_ + 1;
    return idle_looks_ >= kIdleLooksMax || now >= until_;
  }
  // True once, when the last look has found it ready to run.
  bool take_report() { return idle_looks_ == 0 && !std::exchange(is_reported_, true); }

 private:
  const Instant until_;
  int idle_looks_ = 0;  // in a row
  bool is_reported_ = false;
};

}  // namespace elastic::core
