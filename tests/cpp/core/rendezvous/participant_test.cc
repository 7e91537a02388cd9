#include "core/rendezvous/participant.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace elastic::core {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Input = ParticipantInput;
using State = ParticipantState;

constexpr NodeId kSelf{1, 2};

rdzv::Round round_of(std::uint64_t number, int rank = 0) {
  auto record = std::make_shared<RoundRecord>();
  record->round = number;
  NodeAssignment own;
  own.group_rank = rank;
  return {kSelf, std::move(record), own};
}
rdzv::Restart restart_of(std::uint64_t round) {
  return {kSelf, round, rdzv::RestartCause::kMemberLost, "m was lost", Duration::zero()};
}
rdzv::Evicted evicted_from(std::uint64_t round) { return {kSelf, round, "no heartbeat"}; }

std::string text_of(const NodeStatement& statement) {
  struct Reader {
    std::string operator()(const rdzv::Join& one) const {
      return "join " + std::to_string(one.node.highest_round);
    }
    std::string operator()(const rdzv::Gone& one) const {
      return "gone " + std::to_string(one.round);
    }
    std::string operator()(const rdzv::Done& one) const {
      return "done " + std::to_string(one.round);
    }
    std::string operator()(const rdzv::Leave& one) const { return "leave " + one.reason; }
    std::string operator()(const rdzv::Failed&) const { return "failed"; }
    std::string operator()(const rdzv::Close&) const { return "close"; }
  };
  return std::visit(Reader{}, statement);
}

NodeInfo self() {
  NodeInfo info;
  info.id = kSelf;
  return info;
}

struct Fixture {
  Participant participant{self(), JobSettings{}};

  std::vector<std::string> step(const ParticipantEvent& event) {
    std::vector<NodeStatement> statements;
    participant.step(event, &statements);
    std::vector<std::string> texts;
    for (const NodeStatement& statement : statements) texts.push_back(text_of(statement));
    return texts;
  }
  Fixture& feed(const ParticipantEvent& event) {
    (void)step(event);
    return *this;
  }
  // In round 4 if the state has a round, by the shortest sequence of events.
  static Fixture in(State state) {
    Fixture one;
    if (state == State::kOutside) return one;
    one.feed(JoinRequested{});
    if (state == State::kJoining) return one;
    one.feed(round_of(4));
    if (state == State::kAssigned) return one;
    one.feed(WorkersStarted{});
    if (state == State::kReleased) one.feed(evicted_from(4));
    if (state == State::kDone) one.feed(WorkersSucceeded{});
    return one;
  }
};

ParticipantEvent event_of(Input input) {
  switch (input) {
    case Input::kJoinRequested: return JoinRequested{};
    case Input::kWorkersStarted: return WorkersStarted{};
    case Input::kWorkersGone: return WorkersGone{};
    case Input::kWorkersSucceeded: return WorkersSucceeded{};
    case Input::kLeaveRequested: return LeaveRequested{"why"};
    case Input::kRound: return round_of(5);
    case Input::kStale: return round_of(0);
    case Input::kRestart: return restart_of(4);
    case Input::kEvicted: return evicted_from(4);
    case Input::kRejected: return rdzv::TimedOut{};
    case Input::kClosed: break;
  }
  return rdzv::Closed{};
}

struct Row {
  State from;
  Input input;
  std::vector<std::string> sent;
  State next;
};

// The whole table, except the pairs that neither send anything nor change the state.
const std::vector<Row>& rows() {
  static const std::vector<Row> kRows = {
      {State::kOutside, Input::kJoinRequested, {"join 0"}, State::kJoining},
      {State::kOutside, Input::kRound, {}, State::kAssigned},

      {State::kJoining, Input::kRound, {}, State::kAssigned},
      {State::kJoining, Input::kLeaveRequested, {"leave why"}, State::kOutside},
      {State::kJoining, Input::kRestart, {}, State::kOutside},
      {State::kJoining, Input::kEvicted, {}, State::kOutside},
      {State::kJoining, Input::kRejected, {}, State::kOutside},

      {State::kAssigned, Input::kWorkersStarted, {}, State::kWorking},
      {State::kAssigned, Input::kJoinRequested, {"gone 4", "join 4"}, State::kJoining},
      {State::kAssigned, Input::kWorkersGone, {"gone 4"}, State::kOutside},
      {State::kAssigned, Input::kLeaveRequested, {"leave why"}, State::kOutside},
      {State::kAssigned, Input::kRestart, {"gone 4"}, State::kOutside},
      {State::kAssigned, Input::kEvicted, {}, State::kOutside},
      {State::kAssigned, Input::kRejected, {}, State::kOutside},

      {State::kWorking, Input::kJoinRequested, {"gone 4", "join 4"}, State::kJoining},
      {State::kWorking, Input::kWorkersGone, {"gone 4"}, State::kOutside},
      {State::kWorking, Input::kWorkersSucceeded, {"done 4"}, State::kDone},
      {State::kWorking, Input::kLeaveRequested, {"leave why"}, State::kReleased},
      {State::kWorking, Input::kEvicted, {}, State::kReleased},
      {State::kWorking, Input::kRejected, {}, State::kReleased},

      {State::kReleased, Input::kJoinRequested, {"join 4"}, State::kJoining},
      {State::kReleased, Input::kWorkersGone, {}, State::kOutside},
      {State::kReleased, Input::kWorkersSucceeded, {}, State::kOutside},
      {State::kReleased, Input::kLeaveRequested, {"leave why"}, State::kReleased},

      {State::kDone, Input::kJoinRequested, {"join 4"}, State::kJoining},
      {State::kDone, Input::kLeaveRequested, {"leave why"}, State::kOutside},
      {State::kDone, Input::kRestart, {}, State::kOutside},
      {State::kDone, Input::kEvicted, {}, State::kOutside},
      {State::kDone, Input::kRejected, {}, State::kOutside},
  };
  return kRows;
}

TEST(Participant, HandlesEveryPairOfStateAndInput) {
  for (std::size_t s = 0; s < kParticipantStates; ++s) {
    for (std::size_t i = 0; i < kParticipantInputs; ++i) {
      const auto state = static_cast<State>(s);
      const auto input = static_cast<Input>(i);
      Row expected{state, input, {}, state};
      for (const Row& row : rows()) {
        if (row.from == state && row.input == input) expected = row;
      }
      SCOPED_TRACE("state " + std::to_string(s) + ", input " + std::to_string(i));
      Fixture one = Fixture::in(state);
      ASSERT_EQ(one.participant.state(), state);
      ASSERT_EQ(one.participant.classify(event_of(input)), input);
      EXPECT_EQ(one.step(event_of(input)), expected.sent);
      EXPECT_EQ(one.participant.state(), expected.next);
    }
  }
}

TEST(Participant, JoinsWithTheNewestRoundItHasHeardOfAndItsLastRank) {
  Fixture one = Fixture::in(State::kJoining);
  one.feed(round_of(4, 2)).feed(WorkersStarted{}).feed(evicted_from(7)).feed(WorkersGone{});
  EXPECT_THAT(one.step(JoinRequested{}), ElementsAre("join 7"));
  EXPECT_EQ(one.participant.node().previous_rank, 2);
  EXPECT_EQ(one.participant.round(), 4u);
}

TEST(Participant, ARoundThatIsDeliveredAgainIsStale) {
  Fixture one = Fixture::in(State::kWorking);
  EXPECT_EQ(one.participant.classify(round_of(4)), Input::kStale);
  EXPECT_EQ(one.participant.classify(restart_of(3)), Input::kStale);
  EXPECT_THAT(one.step(restart_of(3)), IsEmpty());
  EXPECT_FALSE(one.participant.must_rejoin());
}

TEST(Participant, MustRejoinFromRestartOrEvictionUntilItJoinsOrNeedNot) {
  for (const ParticipantEvent& order : {ParticipantEvent(restart_of(4)), {evicted_from(4)}}) {
    for (const ParticipantEvent& end : {ParticipantEvent(JoinRequested{}),
                                        {LeaveRequested{}},
                                        {rdzv::Closed{}},
                                        {rdzv::Refused{}},
                                        {RendezvousUnreachable{}}}) {
      Fixture one = Fixture::in(State::kWorking);
      EXPECT_FALSE(one.participant.must_rejoin());
      one.feed(order);
      EXPECT_TRUE(one.participant.must_rejoin());
      EXPECT_TRUE(one.participant.has_workers());
      one.feed(end);
      EXPECT_FALSE(one.participant.must_rejoin());
    }
  }
}

TEST(Participant, LeavesOnlyAJobThatItJoined) {
  Fixture one;
  EXPECT_THAT(one.step(LeaveRequested{"why"}), IsEmpty());
}

}  // namespace
}  // namespace elastic::core
