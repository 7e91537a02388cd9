#include "core/session/job_room.h"

#include <algorithm>

#include "core/base/text.h"

namespace elastic::core {
namespace {

// Jobs of one address that are allowed in any case.
constexpr std::size_t kJobsOfAddressMin = 16;

// The oldest idle job; `beginner`: "" stands for any.
const JobHere* find_idle(const std::vector<JobHere>& jobs, const std::string& beginner) {
  const JobHere* oldest = nullptr;
  for (const JobHere& one : jobs) {
    const bool is_candidate = one.is_idle && (beginner.empty() || one.beginner == beginner);
    if (is_candidate && (oldest == nullptr || one.serial < oldest->serial)) oldest = &one;
  }
  return oldest;
}

}  // namespace

Result<std::string> make_room(const std::vector<JobHere>& jobs, std::size_t jobs_max,
                              const std::string& beginner, bool needs_token) {
  if (jobs.size() >= jobs_max) {
    if (const JobHere* idle = find_idle(jobs, "")) return idle->id;
    return Status(StatusCode::kResourceExhausted,
                  "the coordinator has " + count_text(jobs.size(), "job") + ", which is its limit");
  }
  const std::size_t of_address_max = std::max(jobs_max / 4, std::min(jobs_max, kJobsOfAddressMin));
  const auto of_address = static_cast<std::size_t>(std::count_if(
      jobs.begin(), jobs.end(), [&](const JobHere& one) { return one.beginner == beginner; }));
  if (needs_token || of_address < of_address_max) return std::string();
  if (const JobHere* idle = find_idle(jobs, beginner)) return idle->id;
  return Status(StatusCode::kResourceExhausted,
                "the coordinator has " + std::to_string(of_address) + " jobs that " + beginner +
                    " began, which is its limit for an address without a token");
}

}  // namespace elastic::core
