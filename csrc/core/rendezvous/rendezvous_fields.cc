#include "core/rendezvous/rendezvous_fields.h"

#include "core/base/text.h"

namespace elastic::core {

// HOST_PID, or HOST_PID_N for a further node of the process, which is left to the caller.
std::string host_of(const std::string& node_name) {
  if (node_name.find(' ') != node_name.npos) return "";  // of a member that is not known here
  const std::size_t end = node_name.rfind('_');
  const bool has_process = end != node_name.npos && end > 0 && end + 1 < node_name.size() &&
                           node_name.find_first_not_of("0123456789", end + 1) == node_name.npos;
  return has_process ? node_name.substr(0, end) : node_name;
}

void copy_timings(const JobSettings& from, JobSettings* to) {
  for (const auto& [name, member] : kTimings) to->*member = from.*member;
}

std::string describe_timing_difference(const JobSettings& job, const JobSettings& own) {
  std::string differences;
  for (const auto& [name, member] : kTimings) {
    if (job.*member == own.*member) continue;
    differences += (differences.empty() ? "" : ", ") + std::string(name) + " is " +
                   duration_text(job.*member) + " (here " + duration_text(own.*member) + ")";
  }
  if (differences.empty()) return {};
  return "the timings of the job's first node replace those of this node: " + differences;
}

}  // namespace elastic::core
