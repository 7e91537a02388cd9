#include "core/rendezvous/rendezvous_fields.h"

#include "core/base/text.h"

namespace elastic::core {

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
