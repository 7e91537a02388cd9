#pragma once

// What an observer asks of a job about a host, and the answer. Plain values.

#include <cstdint>
#include <string>

namespace elastic::core {

namespace job_event {
// An observer excludes a host, or readmits it; it receives a gate_action::Inform. `host`: its name
// or address, or the name of one of its nodes.
struct HostRequested {
  std::uint64_t observer = 0;
  std::string host;
  std::string why;  // who wants it, and why
  bool is_readmission = false;
};
}  // namespace job_event

namespace gate_action {
struct Inform {
  std::uint64_t observer = 0;
  bool is_done = false;
  std::string text;
};
}  // namespace gate_action

}  // namespace elastic::core
