#include "core/succession/jobs_elsewhere.h"

#include <algorithm>
#include <cstddef>

namespace elastic::succession {
namespace {

constexpr std::size_t kJobsMax = 4096;  // as the jobs of a coordinator
// An announcement may be lost.
constexpr Duration kAwaitedFor = 2 * kAnnounceInterval;

}  // namespace

void JobsElsewhere::expire(Instant now) {
  std::erase_if(all_, [&](const auto& one) { return now >= one.second.until; });
}

const Incumbent& JobsElsewhere::announced(const std::string& job, const Incumbent& by,
                                          Instant now) {
  expire(now);
  if (all_.size() >= kJobsMax && !all_.contains(job)) all_.erase(all_.begin());
  const auto [found, is_new] = all_.try_emplace(job, Entry{by, {}});
  Entry& entry = found->second;
  const bool is_first = is_new || entry.incumbent.term == 0;
  const Meeting meeting = is_first ? Meeting::kTheirs : meet(entry.incumbent, by);
  const bool is_repeated = meeting == Meeting::kSame && by.term == entry.incumbent.term;
  if (is_repeated || meeting == Meeting::kLater || meeting == Meeting::kTheirs) {
    entry = {by, add_saturating(now, kAnnouncedFor)};
  }
  return entry.incumbent;
}

void JobsElsewhere::lost(const std::string& job, const std::optional<Incumbent>& successor,
                         Instant now) {
  if (job == own_) return set_own(successor.value_or(Incumbent{}));
  if (successor) {
    announced(job, *successor, now);
  } else if (all_.size() < kJobsMax) {
    all_.try_emplace(job, Entry{{}, add_saturating(now, kAwaitedFor)});
  }
}

void JobsElsewhere::remove(const std::string& job) {
  all_.erase(job);
  if (job == own_) own_incumbent_.reset();
}

const Incumbent* JobsElsewhere::find(std::string_view job, Instant now) {
  expire(now);
  const bool is_own = own_incumbent_ && (job == own_ || (job.empty() && all_.empty()));
  const bool is_only = job.empty() && !own_incumbent_ && all_.size() == 1;
  const auto found = is_only ? all_.begin() : all_.find(job);
  const bool is_known = found != all_.end() && found->second.incumbent.term > 0;
  if (is_known) return &found->second.incumbent;
  return is_own && !own_incumbent_->address.empty() ? &*own_incumbent_ : nullptr;
}

Duration JobsElsewhere::hold(std::string_view job, Instant now) const {
  const auto found = all_.find(job);
  const bool is_awaited = found != all_.end() && found->second.incumbent.term == 0;
  return is_awaited ? std::max(found->second.until - now, Duration::zero()) : Duration::zero();
}

std::optional<Incumbent> JobsElsewhere::answer(const Hello& hello, const Here& here, Instant now) {
  expire(now);
  if (!here.is_coordinated) {
    const auto found = all_.find(hello.job);
    const bool is_known = found != all_.end() && found->second.incumbent.term > 0;
    if (is_known && (!hello.lineage || *hello.lineage == found->second.incumbent.lineage)) {
      return found->second.incumbent;
    }
    if (hello.job == own_ && own_incumbent_) return own_incumbent_;
    if (!hello.lineage && !here.is_standby) return std::nullopt;
    return Incumbent{};
  }
  const bool is_of_other = hello.lineage && hello.lineage != here.lineage;
  return is_of_other ? std::optional(Incumbent{}) : std::nullopt;
}

}  // namespace elastic::succession
