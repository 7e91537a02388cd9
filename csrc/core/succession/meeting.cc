#include "core/succession/meeting.h"

#include <algorithm>
#include <cstddef>
#include <tuple>

namespace elastic::succession {
namespace {

constexpr std::size_t kAnnouncedMax = 4096;  // as the jobs of a coordinator

// The lineage with the greater key continues.
auto key_of(const Incumbent& one) {
  return std::tuple(one.replaces.size(), one.term, ~one.lineage.high, ~one.lineage.low);
}

}  // namespace

Meeting meet(const std::optional<Incumbent>& ours, const Incumbent& theirs) {
  if (theirs.term == 0) return Meeting::kOurs;
  if (!ours) return Meeting::kTheirs;
  if (ours->lineage == theirs.lineage) {
    return theirs.term > ours->term ? Meeting::kLater : Meeting::kSame;
  }
  // Both have replaced more lineages than they name: their number does not order them.
  const bool is_cut = std::min(ours->replaces.size(), theirs.replaces.size()) >= kReplacedMax;
  if (is_cut && find_replaced(ours->replaces, theirs.lineage) != nullptr) return Meeting::kOurs;
  if (is_cut && find_replaced(theirs.replaces, ours->lineage) != nullptr) return Meeting::kTheirs;
  return key_of(*ours) > key_of(theirs) ? Meeting::kOurs : Meeting::kTheirs;
}

const Replaced* find_replaced(const std::vector<Replaced>& all, const reg::LineageId& lineage) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const Replaced& replaced) {
    return replaced.lineage == lineage;
  });
  return found == all.end() ? nullptr : &*found;
}

const Incumbent& AnnouncedCoordinators::add(const std::string& job, const Incumbent& announced,
                                            Instant now) {
  std::erase_if(all_, [&](const auto& one) { return now >= one.second.until; });
  if (all_.size() >= kAnnouncedMax && !all_.contains(job)) all_.erase(all_.begin());
  const auto [found, is_new] = all_.try_emplace(job, Entry{announced, {}});
  Entry& entry = found->second;
  const Meeting meeting = meet(entry.incumbent, announced);
  const bool is_repeated = meeting == Meeting::kSame && announced.term == entry.incumbent.term;
  if (is_new || is_repeated || meeting == Meeting::kLater || meeting == Meeting::kTheirs) {
    entry = {announced, add_saturating(now, kAnnouncedFor)};
  }
  return entry.incumbent;
}

const Incumbent* AnnouncedCoordinators::find(std::string_view job, Instant now) {
  std::erase_if(all_, [&](const auto& one) { return now >= one.second.until; });
  const bool is_only = job.empty() && all_.size() == 1;
  const auto found = is_only ? all_.begin() : all_.find(job);
  return found == all_.end() ? nullptr : &found->second.incumbent;
}

}  // namespace elastic::succession
