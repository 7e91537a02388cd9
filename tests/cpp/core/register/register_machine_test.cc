// Single steps of the register's machine that a seed of the simulation rarely reaches.

#include "core/register/register_machine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace elastic::reg {
namespace {

using std::chrono::milliseconds;

constexpr LineageId kLineage = {1, 1};
constexpr Instant kStart = Instant(std::chrono::hours(1));

Voter voter(std::uint64_t id) { return {{0, id}, std::to_string(id)}; }

CandidatesChanged hosts(std::uint64_t count) {
  CandidatesChanged event;
  for (std::uint64_t id = 1; id <= count; ++id) {
    event.candidates.push_back(
        {voter(id), std::to_string(id), "", VoterCandidate::Kind::kMember, true});
  }
  return event;
}

struct One {
  explicit One(std::uint64_t id) : machine(voter(id), RegisterSettings{}, id) {}

  std::vector<Action> step(const Event& event) {
    std::vector<Action> actions;
    machine.step(event, now, &actions);
    return actions;
  }
  std::vector<Action> receive(std::uint64_t from, Body body) {
    return step(Received{{kLineage, voter(from).node, self, std::move(body)}});
  }

  Register machine;
  NodeId self;
  Instant now = kStart;
};

One node(std::uint64_t id) {
  One one(id);
  one.self = voter(id).node;
  return one;
}

template <typename A>
std::ptrdiff_t position(const std::vector<Action>& actions) {
  const auto found = std::find_if(actions.begin(), actions.end(), [](const Action& action) {
    return std::holds_alternative<A>(action);
  });
  return found == actions.end() ? -1 : found - actions.begin();
}

template <typename Message>
std::vector<Message> sent(const std::vector<Action>& actions) {
  std::vector<Message> messages;
  for (const Action& action : actions) {
    const auto* send = std::get_if<Send>(&action);
    if (send == nullptr) continue;
    if (const auto* body = std::get_if<Message>(&send->message.body)) messages.push_back(*body);
  }
  return messages;
}

Content content(std::uint64_t round) { return {1, round, false, "members"}; }

// Brings node 1 to coordinate voters 1, 2 and 3, all of which know the record to be in force.
One coordinator_of_three() {
  One one = node(1);
  one.step(hosts(3));
  one.step(Begin{kLineage, content(1)});
  const Newness newness = one.machine.known()->record.newness;
  for (const std::uint64_t id : {2u, 3u}) one.receive(id, Accepted{newness, true, false, 1});
  for (const std::uint64_t id : {2u, 3u}) one.receive(id, Accepted{newness, true, true, 1});
  return one;
}

// It repeated its highest promise: after an attempt of its own that was a term of its own.
TEST(RegisterMachine, AHandOverIsNotRepeatedAfterAnAttemptOfItsOwn) {
  One one = coordinator_of_three();
  const std::vector<HandOver> handed = sent<HandOver>(one.step(Resign{voter(2)}));
  ASSERT_EQ(handed.size(), 1u);
  EXPECT_EQ(handed[0].term, 2u);
  EXPECT_EQ(one.machine.highest_term(), 2u);
  one.now += milliseconds(50);
  const std::vector<HandOver> repeated = sent<HandOver>(one.step(Tick{}));
  ASSERT_EQ(repeated.size(), 1u) << "a lost message is sent again";
  EXPECT_EQ(repeated[0].term, 2u);
  one.step(IncumbentLost{voter(2).node});
  one.now += milliseconds(20);
  const std::vector<Ask> asked = sent<Ask>(one.step(Tick{}));
  ASSERT_FALSE(asked.empty());
  one.receive(3, AskReply{asked[0].attempt, true, 1, std::nullopt});
  EXPECT_EQ(one.machine.highest_term(), 3u);
  one.receive(3, Promise{3, true, 3, std::nullopt});
  ASSERT_EQ(one.machine.role(), Role::kReproposing);
  for (int turn = 0; turn < 3; ++turn) {
    one.now += milliseconds(40);
    EXPECT_TRUE(sent<HandOver>(one.step(Tick{})).empty());
  }
}

// The owner reports a loss once; the attempt must not be forgotten.
TEST(RegisterMachine, ALateRecordOfTheLostCoordinatorLeavesAnAttemptScheduled) {
  One two = node(2);
  const Record first = {kLineage, {1, 1}, voter(1), {voter(1), voter(2), voter(3)}, {}, content(1)};
  two.receive(1, Accept{{first, false}});
  two.step(IncumbentLost{voter(1).node});
  ASSERT_TRUE(two.machine.next_deadline());
  Record late = first;
  late.newness.sequence = 2;
  late.previous_voters = first.voters;
  two.receive(1, Accept{{late, false}});
  ASSERT_TRUE(two.machine.next_deadline());
  two.now = *two.machine.next_deadline();
  EXPECT_EQ(sent<Ask>(two.step(Tick{})).size(), 2u);
}

TEST(RegisterMachine, ANodeThatNoRecordNamesHasNoVote) {
  One four = node(4);
  const Record record = {kLineage, {1, 1},    voter(1), {voter(1), voter(2), voter(3)},
                         {},       content(1)};
  EXPECT_TRUE(four.receive(2, Ask{1, 2, {record, true}}).empty());
  EXPECT_TRUE(four.receive(2, Prepare{2, {record, true}, NodeId{}}).empty());
  EXPECT_TRUE(four.receive(1, Accept{{record, false}}).empty());
}

// The record of a large job takes longer than an attempt if each vote carries it.
class Votes : public testing::Test {
 protected:
  // Node 2 has lost the coordinator and lacks the record that node 3 has accepted.
  void SetUp() override {
    two.receive(1, Accept{{first, true}});
    two.step(IncumbentLost{voter(1).node});
    second.newness.sequence = 2;
    second.previous_voters = first.voters;
    second.content = content(2);
  }
  std::vector<Ask> ask() {
    two.now = *two.machine.next_deadline();
    return sent<Ask>(two.step(Tick{}));
  }
  // Returns what follows from the promise.
  std::vector<Action> win() {
    const std::vector<Ask> asked = ask();
    EXPECT_EQ(asked.size(), 2U);
    two.receive(3, AskReply{asked[0].attempt, true, 1, without_bytes({second, false})});
    EXPECT_EQ(two.machine.role(), Role::kPreparing);
    return two.receive(3, Promise{2, true, 2, without_bytes({second, false})});
  }

  const Record first = {kLineage, {1, 1}, voter(1), {voter(1), voter(2), voter(3)}, {}, content(1)};
  Record second = first;
  One two = node(2);
};

TEST_F(Votes, NameTheRecordWithoutItsBytes) {
  for (const Ask& asked : ask()) EXPECT_EQ(asked.known, without_bytes({first, true}));
  One three = node(3);
  three.receive(1, Accept{{first, true}});
  three.step(IncumbentLost{voter(1).node});
  const auto replies = sent<AskReply>(three.receive(2, Ask{1, 2, without_bytes({first, true})}));
  ASSERT_EQ(replies.size(), 1U);
  EXPECT_EQ(replies[0].accepted, without_bytes({first, true}));
  const auto votes =
      sent<Promise>(three.receive(2, Prepare{2, without_bytes({first, true}), NodeId{}}));
  ASSERT_EQ(votes.size(), 1U);
  EXPECT_EQ(votes[0].accepted, without_bytes({first, true}));
}

TEST_F(Votes, TheWinnerFetchesTheRecordThatItLacks) {
  const std::vector<Fetch> fetches = sent<Fetch>(win());
  ASSERT_EQ(fetches, std::vector<Fetch>{{second.newness}});
  EXPECT_EQ(two.machine.role(), Role::kPreparing);
  const auto proposed = sent<Accept>(two.receive(3, Fetched{{second, false}}));
  EXPECT_EQ(two.machine.role(), Role::kReproposing);
  ASSERT_EQ(proposed.size(), 2U);
  EXPECT_EQ(proposed[0].proposal.record.content, content(2));
  EXPECT_EQ(proposed[0].proposal.record.previous_voters, first.voters);
}

TEST_F(Votes, ALostFetchIsRepeated) {
  ASSERT_EQ(sent<Fetch>(win()).size(), 1U);
  two.now = *two.machine.next_deadline();
  EXPECT_EQ(sent<Fetch>(two.step(Tick{})).size(), 1U);
}

TEST_F(Votes, ARecordThatIsNotSentIsForgottenWithTheAttempt) {
  win();
  while (two.machine.role() == Role::kPreparing) {
    two.now = *two.machine.next_deadline();
    two.step(Tick{});
  }
  const std::vector<Ask> asked = ask();
  ASSERT_EQ(asked.size(), 2U);
  EXPECT_EQ(asked[0].known.record.newness, first.newness);
  two.receive(3, AskReply{asked[0].attempt, true, 2, std::nullopt});
  two.receive(3, Promise{3, true, 3, std::nullopt});
  EXPECT_EQ(two.machine.role(), Role::kReproposing) << "its voter was started again";
}

// Voters 1 and 3 suffice for the record that this one has accepted.
TEST_F(Votes, ARecordThatALostVoterHasReportedDoesNotDecideTheNextAttempt) {
  second.voters = {voter(2), voter(4), voter(5)};
  const std::vector<Ask> asked = ask();
  ASSERT_EQ(asked.size(), 2U);
  two.receive(3, AskReply{asked[0].attempt, true, 1, KnownRecord{second, true}});
  while (two.machine.role() != Role::kFollower) {
    two.now = *two.machine.next_deadline();
    two.step(Tick{});
  }
  const std::vector<Ask> again = ask();
  ASSERT_FALSE(again.empty());
  EXPECT_EQ(again[0].known.record.newness, first.newness);
}

TEST_F(Votes, OnlyTheRecordThatWasReportedIsSent) {
  const auto supplied = sent<Fetched>(two.receive(3, Fetch{first.newness}));
  ASSERT_EQ(supplied.size(), 1U);
  EXPECT_EQ(supplied[0].accepted.record, first);
  EXPECT_TRUE(two.receive(3, Fetch{second.newness}).empty());
}

TEST_F(Votes, ALargeRecordHasTheTimeThatItsTransferTakes) {
  Record large = first;
  large.newness.sequence = 3;
  large.content.bytes = std::string(std::size_t{10} << 20, 'm');
  two.receive(1, Accept{{large, true}});
  const std::vector<Ask> asked = ask();
  two.receive(3, AskReply{asked[0].attempt, true, 1, std::nullopt});
  two.receive(3, Promise{2, true, 2, std::nullopt});
  ASSERT_EQ(two.machine.role(), Role::kReproposing);
  two.now += milliseconds(400);
  two.step(Tick{});
  EXPECT_EQ(two.machine.role(), Role::kReproposing);
}

// What a coordinator does with a voter that answers at its address and accepts nothing.
class SilentVoter : public testing::Test {
 protected:
  // The only voter, which proposes to become three.
  void SetUp() override {
    one.step(hosts(1));
    one.step(Begin{kLineage, content(1)});
    all = one.step(hosts(3));
  }
  void pass(Duration time) {
    const Instant end = one.now + time;
    while (one.machine.next_deadline() && *one.machine.next_deadline() <= end) {
      one.now = std::max(one.now, *one.machine.next_deadline());
      for (Action& action : one.step(Tick{})) all.push_back(std::move(action));
    }
    one.now = end;
  }
  void accept(std::uint64_t from) {
    const Newness newness = one.machine.known()->record.newness;
    for (Action& action : one.receive(from, Accepted{.newness = newness, .is_accepted = true})) {
      all.push_back(std::move(action));
    }
  }
  std::vector<Voter> voters() const { return one.machine.known()->record.voters; }

  One one = node(1);
  std::vector<Action> all;
};

TEST_F(SilentVoter, DelaysNoContent) {
  pass(milliseconds(10));
  EXPECT_TRUE(one.machine.can_propose());
  all.clear();
  for (Action& action : one.step(Propose{content(2)})) all.push_back(std::move(action));
  EXPECT_EQ(position<Deliver>(all), -1) << "the change of voters has the time of a round trip";
  pass(milliseconds(50));
  ASSERT_GE(position<Deliver>(all), 0);
  EXPECT_EQ(std::get<Deliver>(all[static_cast<std::size_t>(position<Deliver>(all))]).record.content,
            content(2));
}

TEST_F(SilentVoter, IsReplacedOrLeftOut) {
  EXPECT_EQ(voters().size(), 3U);
  pass(RegisterSettings().accept_timeout + milliseconds(500));
  EXPECT_GE(position<VoterSilent>(all), 0);
  EXPECT_EQ(voters().size(), 1U);
  EXPECT_TRUE(one.machine.known()->is_in_force);
  all.clear();
  pass(RegisterSettings().store_grace - std::chrono::seconds(1));
  one.step(hosts(3));
  EXPECT_EQ(voters().size(), 1U) << "not again at once";
  pass(std::chrono::seconds(1));
  one.step(hosts(4));
  EXPECT_EQ(voters().size(), 3U);
}

TEST_F(SilentVoter, TakesTheMajorityWithIt) {
  accept(2);
  accept(3);
  one.step(Propose{content(2)});
  pass(RegisterSettings().accept_timeout + milliseconds(500));
  ASSERT_GE(position<MajorityLost>(all), 0);
  EXPECT_EQ(position<AuthorityExpired>(all), -1);
  all.clear();
  accept(2);
  EXPECT_GE(position<Deliver>(all), 0);
  EXPECT_GE(position<MajorityRegained>(all), 0);
}

TEST_F(SilentVoter, EndsTheAuthorityAfterStoreGrace) {
  accept(2);
  accept(3);
  one.step(Propose{content(2)});
  pass(RegisterSettings().accept_timeout + RegisterSettings().store_grace + milliseconds(500));
  EXPECT_GE(position<AuthorityExpired>(all), 0);
}

TEST_F(SilentVoter, IsNotAVoterToWhichNothingWasSentDuringAStall) {
  accept(2);
  accept(3);
  one.step(Propose{content(2)});
  one.now += std::chrono::minutes(1);
  EXPECT_EQ(position<VoterSilent>(one.step(Tick{})), -1);
}

TEST_F(SilentVoter, IsSentTheRecordLessAndLessOften) {
  all.clear();
  pass(std::chrono::seconds(4));
  EXPECT_LT(sent<Accept>(all).size(), 2U * 15U);
}

}  // namespace
}  // namespace elastic::reg
