#pragma once

// Two coordinators of one job id, and which of them continues (R8). Pure.
//
// An elected coordinator announces itself at the job's endpoint, where another process may have
// begun a job of the same id. Both sides decide by the same function, so they decide alike.

#include <cstdint>
#include <optional>

#include "core/base/timings.h"
#include "core/succession/succession_types.h"
#include "elastic/time.h"

namespace elastic::succession {

using core::kAnnounceInterval;
// How long a process at an endpoint directs nodes to a coordinator that announced itself. Some
// announcements may be lost meanwhile. Short, because a job that has ended announces itself no
// more, and the next one of its id begins at the endpoint.
inline constexpr Duration kAnnouncedFor = std::chrono::seconds(4);

enum class Meeting : std::uint8_t {
  kSame,    // one lineage, and the other coordinator has no later term
  kLater,   // one lineage, and the other coordinator has a later term
  kOurs,    // two lineages: the other job dissolves
  kTheirs,  // two lineages: this job dissolves, and its nodes join the other one
};

// `ours`: the coordinator of this process; nullopt: its job has no record. The lineage with the
// higher term continues: its coordinator was elected to continue a job that existed before. If the
// terms are equal, the smaller lineage continues. That is a total order, so that of several
// lineages one is left.
Meeting meet(const std::optional<Incumbent>& ours, const Incumbent& theirs);

}  // namespace elastic::succession
