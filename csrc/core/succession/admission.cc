#include "core/succession/admission.h"

namespace elastic::succession {
namespace {

constexpr std::size_t kJobsMax = 4096;  // as the jobs of a coordinator
// An announcement may be lost.
constexpr Duration kAwaitedFor = 2 * kAnnounceInterval;

constexpr bool is_in_order() {
  for (std::size_t i = 0; i < kStandings; ++i) {
    if (static_cast<std::size_t>(kAdmissionTable[i].standing) != i) return false;
  }
  return true;
}
static_assert(is_in_order(), "a row of the table is missing, or not at its place");

}  // namespace

void Admission::expire(Instant now) {
  std::erase_if(all_, [&](const auto& one) { return now >= one.second.until; });
}

const Incumbent& Admission::note(const std::string& job, const Incumbent& by, Instant now) {
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

void Admission::lost(const std::string& job, const std::optional<Incumbent>& successor,
                     Instant now) {
  if (job == own_) return set_own(successor.value_or(Incumbent{}));
  if (successor) {
    note(job, *successor, now);
  } else if (all_.size() < kJobsMax) {
    all_.try_emplace(job, Entry{{}, add_saturating(now, kAwaitedFor)});
  }
}

void Admission::began(const std::string& job) {
  all_.erase(job);
  if (job != own_) return;
  own_incumbent_.reset();
}

Admission::Elsewhere Admission::find(const Call& call, Instant now) const {
  const bool is_only = call.job.empty() && !own_incumbent_ && all_.size() == 1;
  const auto found = is_only ? all_.begin() : all_.find(call.job);
  const bool is_noted = found != all_.end() && found->second.incumbent.term > 0;
  const bool is_own = own_incumbent_ && (call.job == own_ || (call.job.empty() && all_.empty()));
  // The agent of a job knows better than an announcement of another lineage.
  const bool is_strange =
      is_noted && call.lineage && *call.lineage != found->second.incumbent.lineage;
  if (is_noted && !(is_own && is_strange)) return {Standing::kElsewhere, found->second.incumbent};
  if (is_own) {
    const bool is_placed = !own_incumbent_->address.empty();
    return {is_placed ? Standing::kElsewhere : Standing::kUnplaced, *own_incumbent_};
  }
  if (is_standby_) return {Standing::kStandby};
  if (found == all_.end()) return {Standing::kNew};
  return {Standing::kAwaited, {}, found->second.until - now};
}

Admission::Answer Admission::answer(const Call& call, const std::optional<Here>& here,
                                    Instant now) {
  expire(now);
  const Elsewhere elsewhere = here ? Elsewhere{here->standing} : find(call, now);
  const std::optional<Incumbent> incumbent = here ? here->incumbent : elsewhere.incumbent;
  const auto caller = [&] {
    if (call.from == Call::From::kObserver) return Caller::kObserver;
    if (call.from == Call::From::kCoordinator) return Caller::kCoordinator;
    if (!call.lineage) return Caller::kNewcomer;
    // The nodes of the own job go where its agent goes.
    const bool is_own = !here && call.job == own_ && incumbent == own_incumbent_;
    const bool is_member = incumbent && incumbent->lineage == *call.lineage;
    return is_own || is_member ? Caller::kMember : Caller::kStranger;
  }();
  Answer answer{.reaction = reaction_to(elsewhere.standing, caller), .hold = elsewhere.hold};
  if (answer.reaction == Reaction::kCompare) {
    const bool goes_on = meet(incumbent, call.announced) != Meeting::kTheirs;
    answer.reaction = goes_on ? Reaction::kKeep : Reaction::kGiveWay;
  }
  if (answer.reaction == Reaction::kNote) {
    answer.incumbent = note(call.job, call.announced, now);
  } else if (answer.reaction != Reaction::kSearch) {
    answer.incumbent = incumbent.value_or(Incumbent{});
  }
  return answer;
}

}  // namespace elastic::succession
