#pragma once

// What nodes and their coordinator exchange to stop all ranks of a job at one step, or to let nodes
// leave at one.
//
// Pure.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "elastic/rendezvous_types.h"
#include "elastic/time.h"

namespace elastic::drain {

inline constexpr std::int64_t kNoStep = -1;
// The ranks that a reply names; num_silent counts all of them.
inline constexpr std::size_t kSilentRanksMax = 64;

inline constexpr std::size_t kLeavingMax = 1024;

// Nodes leave the job at an agreed step, and the others continue with their workers.
struct Departure {
  std::vector<NodeId> nodes;  // in an order, empty: the round ends there for nodes that join
  bool stops_job = false;     // if that is not possible, the whole job stops at a step

  bool operator==(const Departure&) const = default;
};

// The job is to stop at an agreed step. Sent again after each reconnect, because a new coordinator
// knows nothing of it.
struct Notice {
  Duration left{};                          // until the job is stopped without an agreed step
  std::string reason;                       // "SIGTERM on node7"
  std::optional<Departure> departure = {};  // nullopt: the whole job stops

  bool operator==(const Notice&) const = default;
};

// From the coordinator to each member of a round.
struct Order {
  enum class Kind : std::uint8_t {
    kAsk,        // report the steps; replaces nothing
    kTentative,  // no rank may pass `step` until it is committed, replaced or withdrawn
    kWithdraw,
    kCommit,   // every rank stops at `step`
    kRelease,  // to a node that leaves: every rank of the round waits at `step`; its own stop there
  };
  Kind kind = Kind::kAsk;
  std::uint64_t round = 0;
  std::uint64_t proposal = 0;  // increases with each order but kCommit; a reply repeats it
  std::int64_t step = kNoStep;
  Notice notice;

  bool operator==(const Order&) const = default;
};

// From a member to the coordinator.
struct Reply {
  enum class Kind : std::uint8_t {
    kSteps,     // to kAsk
    kAccepted,  // to kTentative: no rank of the node has reached the step
    kRefused,   // to kTentative: a rank may have passed the step; after kAccepted: it has
    kReached,   // after kCommit: every rank that takes part has stopped, or has finished before
    kEnded,     // and has exited with 0
    kWaiting,   // to kTentative with a departure: every rank of the node waits at the step
  };
  Kind kind = Kind::kSteps;
  std::uint64_t round = 0;
  std::uint64_t proposal = 0;
  // Number of running workers that report steps, and so take part. kWaiting: of all that run.
  std::int32_t reporting = 0;
  std::int64_t newest = kNoStep;
  std::int64_t oldest = kNoStep;
  // Workers that run, or are being started, and have reported no step.
  std::int32_t num_silent = 0;
  std::vector<std::int32_t> silent;  // ranks
  // The step that the node has accepted, and whether its coordinator has committed it.
  std::int64_t held = kNoStep;
  bool is_committed = false;
  // kReached, kEnded: the workers that have stopped, and the steps at which they did.
  std::int32_t stopped = 0;
  std::int64_t first_stop = kNoStep;
  std::int64_t last_stop = kNoStep;
  // kSteps, kWaiting: the workers of the node can take part in another round.
  bool can_continue = false;

  bool operator==(const Reply&) const = default;
};

// From an agent to its guardian: reads the steps in the workers' pages, or writes the step at which
// the workers stop to the pages of those that report steps. kAsk and kTentative are answered by a
// StopStepEvent; after kTentative one follows when all of these workers wait, if that is wanted;
// after kCommit one when these workers have stopped, and a second when they have exited with 0.
struct StopStepRequest {
  Order::Kind kind = Order::Kind::kAsk;
  std::uint64_t proposal = 0;
  std::int64_t step = kNoStep;
  bool reports_waiting = false;

  bool operator==(const StopStepRequest&) const = default;
};

struct StopStepEvent {
  Reply::Kind kind = Reply::Kind::kSteps;
  std::uint64_t proposal = 0;            // of the request
  std::vector<std::uint32_t> reporting;  // kSteps, kAccepted, kRefused: the workers that report
  std::int64_t newest = -1;              // of these
  std::int64_t oldest = -1;
  std::uint32_t stopped = 0;  // kReached, kEnded: how many workers have stopped, at which steps
  std::int64_t first_stop = -1;
  std::int64_t last_stop = -1;

  bool operator==(const StopStepEvent&) const = default;
};

// A line for every node's log.
struct News {
  enum class About : std::uint8_t { kDrain, kExclusion, kReadmission };

  std::string text;
  About about = About::kDrain;

  bool operator==(const News&) const = default;
};

}  // namespace elastic::drain
