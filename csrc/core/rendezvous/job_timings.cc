#include "core/rendezvous/job_timings.h"

#include <utility>

#include "core/base/duration_text.h"

namespace elastic::core {
namespace {

constexpr std::pair<const char*, Duration JobSettings::*> kTimings[] = {
    {"join_timeout", &JobSettings::join_timeout},
    {"last_call_timeout", &JobSettings::last_call_timeout},
    {"settle", &JobSettings::settle},
    {"shrink_delay", &JobSettings::shrink_delay},
    {"node_timeout", &JobSettings::node_timeout},
    {"reconnect_grace", &JobSettings::reconnect_grace},
    {"store_grace", &JobSettings::store_grace},
    {"restart_backoff", &JobSettings::restart_backoff},
};

}  // namespace

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
