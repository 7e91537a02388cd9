// A witness's part in one job id, with the frames of its coordinators written by the test.

#include "core/succession/witnessed_job.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "core/succession/job_record.h"

namespace elastic::succession {
namespace {

using namespace std::chrono_literals;

const reg::Voter kFirst{{1, 1}, "10.0.0.1:4711"};
const reg::Voter kSecond{{2, 2}, "10.0.0.2:4711"};
const reg::LineageId kLineage{7, 7};
const reg::LineageId kNext{8, 8};

class WitnessedJobTest : public testing::Test {
 protected:
  std::vector<VoterBody> receive(const NodeId& from, const NodeId& to, const VoterBody& body) {
    std::vector<Action> actions;
    job_.receive({1, encode_frame({"job", from, to, body})}, now_, &actions);
    std::vector<VoterBody> replies;
    for (const Action& action : actions) {
      const auto* send = std::get_if<Send>(&action);
      if (send == nullptr) continue;
      const auto frame = decode_frame(send->frame);
      voter_ = frame->from;
      replies.push_back(frame->body);
    }
    return replies;
  }
  // The voter id of the witness in this lineage; zero: it does not answer.
  NodeId probe(const reg::LineageId& lineage) {
    return receive(kFirst.node, NodeId{}, Probe{lineage}).empty() ? NodeId{} : voter_;
  }
  bool accepts(const reg::LineageId& lineage, const NodeId& voter, const reg::Voter& proposer,
               std::uint64_t term) {
    reg::Record record{.lineage = lineage,
                       .newness = {term, 1},
                       .proposer = proposer,
                       .voters = {kFirst, kSecond, {voter, ""}},
                       .previous_voters = {},
                       .content = {}};
    record.content.bytes =
        encode_record({.job_id = "job", .settings = {}, .state = {}, .nodes = {}});
    const auto replies =
        receive(proposer.node, voter,
                reg::Message{lineage, proposer.node, voter, reg::Accept{{record, true}}});
    if (replies.size() != 1) return false;
    const auto* message = std::get_if<reg::Message>(&replies.front());
    return message != nullptr && std::get<reg::Accepted>(message->body).is_accepted;
  }
  void pass(Duration time) {
    now_ += time;
    std::vector<Action> actions;
    job_.tick(now_, &actions);
  }

  Instant now_ = Instant(1h);
  WitnessedJob job_{"job", 1};
  NodeId voter_;
};

TEST_F(WitnessedJobTest, VotesForEachRunOfAnId) {
  const NodeId first = probe(kLineage);
  EXPECT_TRUE(accepts(kLineage, first, kFirst, 1));
  const NodeId next = probe(kNext);
  EXPECT_NE(next, first);
  EXPECT_TRUE(accepts(kNext, next, kSecond, 1)) << "what it has promised to another run";
  EXPECT_TRUE(accepts(kLineage, first, kFirst, 2)) << "which is not over";
  EXPECT_FALSE(accepts(kNext, first, kSecond, 2)) << "a voter id of another lineage";
}

TEST_F(WitnessedJobTest, ForgetsALineageThatIsNotProbedAnyMore) {
  const NodeId first = probe(kLineage);
  EXPECT_TRUE(accepts(kLineage, first, kFirst, 1));
  pass(6min);
  probe(kNext);
  pass(6min);
  EXPECT_FALSE(job_.is_over());
  EXPECT_NE(probe(kLineage), first) << "another machine, which has no vote";
  EXPECT_FALSE(accepts(kLineage, first, kFirst, 2));
  pass(11min);
  EXPECT_TRUE(job_.is_over());
}

TEST_F(WitnessedJobTest, HasALimitedNumberOfLineagesAndKeepsThoseInWhichItVotes) {
  const NodeId first = probe(kLineage);
  EXPECT_TRUE(accepts(kLineage, first, kFirst, 1));
  for (std::uint64_t i = 0; i < 3 * WitnessedJob::kLineagesMax; ++i) {
    now_ += 1ms;
    EXPECT_NE(probe({100 + i, 1}), NodeId{});
  }
  EXPECT_EQ(probe(kLineage), first);
}

}  // namespace
}  // namespace elastic::succession
