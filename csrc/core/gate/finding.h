#pragma once

// What a check of a node has found. The node's agent makes findings and sends them to the
// coordinator, which may remember them by host.
//
// Pure.

#include <cstddef>
#include <cstdint>
#include <string>

#include "elastic/time.h"

namespace elastic::gate {

// kUnknown: the check could not tell. It is reported, and the node takes part.
enum class Verdict : std::uint8_t { kGood, kBad, kUnknown };

constexpr const char* to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::kGood: return "good";
    case Verdict::kBad: return "bad";
    case Verdict::kUnknown: break;
  }
  return "unknown";
}

// The limits of the texts of a finding; longer ones are cut by the node.
inline constexpr std::size_t kHostBytesMax = 255;
inline constexpr std::size_t kCheckBytesMax = 255;
inline constexpr std::size_t kReasonBytesMax = 1024;

struct Finding {
  std::string host;   // as the host calls itself; not the node's name, which has a process id
  std::string check;  // "gpu", "network", or the command
  Verdict verdict = Verdict::kUnknown;
  std::string reason;  // one line
  Duration age{};      // since it was found

  bool operator==(const Finding&) const = default;
};

}  // namespace elastic::gate
