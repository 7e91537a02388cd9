// Who is chosen to vote (docs/rendezvous.md, R2).

#include "core/register/register_types.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace elastic::reg {
namespace {

using testing::ElementsAre;

VoterCandidate candidate(std::uint64_t id, const std::string& host) {
  return {{{1, id}, host + ":9"}, host, "", VoterCandidate::Kind::kMember, true};
}

std::vector<std::uint64_t> chosen(const std::vector<VoterCandidate>& candidates,
                                  const std::vector<Voter>& current = {}, std::uint64_t own = 0,
                                  std::size_t count = 0) {
  std::vector<std::uint64_t> ids;
  for (const Voter& voter : choose_voters(candidates, current, {1, own}, {count, true})) {
    ids.push_back(voter.node.low);
  }
  return ids;
}

std::vector<VoterCandidate> on_hosts(std::size_t hosts) {
  std::vector<VoterCandidate> candidates;
  for (std::size_t i = 1; i <= hosts; ++i) candidates.push_back(candidate(i, std::to_string(i)));
  return candidates;
}

TEST(Voters, TheirNumberFollowsTheHosts) {
  const std::size_t expected[] = {0, 1, 1, 3, 3, 5, 5, 5};
  for (std::size_t hosts = 0; hosts < std::size(expected); ++hosts) {
    EXPECT_EQ(chosen(on_hosts(hosts)).size(), expected[hosts]) << hosts << " hosts";
  }
}

TEST(Voters, AGivenNumberIsMadeOddAndPossible) {
  EXPECT_EQ(chosen(on_hosts(7), {}, 0, 3).size(), 3u);
  EXPECT_EQ(chosen(on_hosts(7), {}, 0, 4).size(), 3u);
  EXPECT_EQ(chosen(on_hosts(7), {}, 0, 9).size(), 5u);
  EXPECT_EQ(chosen(on_hosts(2), {}, 0, 3).size(), 1u);
}

TEST(Voters, OneHostHasOneVote) {
  EXPECT_THAT(chosen({candidate(1, "a"), candidate(2, "a"), candidate(3, "b"), candidate(4, "c")}),
              ElementsAre(1, 3, 4));
}

TEST(Voters, TheCoordinatorsOwnNodeComesFirstAndCurrentVotersStay) {
  const std::vector<VoterCandidate> candidates = on_hosts(4);
  const std::vector<Voter> current = {candidates[1].voter, candidates[2].voter,
                                      candidates[3].voter};
  EXPECT_THAT(chosen(candidates, current, 3), ElementsAre(3, 2, 4));
}

TEST(Voters, AnUnreachableVoterIsReplaced) {
  std::vector<VoterCandidate> candidates = on_hosts(4);
  const std::vector<Voter> current = {candidates[0].voter, candidates[1].voter,
                                      candidates[2].voter};
  candidates[1].is_reachable = false;
  EXPECT_THAT(chosen(candidates, current, 1), ElementsAre(1, 3, 4));
}

TEST(Voters, AnUnreachableHostDoesNotCountForTheirNumber) {
  std::vector<VoterCandidate> candidates = on_hosts(3);
  candidates[1].is_reachable = false;
  EXPECT_THAT(chosen(candidates), ElementsAre(1)) << "two voters would be worse than one";
}

TEST(Voters, MembersComeBeforeSparesAndSparesBeforeWitnesses) {
  std::vector<VoterCandidate> candidates = on_hosts(4);
  candidates[0].kind = VoterCandidate::Kind::kWitness;
  candidates[1].kind = VoterCandidate::Kind::kSpare;
  EXPECT_THAT(chosen(candidates), ElementsAre(3, 4, 2));
}

TEST(Voters, AVoterThatLeavesIsReplacedOrChosenNoMore) {
  std::vector<VoterCandidate> candidates = on_hosts(4);
  candidates[1].is_leaving = true;
  EXPECT_THAT(chosen(candidates, {candidates[0].voter, candidates[1].voter, candidates[2].voter}),
              ElementsAre(1, 3, 4));
  candidates[2].is_leaving = true;
  EXPECT_THAT(chosen(candidates), ElementsAre(1));
}

TEST(Voters, AreSpreadOverTheTopology) {
  std::vector<VoterCandidate> candidates = on_hosts(4);
  candidates[0].topology = candidates[1].topology = "rack1";
  candidates[2].topology = "rack2";
  candidates[3].topology = "rack3";
  EXPECT_THAT(chosen(candidates), ElementsAre(1, 3, 4));
}

}  // namespace
}  // namespace elastic::reg
