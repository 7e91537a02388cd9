#pragma once

// What an observer sees of a job's hosts.

#include <cstdint>
#include <string>

#include "elastic/time.h"

namespace elastic {

// What the job remembers of a host.
struct ObservedFinding {
  std::string host;
  std::string text;
  Duration age{};

  bool operator==(const ObservedFinding&) const = default;
};

// A host without which the job continues (docs/policy.md).
struct ObservedExclusion {
  std::string host;
  Duration left{};  // until it may join again
  std::string reason;
  std::int32_t times = 1;  // that it was excluded so far

  bool operator==(const ObservedExclusion&) const = default;
};

}  // namespace elastic
