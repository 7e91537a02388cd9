#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace elastic {

// What follows a failure.
enum class FailureAction : std::uint8_t {
  kStop,
  kRestart,
  kExclude,  // a restart, and the job does without the host for a while
};

// What a function of the user says about a failed worker. It decides where no rule of the failure
// policy matches (docs/policy.md).
struct FailureAdvice {
  FailureAction action = FailureAction::kRestart;
  std::optional<bool> counts = {};  // against the restart budget; nullopt: as without advice
  std::string from = {};            // in messages: "the policy function site"
  std::string reason = {};          // one line; or ""

  bool operator==(const FailureAdvice&) const = default;
};

}  // namespace elastic
