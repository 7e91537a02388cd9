// A job whose record becomes larger than voters keep.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "host/coordinator/coordinator_fixture.h"

namespace elastic::host {
namespace {

constexpr std::size_t kLimit = 2000;

TEST(CoordinatorRecord, ClosesTheJobWithTheReasonIfItExceedsTheLimit) {
  support::LoopGroup group;
  std::vector<succession::Propose> proposals;
  const auto coordinator = *TurnedCoordinator::start(
      {}, {.job = "job",
           .feed =
               [&](const succession::Event& event) {
                 const auto* one = std::get_if<succession::Propose>(&event);
                 if (one != nullptr) proposals.push_back(*one);
               },
           .record_bytes_max = kLimit});
  JobSettings settings = nnodes(1, 20);
  settings.last_call_timeout = settings.settle = Duration::zero();
  std::vector<std::unique_ptr<SessionClient>> nodes;
  const auto join = [&](int number) {
    nodes.push_back(
        std::make_unique<SessionClient>(coordinator->port(), static_cast<std::uint64_t>(number)));
    nodes.back()->info.name = std::string(kNodeTextBytesMax, 'n');
    nodes.back()->join(settings);
  };
  join(1);
  nodes[0]->expect<rdzv::Round>();
  coordinator->on_succession(succession::BeginRecord{});
  group.advance(std::chrono::milliseconds(1));
  ASSERT_EQ(proposals.size(), 1U) << "the record of one node fits";
  EXPECT_LE(proposals[0].content.bytes.size(), kLimit);
  coordinator->on_succession(succession::InForce{proposals[0].number});

  for (int number = 2; number <= 9; ++number) join(number);
  nodes[0]->expect<rdzv::Restart>();
  nodes[0]->send_message(rdzv::Gone{nodes[0]->info.id, 1});
  nodes[0]->join(settings);
  const auto closed = nodes[0]->expect<rdzv::Closed>();
  ASSERT_NE(closed.result, nullptr);
  EXPECT_EQ(closed.result->outcome, JobOutcome::kFailed);
  EXPECT_THAT(closed.result->message, testing::HasSubstr("that voters keep"));
  for (const auto& proposal : proposals) EXPECT_LE(proposal.content.bytes.size(), kLimit);
}

// A node that prepares its workers has a session before it joins.
TEST(CoordinatorRecord, TheNextJobHasVotersWhenAllNodesHaveLeftBeforeTheFirstRound) {
  support::LoopGroup group;
  int jobs = 0;
  const auto coordinator = *TurnedCoordinator::start(
      {}, {.job = "job", .feed = [&](const succession::Event& event) {
             jobs += std::holds_alternative<succession::Timings>(event) ? 1 : 0;
           }});
  SessionClient waiting(coordinator->port(), 2);
  EXPECT_FALSE(waiting.receives<rdzv::Waiting>());
  SessionClient first(coordinator->port(), 1);
  first.join(nnodes(3, 3));
  first.expect<rdzv::Waiting>();
  first.send_message(rdzv::Leave{first.info.id, "cancelled"});
  group.advance(std::chrono::milliseconds(1));
  EXPECT_EQ(jobs, 1);
  waiting.join(nnodes(3, 3));
  waiting.expect<rdzv::Waiting>();
  EXPECT_EQ(jobs, 2) << "the machine of succession is told of the next job";
}

}  // namespace
}  // namespace elastic::host
