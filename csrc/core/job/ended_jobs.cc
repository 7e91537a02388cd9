#include "core/job/ended_jobs.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace elastic::core {
namespace {

constexpr std::size_t kEndedJobsMax = 256;

}  // namespace

void EndedJobs::add(const std::string& id, std::shared_ptr<const JobResult> result,
                    const std::vector<NodeId>& lost, Instant now) {
  all_.erase(id);
  if (lost.empty()) return;
  std::erase_if(all_, [&](const auto& one) { return now >= one.second.until; });
  if (all_.size() >= kEndedJobsMax) {
    all_.erase(std::min_element(all_.begin(), all_.end(), [](const auto& a, const auto& b) {
      return a.second.until < b.second.until;
    }));
  }
  all_[id] = {std::move(result), {lost.begin(), lost.end()}, add_saturating(now, kResultKept)};
}

std::shared_ptr<const JobResult> EndedJobs::result_for(const std::string& id, const NodeId& node,
                                                       Instant now) {
  const auto found = all_.find(id);
  if (found == all_.end() || now >= found->second.until) return nullptr;
  return found->second.lost.contains(node) ? found->second.result : nullptr;
}

}  // namespace elastic::core
