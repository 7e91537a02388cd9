#include "core/succession/meeting.h"

#include <tuple>

namespace elastic::succession {
namespace {

// The lineage with the greater key continues.
auto key_of(const Incumbent& one) {
  return std::tuple(one.term, ~one.lineage.high, ~one.lineage.low);
}

}  // namespace

Meeting meet(const std::optional<Incumbent>& ours, const Incumbent& theirs) {
  if (theirs.term == 0) return Meeting::kOurs;
  if (!ours) return Meeting::kTheirs;
  if (ours->lineage == theirs.lineage) {
    return theirs.term > ours->term ? Meeting::kLater : Meeting::kSame;
  }
  return key_of(*ours) > key_of(theirs) ? Meeting::kOurs : Meeting::kTheirs;
}

}  // namespace elastic::succession
