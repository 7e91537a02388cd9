#pragma once

// One node's participation in the rounds of its job: whether a join is pending, which round it is
// assigned to, and what it must report before it may join again. AgentPolicy and
// RendezvousClient both keep these facts here, and decide for themselves when to join, stop
// workers, or leave.
//
// Pure: the same events in the same order give the same statements. Not thread-safe.
//
// Weak point: SessionOutbox knows the node's rounds as well (docs/architecture.md says why). If a
// round is stale to one and not to the other, the node may wait for an action that is never
// delivered. tests/cpp/core/session/session_outbox_property_test.cc compares them.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/rendezvous/rendezvous_events.h"
#include "elastic/time.h"

namespace elastic::core {

enum class ParticipantState : std::uint8_t {
  kOutside,   // no join is pending, and no workers run
  kJoining,   // a Join was sent
  kAssigned,  // in a round, of which no worker was started
  kWorking,   // in a round whose workers run; the rendezvous waits for Gone or Done
  kReleased,  // workers run, but the rendezvous no longer waits for this node
  kDone,      // all workers of the round have succeeded
};
inline constexpr std::size_t kParticipantStates = 6;

// ---- Events besides those that the rendezvous sends.

struct JoinRequested {};
struct WorkersStarted {};
struct WorkersGone {};       // none is left, and not all of them have succeeded
struct WorkersSucceeded {};  // none is left
struct LeaveRequested {
  std::string reason;
  int exit_code = 0;  // rdzv::Leave
};
struct RendezvousUnreachable {};  // for good

using ParticipantEvent =
    std::variant<JoinRequested, WorkersStarted, WorkersGone, WorkersSucceeded, LeaveRequested,
                 RendezvousUnreachable, rdzv::Round, rdzv::Restart, rdzv::Evicted, rdzv::Refused,
                 rdzv::TimedOut, rdzv::Closed>;

// The columns of the transition table.
enum class ParticipantInput : std::uint8_t {
  kJoinRequested,
  kWorkersStarted,
  kWorkersGone,
  kWorkersSucceeded,
  kLeaveRequested,
  kRound,
  kStale,  // a round or restart that is known or over
  kRestart,
  kEvicted,
  kRejected,  // refused, timed out, or the rendezvous can no longer be reached
  kClosed,
};
inline constexpr std::size_t kParticipantInputs = 11;

enum class ParticipantOutput : std::uint8_t { kNothing, kJoin, kGone, kGoneAndJoin, kDone, kLeave };

struct ParticipantEdge {
  ParticipantOutput output = ParticipantOutput::kNothing;
  ParticipantState next = ParticipantState::kOutside;
};
const ParticipantEdge& edge_of(ParticipantState state, ParticipantInput input);

class Participant {
 public:
  // `node` may lack name and address until locate().
  Participant(NodeInfo node, const JobSettings& settings)
      : node_(std::move(node)), settings_(settings) {}

  void locate(std::string name, std::string address);
  // Appends what must be sent. A Join lacks its store_port, which its sender fills in.
  void step(const ParticipantEvent& event, std::vector<NodeStatement>* out);
  // What `event` means now.
  ParticipantInput classify(const ParticipantEvent& event) const;

  const NodeInfo& node() const { return node_; }  // as the next Join describes it
  const JobSettings& settings() const { return settings_; }
  ParticipantState state() const { return state_; }
  std::uint64_t round() const { return round_; }  // the last one assigned; 0: none so far
  bool has_workers() const {
    return state_ == ParticipantState::kWorking || state_ == ParticipantState::kReleased;
  }
  // The round has ended for the others: stop its workers, if any, then request a join.
  bool must_rejoin() const { return must_rejoin_; }

 private:
  NodeInfo node_;
  const JobSettings settings_;
  ParticipantState state_ = ParticipantState::kOutside;
  std::uint64_t round_ = 0;
  bool has_ever_joined_ = false;
  bool must_rejoin_ = false;
};

}  // namespace elastic::core
