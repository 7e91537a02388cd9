#pragma once

// What nodes and their coordinator exchange about progress and hangs, and what their coordinator
// sees of a round besides.
//
// Pure.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/held_state.h"
#include "core/hang/signature.h"
#include "elastic/agent_options.h"
#include "elastic/rendezvous_types.h"
#include "elastic/time.h"

namespace elastic::hang {

// The answer to an observer who asks something of a round.
inline constexpr const char* kNoRound = "no round of the job runs";

inline constexpr std::size_t kLabelBytesMax = 255;
inline constexpr std::size_t kStackBytesMax = 4096;
inline constexpr std::size_t kScreenBytesMax = 16 << 10;
inline constexpr std::size_t kGroupsMax = 64;       // of one node's report
inline constexpr std::size_t kRanksPerNode = 4096;  // kLocalWorldSizeMax
inline constexpr std::int64_t kNoStep = -1;

// With a learned limit it is always kReport.
using Action = HangAction;

// The progress of one node's workers, sent when it changes. Of constant size: it has no ranks but
// the slowest one, and of those that wait in collective operations only the longest wait.
struct NodeProgress {
  std::uint64_t round = 0;
  std::int32_t reporting = 0;  // workers that run and have reported a step
  std::int64_t newest = kNoStep;
  std::int64_t oldest = kNoStep;
  std::int32_t slowest_rank = -1;
  Duration slowest_idle{};   // since that rank made progress
  Duration idle{};           // since a worker of the node made progress
  Duration section_limit{};  // the longest limit of a section that is open; zero: none
  // The node's settings. The shortest limit of all nodes applies, with that node's action.
  Duration limit{};  // zero: learned
  Action action = Action::kReport;
  bool has_advanced = true;  // false: a coordinator that has the last message learns of waits only
  std::int32_t waiting = 0;  // workers that wait in collective operations
  Duration waited{};         // of these, the one that waits for longest
  // The newest snapshot that all workers of the node have, and how old it is; kNoStep: none.
  std::int64_t saved_step = kNoStep;
  Duration saved_age{};
  snapshot::MemoryUse saved_memory = {};

  bool operator==(const NodeProgress&) const = default;
};

// Workers of one node that are at the same place.
struct StackGroup {
  enum class Kind : std::uint8_t {
    kAtWork,   // in its own code, or in an unknown place
    kWaiting,  // in a collective operation: it waits for other ranks
    kStopped,  // by a signal, or in uninterruptible sleep: it does not answer
  };
  std::vector<std::int32_t> ranks;  // sorted
  std::int64_t oldest = kNoStep;    // the fewest steps of these ranks
  Kind kind = Kind::kAtWork;
  std::string label;  // "in all_reduce (train.py:88)"
  std::string text;   // the stack of the main thread; "" if the worker wrote none

  bool contains(std::int32_t rank) const { return std::ranges::binary_search(ranks, rank); }
  bool operator==(const StackGroup&) const = default;
};

inline constexpr std::size_t kCollectivesMax = 128;    // of one node's report
inline constexpr std::size_t kCollectiveTextMax = 64;  // of a name, an operation, or sizes
inline constexpr std::size_t kRanksTextMax = 1024;

// What workers of one node that make no progress show of one process group of torch.distributed.
struct CollectiveState {
  std::string ranks;        // the workers: "0-3,8"
  std::string group;        // its name, the same on all ranks; "": the workers see no operations
  std::string description;  // the script's
  std::string members;      // its ranks; "": unknown
  std::uint64_t last = 0;   // the last operation that these workers have entered
  std::uint64_t open = 0;   // the first one that is not over; 0: none
  std::string operation;    // of `open`, else of `last`: "all_reduce"
  std::string sizes;        // "[[1024]] Float", where all ranks must have it in common
  Duration waiting{};       // in `open`

  bool operator==(const CollectiveState&) const = default;
};

inline constexpr std::size_t kSignaturesMax = 64;  // of one node's message

// Operations of one block that are over on these ranks (core/hang/signature.h).
struct BlockSignature {
  std::string ranks;  // the workers: "0-3,8"
  std::string group;
  std::string description;    // the script's
  std::uint8_t recorder = 0;  // the group may have a sequence of operations in each recorder
  std::uint64_t first = 0;    // the sequence number with which the block begins
  std::string signature;

  bool operator==(const BlockSignature&) const = default;
};

// What the workers of one node have published in one sample. All ranks publish at the same times,
// so that signatures of the same sample are of the same processes.
struct NodeSignatures {
  std::uint64_t round = 0;
  std::int64_t sample = 0;
  std::vector<BlockSignature> blocks;

  bool operator==(const NodeSignatures&) const = default;
};

// Requests the stacks of a node's workers.
struct StacksWanted {
  std::uint64_t request = 0;
  bool measures_work = false;  // without stacks: no worker is interrupted

  bool operator==(const StacksWanted&) const = default;
};

// The reply to StacksWanted.
struct NodeStacks {
  std::uint64_t request = 0;
  std::string host;
  std::vector<StackGroup> groups;
  std::vector<CollectiveState> collectives = {};
  // Sorted: the ranks that have done nothing since the last request that measured it.
  std::vector<std::int32_t> idle = {};

  bool operator==(const NodeStacks&) const = default;
};

// A rank has made no progress for the limit, while other ranks advance.
struct Straggler {
  std::int32_t rank = -1;
  std::string node;
  std::int64_t step = kNoStep;
  Instant progressed;  // by the caller's clock

  bool operator==(const Straggler&) const = default;
};

// No rank has made progress for the limit, and none has since.
struct Hang {
  Instant progressed;           // the last progress of any rank, by the caller's clock
  std::int64_t step = kNoStep;  // that rank's
  std::int32_t suspect = -1;    // -1: unknown, or the stacks are being collected
  std::string place;            // of the suspect: "in read_bytes (hang.py:26)"

  bool operator==(const Hang&) const = default;
};

// Ranks wait in a collective operation, and nothing in the job makes progress.
struct Stall {
  Instant since;              // by the caller's clock
  std::int32_t suspect = -1;  // the rank that the others wait for; -1: none, or several
  std::string text;           // "rank 3 has not entered all_reduce #4 of the default group"
  std::string place;          // of the suspect, once the stall was reported

  bool operator==(const Stall&) const = default;
};

// How far the ranks that report steps are, and how fast.
struct Pace {
  std::int64_t newest = kNoStep;  // of any rank
  std::int64_t oldest = kNoStep;  // of the slowest one
  std::int32_t ranks = 0;         // that report
  Duration step_time{};           // recently; zero: not known yet

  bool operator==(const Pace&) const = default;
};

// A rank exited with 0, `age` ago. The other ranks have `limit` from then on to end, too. Sent by a
// node with a limit, for its first such rank of a round.
struct RankFinished {
  std::uint64_t round = 0;
  std::int32_t rank = -1;
  Duration limit{};
  Duration age{};

  bool operator==(const RankFinished&) const = default;
};

// A verdict with its evidence, to every node.
struct Verdict {
  enum class Kind : std::uint8_t {
    kHang,
    kStraggling,  // only the suspect makes no progress; the text is one sentence, as of the next
    kStalled,     // ranks wait in a collective operation for the suspect
    kStallOver,   // they wait no more
    kMismatch,    // ranks called operations of different sizes or types, and nothing failed
    kNoted,       // ranks wait for one that works, in case that a worker fails by it; "": no more
  };
  std::uint64_t round = 0;
  std::string text;           // one screen
  std::string cause;          // one sentence, for the failure of the suspected worker
  std::int32_t suspect = -1;  // a rank; -1: none
  Action action = Action::kReport;
  Kind kind = Kind::kHang;

  bool operator==(const Verdict&) const = default;
};

}  // namespace elastic::hang

// Received by the judge of hangs and the agreed step, as the events of core/base/round_events.h.
namespace elastic::core::round_event {

struct Progressed {
  NodeId node;
  hang::NodeProgress progress;
};

}  // namespace elastic::core::round_event
