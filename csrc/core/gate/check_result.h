#pragma once

// What the end of a check's program means (docs/policy.md): a verdict in JSON on its output,
// else its exit code, and the reason as one line.
//
// Pure.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "core/gate/finding.h"
#include "elastic/time.h"
#include "elastic/worker_group.h"

namespace elastic::gate {

// How a check has ended.
struct CheckEnd {
  WorkerExit exit;                     // kUnknown: it was killed
  std::optional<Duration> limit = {};  // it was killed because it ran for this long
  std::string output = {};             // the end of it, at most kOutputBytesMax
  std::string error = {};              // why it could not be started; "": see exit
};

inline constexpr std::size_t kOutputBytesMax = std::size_t{64} << 10;

// Exit codes: 0 is good, up to this one bad, and others unknown, as a signal is.
inline constexpr int kBadCodeMax = 2;

struct CheckResult {
  Verdict verdict = Verdict::kUnknown;
  std::string reason;  // one printable line, at most kReasonBytesMax

  bool operator==(const CheckResult&) const = default;
};

CheckResult result_of(const CheckEnd& end);

// The verdict of the last JSON object that has one, of those that begin a line:
//   {"verdict": "good" | "bad" | "unknown", "reason": "..."}
//   {"overall_severity": "PASS" | "INFO" | "WARNING" | "CRITICAL" | "UNKNOWN", ...}
//   {"fail_count": 2, "failed_checks": [...]}
// The reason is empty if the object has none. nullopt: there is no such object.
std::optional<CheckResult> verdict_in(std::string_view output);

}  // namespace elastic::gate
