#include "core/snapshot/copy_plan.h"

#include <algorithm>
#include <bit>
#include <compare>
#include <cstdint>
#include <set>
#include <utility>

// Theory of operation. Everything follows from the reports, so a coordinator that continues the job
// needs no state of the former one: it has the reports of all nodes after they have resumed.
//
// A step is ordered when all nodes hold it, and given up when one does not hold it any more: then a
// newer one follows, never an older one. The order names the step that was copied before, which no
// node discards until all have copied the new one. A node whose report names another target has not
// received the order.
//
// A report is up to a second old, and a rank has three snapshots at most: ranks that save often
// have no step in common when their reports meet. Then every rank keeps the first snapshot that it
// saves after a step that none has reached yet, which is of one step on all of them. If one has
// passed it meanwhile, the next such step is farther away.

namespace elastic::snapshot {
namespace {

constexpr std::size_t kRotationsMax = 16;  // that are of use: copies of a node
constexpr std::size_t kAllTriedMax = 512;  // nodes
constexpr std::int64_t kMarginMax = 1 << 20;
constexpr std::int64_t kStepMax = INT64_MAX - 2 * kMarginMax;

bool contains(const std::vector<SavedStep>& steps, const SavedStep& step) {
  return std::find(steps.begin(), steps.end(), step) != steps.end();
}

template <typename Members>
std::set<SavedStep> common_steps(const Members& members, std::vector<SavedStep> CopyReport::*list) {
  const std::vector<SavedStep>& first = members.front().report->*list;
  std::set<SavedStep> common(first.begin(), first.end());
  for (const auto& one : members) {
    std::erase_if(common,
                  [&](const SavedStep& step) { return !contains(one.report->*list, step); });
  }
  return common;
}

}  // namespace

std::vector<std::size_t> assign_buddies(const std::vector<CopyPlace>& places) {
  struct Rotation {
    std::size_t shared_hosts = 0;
    std::size_t shared_domains = 0;
    std::size_t shift = 0;
    auto operator<=>(const Rotation&) const = default;
  };
  const std::size_t count = places.size();
  std::vector<Rotation> rotations;
  for (std::size_t shift = 1; shift < count; ++shift) {
    // Of a large job not every rotation is tried: that would take a second for 10,000 nodes.
    const bool is_tried =
        shift <= kRotationsMax || count <= kAllTriedMax || std::has_single_bit(shift);
    if (!is_tried) continue;
    Rotation& one = rotations.emplace_back(Rotation{.shift = shift});
    for (std::size_t i = 0; i < count; ++i) {
      const CopyPlace& other = places[(i + shift) % count];
      if (places[i].host == other.host) ++one.shared_hosts;
      if (!other.domain.empty() && places[i].domain == other.domain) ++one.shared_domains;
    }
    if (shift >= kRotationsMax && one.shared_hosts + one.shared_domains == 0) break;
  }
  std::sort(rotations.begin(), rotations.end());
  std::vector<std::size_t> shifts;
  for (const Rotation& one : rotations) shifts.push_back(one.shift);
  return shifts;
}

void CopyPlan::on(const core::round_event::Left& event, Out*) {
  reports_.erase(event.node);
  buddies_.clear();
}

bool CopyPlan::take_changed() {
  const bool has_changed = shown_ != copied_;
  shown_ = copied_;
  return has_changed;
}

void CopyPlan::on(const Copied& event, Out* out) {
  const CopyReport& report = event.report;
  if (round_ != event.round) {
    round_ = event.round;
    buddies_.clear();
    target_ = copied_ = base_ = released_ = {};
    hold_ = -1;
    margin_ = kMarginMin;
    std::erase_if(reports_, [&](const auto& one) { return one.second.round != round_; });
  }
  nodes_ = event.nodes;
  if (report.round != round_) return;
  reports_[event.node] = report;
  const std::vector<Member> all = members();
  if (all.empty()) return;
  if (buddies_.empty()) {
    std::vector<CopyPlace> places;
    for (const Member& one : all) places.push_back({one.report->host, one.report->domain});
    buddies_ = assign_buddies(places);
    if (buddies_.empty()) return;
    target_ = {};
    return begin_next(out);
  }
  is_given_up_ = is_given_up_ || !contains(report.own, target_);
  if (target_.step < 0 || is_given_up_ || has_copied_all()) return begin_next(out);
  if (report.target == target_) return;
  const auto rank = static_cast<std::size_t>(report.group_rank);
  out->push_back({event.node, order_for(rank, all)});
}

// By node rank; empty while a report is missing.
std::vector<CopyPlan::Member> CopyPlan::members() const {
  std::vector<Member> members(nodes_);
  for (const auto& [id, report] : reports_) {
    const bool is_member = report.group_rank >= 0 &&
                           static_cast<std::size_t>(report.group_rank) < nodes_ &&
                           !report.address.empty();
    if (is_member) members[static_cast<std::size_t>(report.group_rank)] = {id, &report};
  }
  const bool is_whole = std::all_of(members.begin(), members.end(),
                                    [](const Member& one) { return one.report != nullptr; });
  return is_whole ? members : std::vector<Member>();
}

bool CopyPlan::has_copied_all() const {
  return target_.step >= 0 && std::all_of(reports_.begin(), reports_.end(), [&](const auto& one) {
           return contains(one.second.copied, target_);
         });
}

// The newest step that all nodes hold, if it is newer than all that were ordered: a node that has
// received a later order does not keep an earlier step.
void CopyPlan::begin_next(Out* out) {
  const std::vector<Member> all = members();
  if (has_copied_all()) copied_ = base_ = target_;
  const std::set<SavedStep> common = common_steps(all, &CopyReport::own);
  if (common.empty()) return settle(out);
  SavedStep last = target_;
  for (const Member& one : all) last = std::max(last, one.report->target);
  const bool is_taken_over = target_.step < 0 && common.contains(last);
  const SavedStep next = is_taken_over ? last : *common.rbegin();
  if (!is_taken_over && next <= last) return settle(out);
  target_ = next;
  hold_ = -1;
  is_given_up_ = false;
  if (base_.step < 0) {
    // By the orders of a former coordinator; or perhaps in an earlier round.
    std::set<SavedStep> older = common_steps(all, &CopyReport::copied);
    older.erase(target_);
    if (older.empty()) older = {common.begin(), common.find(target_)};
    if (!older.empty()) base_ = *older.rbegin();
  }
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    out->push_back({all[rank].id, order_for(rank, all)});
  }
}

// There is no newer step that all nodes hold. If all have copied the target, the step before is not
// kept any more, so that the ranks save into its memory; a node that does not receive that keeps
// more. If every node has something newer, a step is held.
void CopyPlan::settle(Out* out) {
  bool must_send =
      copied_.step >= 0 && copied_ == target_ && std::exchange(released_, target_) != target_;
  const std::vector<Member> all = members();
  SavedStep last = target_;
  for (const Member& one : all) last = std::max(last, one.report->target);
  if (last > target_) {  // of a former coordinator, and a node does not hold it any more
    target_ = last;
    is_given_up_ = true;
    const std::set<SavedStep> copied = common_steps(all, &CopyReport::copied);
    if (!copied.empty()) base_ = *copied.rbegin();
  }
  SavedStep first_newest{INT64_MAX, 0};
  SavedStep newest;
  for (const Member& one : all) {
    const std::vector<SavedStep>& own = one.report->own;
    const SavedStep its = own.empty() ? SavedStep{} : *std::max_element(own.begin(), own.end());
    first_newest = std::min(first_newest, its);
    newest = std::max(newest, its);
  }
  if (first_newest > last && first_newest.step >= hold_ && newest.step < kStepMax) {
    if (hold_ >= 0) margin_ = std::min(2 * margin_, kMarginMax);
    hold_ = newest.step + std::max(margin_, (newest.step - first_newest.step) / 4);
    must_send = true;
  }
  if (!must_send) return;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    out->push_back({all[rank].id, order_for(rank, all)});
  }
}

CopyOrder CopyPlan::order_for(std::size_t rank, const std::vector<Member>& members) const {
  CopyOrder order{.round = round_, .step = target_, .base = base_, .hold = hold_};
  const auto wanted = static_cast<std::size_t>(members[rank].report->buddies);
  for (std::size_t i = 0; i < std::min(wanted, buddies_.size()); ++i) {
    const CopyReport& other = *members[(rank + buddies_[i]) % members.size()].report;
    const Buddy buddy{other.address, other.host};
    if (i == 0) {
      order.buddy = buddy;
    } else {
      order.more.push_back(buddy);
    }
  }
  return order;
}

}  // namespace elastic::snapshot
