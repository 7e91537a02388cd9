#include "core/succession/meeting.h"

#include <algorithm>
#include <tuple>

namespace elastic::succession {
namespace {

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

}  // namespace elastic::succession
