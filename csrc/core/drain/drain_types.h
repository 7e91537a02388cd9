#pragma once

// What nodes and their coordinator exchange to stop all ranks of a job at one step.
//
// Pure.

#include <cstdint>
#include <string>
#include <vector>

#include "elastic/time.h"

namespace elastic::drain {

inline constexpr std::int64_t kNoStep = -1;
// The ranks that a reply names; num_silent counts all of them.
inline constexpr std::size_t kSilentRanksMax = 64;

// The job is to stop at an agreed step. Sent again after each reconnect, because a new coordinator
// knows nothing of it.
struct Notice {
  Duration left{};     // until the job is stopped without an agreed step
  std::string reason;  // "SIGTERM on node7"

  bool operator==(const Notice&) const = default;
};

// From the coordinator to each member of a round.
struct Order {
  enum class Kind : std::uint8_t {
    kAsk,        // report the steps; replaces nothing
    kTentative,  // no rank may pass `step` until it is committed, replaced or withdrawn
    kWithdraw,
    kCommit,  // every rank stops at `step`
  };
  Kind kind = Kind::kAsk;
  std::uint64_t round = 0;
  std::uint64_t proposal = 0;  // increases with each order but kCommit; a reply repeats it
  std::int64_t step = kNoStep;
  Notice notice;

  bool operator==(const Order&) const = default;
};

inline constexpr std::size_t kOrderKinds = 4;

// From a member to the coordinator.
struct Reply {
  enum class Kind : std::uint8_t {
    kSteps,     // to kAsk
    kAccepted,  // to kTentative: no rank of the node has reached the step
    kRefused,   // to kTentative: a rank may have passed the step
    kReached,   // after kCommit: every rank that takes part has stopped, or has finished before
    kEnded,     // and has exited with 0
  };
  Kind kind = Kind::kSteps;
  std::uint64_t round = 0;
  std::uint64_t proposal = 0;
  // Of the running workers that report steps: these take part.
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

  bool operator==(const Reply&) const = default;
};

inline constexpr std::size_t kReplyKinds = 5;

// From an agent to its guardian: reads the steps in the workers' pages, or writes the step at which
// the workers stop to the pages of those that report steps. kAsk and kTentative are answered by a
// StopStepEvent; after kCommit one follows when these workers have stopped, and another one when
// they have exited with 0.
struct StopStepRequest {
  Order::Kind kind = Order::Kind::kAsk;
  std::uint64_t proposal = 0;
  std::int64_t step = kNoStep;

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
  std::string text;

  bool operator==(const News&) const = default;
};

}  // namespace elastic::drain
