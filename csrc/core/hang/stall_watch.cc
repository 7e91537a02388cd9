#include "core/hang/stall_watch.h"

#include <algorithm>
#include <utility>

#include "core/base/describe.h"
#include "core/base/text.h"

// Theory of operation. Nodes report since when a worker of theirs waits. While a rank waits, the
// job is looked at: what each rank waits in, and which ranks have done nothing since the last look.
// No look interrupts a worker. If two looks have the same verdict and its cause does nothing
// meanwhile, the stacks are collected for the line. Later looks find another cause of the same
// wait. A cause that works is looked at again: an evaluation or a checkpoint may end in a lock. It
// is noted, not reported: the timeout of a process group may be shorter than its work, and the
// worker that fails by it is not the cause.
//
// A verdict without a cause (a circle, different operations) is one only if no rank works: a rank
// may have begun an operation, and compute until it needs the result.

namespace elastic::core {
namespace {

bool are_all_in(const std::vector<std::int32_t>& ranks, const std::vector<std::int32_t>& sorted) {
  return std::ranges::all_of(
      ranks, [&](std::int32_t rank) { return std::ranges::binary_search(sorted, rank); });
}

}  // namespace

void StallWatch::follow(std::optional<Instant> since, Duration allowed, Instant now) {
  const bool is_same = since && since_ && *since <= *since_ + kSameStall;
  if (!is_same && since_) {
    if (!reported_.empty() || is_noted_) end_at_ = now + kStallOverDelay;
    if (!reported_.empty()) {
      end_ = std::exchange(reported_, "") + " after " + duration_text(now - *since_);
    }
    since_.reset();
    look_at_.reset();
    seen_.clear();
    told_.clear();
    place_.clear();
    note_.clear();
    is_noted_ = false;
    interval_ = kLookInterval;
  }
  if (!since || since_) return;
  since_ = since;
  look_at_ = add_saturating(*since, std::max(kFirstLook, allowed));
}

void StallWatch::look_again(Instant now) {
  look_at_ = now + interval_;
  interval_ = std::min(interval_ * 2, kLookIntervalMax);
}

// The rank that was named may have gone on, and stopped in the next operation, while a rank that
// waits for others still does.
void StallWatch::look_later(Instant now) {
  look_at_ = now + later_;
  later_ = std::min(later_ * 2, kLateLookIntervalMax);
  interval_ = kLookInterval;
}

bool StallWatch::looked(const CollectiveVerdict& verdict, const std::vector<std::int32_t>& idle,
                        const std::vector<std::int32_t>& all, bool is_complete, Instant now) {
  if (!since_) return false;
  if (is_reported() && (!is_complete || verdict.key.empty() || verdict.key == told_)) {
    if (verdict.key == told_) {
      seen_ = told_;
      suspect_ = verdict.suspect;
    }
    look_later(now);
    return false;
  }
  const bool is_same = std::exchange(seen_, verdict.key) == verdict.key && !verdict.key.empty();
  suspect_ = verdict.suspect;
  look_again(now);
  if (!is_same || !is_complete) return false;
  std::vector<std::int32_t> causes = verdict.causes.empty() ? all : verdict.causes;
  std::erase_if(causes, [&](std::int32_t rank) {  // a rank that has exited
    return !std::ranges::binary_search(all, rank);
  });
  have_exited_ = causes.empty();
  const bool is_idle = are_all_in(causes, idle);
  if (!is_idle && !std::exchange(is_noted_, true)) {
    note_ = verdict.key;
    if (!verdict.causes.empty()) {
      note_ += verdict.causes.size() == 1 ? "; it computes, reads or writes"
                                          : "; they compute, read or write";
    }
  }
  return is_idle;
}

std::string StallWatch::report(const CollectiveVerdict& verdict, Instant now) {
  if (!since_ || verdict.key != seen_) {
    if (since_) look_again(now);
    return "";
  }
  later_ = kLateLookInterval;
  look_later(now);
  told_ = seen_;
  place_ = verdict.place;
  const std::vector<std::int32_t>& causes = verdict.causes;
  reported_ = causes.empty() ? "the ranks" : describe_ranks(causes);
  reported_ += causes.size() == 1 ? " continues" : " continue";
  if (!have_exited_) return verdict.text;
  return verdict.text + (causes.size() == 1 ? "; it has exited" : "; they have exited");
}

std::optional<std::string> StallWatch::take_end(Instant now) {
  if (!end_at_ || now < *end_at_) return std::nullopt;
  end_at_.reset();
  return std::exchange(end_, "");
}

std::optional<hang::Stall> StallWatch::stall() const {
  if (!since_ || seen_.empty()) return std::nullopt;
  return hang::Stall{*since_, suspect_, seen_, seen_ == told_ ? place_ : ""};
}

void StallWatch::shift(Duration gap) {
  for (auto* const one : {&since_, &look_at_, &end_at_}) {
    if (*one) **one += gap;
  }
}

}  // namespace elastic::core
