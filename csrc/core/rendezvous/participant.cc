#include "core/rendezvous/participant.h"

#include <algorithm>
#include <utility>

#include "core/base/transitions.h"

// Theory of operation. An event and what is known give an input (classify); state and input name
// one edge of the table: what is sent, and the next state. A pair that needs nothing keeps the
// state: the owner decides whether it is an error.
//
// Gone is owed for every assigned round that was not reported Done, even if no worker of it was
// started: the next round waits for it. A node that was evicted, or has left, owes nothing.

namespace elastic::core {
namespace {

using Input = ParticipantInput;
using Output = ParticipantOutput;
using State = ParticipantState;

constexpr std::size_t index_of(State state) { return static_cast<std::size_t>(state); }
constexpr std::size_t index_of(Input input) { return static_cast<std::size_t>(input); }

static_assert(index_of(State::kDone) + 1 == kParticipantStates);
static_assert(index_of(Input::kClosed) + 1 == kParticipantInputs);

using enum ParticipantState;
using enum ParticipantInput;

constexpr EnumSet<State> kWithoutWorkers = {kOutside, kJoining, kAssigned, kDone};
constexpr EnumSet<State> kWithWorkers = {kWorking, kReleased};

constexpr Transition<State, Input, Output> kRows[] = {
    {.in = {kOutside, kReleased, kDone},
     .on = {kJoinRequested},
     .run = Output::kJoin,
     .next = kJoining},
    {.in = {kAssigned, kWorking},
     .on = {kJoinRequested},
     .run = Output::kGoneAndJoin,
     .next = kJoining},
    {.in = kWithoutWorkers, .on = {kLeaveRequested}, .run = Output::kLeave, .next = kOutside},
    {.in = kWithWorkers, .on = {kLeaveRequested}, .run = Output::kLeave, .next = kReleased},

    {.in = {kOutside, kJoining}, .on = {kRound}, .next = kAssigned},
    {.in = {kOutside, kJoining, kDone}, .on = {kRestart}, .next = kOutside},
    {.in = {kAssigned}, .on = {kRestart}, .run = Output::kGone, .next = kOutside},
    {.in = kWithoutWorkers, .on = {kEvicted, kRejected}, .next = kOutside},
    {.in = kWithWorkers, .on = {kEvicted, kRejected}, .next = kReleased},

    {.in = {kAssigned}, .on = {kWorkersStarted}, .next = kWorking},
    {.in = {kAssigned, kWorking}, .on = {kWorkersGone}, .run = Output::kGone, .next = kOutside},
    {.in = {kWorking}, .on = {kWorkersSucceeded}, .run = Output::kDone, .next = kDone},
    {.in = {kReleased}, .on = {kWorkersGone, kWorkersSucceeded}, .next = kOutside},
};

constexpr auto kEdges =
    make_transitions<TransitionTable<ParticipantEdge, kParticipantStates, kParticipantInputs>>(
        kRows, [](State state, Input) {
          return ParticipantEdge{Output::kNothing, state};
        });

}  // namespace

const ParticipantEdge& edge_of(ParticipantState state, ParticipantInput input) {
  return kEdges[index_of(state)][index_of(input)];
}

void Participant::locate(std::string name, std::string address) {
  node_.name = std::move(name);
  node_.address = std::move(address);
}

ParticipantInput Participant::classify(const ParticipantEvent& event) const {
  struct Reader {
    const Participant& self;
    Input operator()(const JoinRequested&) const { return Input::kJoinRequested; }
    Input operator()(const WorkersStarted&) const { return Input::kWorkersStarted; }
    Input operator()(const WorkersGone&) const { return Input::kWorkersGone; }
    Input operator()(const WorkersSucceeded&) const { return Input::kWorkersSucceeded; }
    Input operator()(const LeaveRequested&) const { return Input::kLeaveRequested; }
    Input operator()(const RendezvousUnreachable&) const { return Input::kRejected; }
    Input operator()(const rdzv::Round& one) const {
      return one.record->round <= self.node_.highest_round ? Input::kStale : Input::kRound;
    }
    Input operator()(const rdzv::Restart& one) const {
      return one.round < self.round_ ? Input::kStale : Input::kRestart;
    }
    Input operator()(const rdzv::Evicted&) const { return Input::kEvicted; }
    Input operator()(const rdzv::Refused&) const { return Input::kRejected; }
    Input operator()(const rdzv::TimedOut&) const { return Input::kRejected; }
    Input operator()(const rdzv::Closed&) const { return Input::kClosed; }
  };
  return std::visit(Reader{*this}, event);
}

void Participant::step(const ParticipantEvent& event, std::vector<NodeStatement>* out) {
  const ParticipantInput input = classify(event);
  const ParticipantEdge& edge = edge_of(state_, input);
  state_ = edge.next;
  switch (input) {
    case Input::kRound: {
      if (state_ != State::kAssigned) break;  // another round is not over here: not for this node
      const auto& round = std::get<rdzv::Round>(event);
      round_ = node_.highest_round = round.record->round;
      node_.previous_rank = round.own.group_rank;
      must_rejoin_ = false;
      break;
    }
    case Input::kRestart:
      node_.highest_round = std::max(node_.highest_round, std::get<rdzv::Restart>(event).round);
      must_rejoin_ = true;
      break;
    case Input::kEvicted:
      node_.highest_round = std::max(node_.highest_round, std::get<rdzv::Evicted>(event).round);
      must_rejoin_ = true;
      break;
    case Input::kJoinRequested:
    case Input::kLeaveRequested:
    case Input::kRejected:
    case Input::kClosed: must_rejoin_ = false; break;
    default: break;
  }
  switch (edge.output) {
    case Output::kNothing: break;
    case Output::kGone: out->push_back(rdzv::Gone{node_.id, round_}); break;
    case Output::kGoneAndJoin: out->push_back(rdzv::Gone{node_.id, round_}); [[fallthrough]];
    case Output::kJoin:
      has_ever_joined_ = true;
      out->push_back(rdzv::Join{node_, settings_});
      break;
    case Output::kDone: out->push_back(rdzv::Done{node_.id, round_}); break;
    case Output::kLeave:
      if (!has_ever_joined_) break;
      out->push_back(rdzv::Leave{node_.id, std::get<LeaveRequested>(event).reason,
                                 std::get<LeaveRequested>(event).exit_code});
      break;
  }
}

}  // namespace elastic::core
