// An elected coordinator announces itself at a coordinator of the same job id.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>

#include "host/coordinator/coordinator_fixture.h"

namespace elastic::host {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

succession::Incumbent elected(std::uint64_t term = 2) {
  return {.lineage = {7, 7},
          .term = term,
          .node = {9, 9},
          .address = "10.0.0.9:29401",
          .voters = {{{9, 9}, "10.0.0.9:29402"}, {{8, 8}, "10.0.0.8:29402"}}};
}

class CoordinatorMeetingTest : public TurnedCoordinatorTest {
 protected:
  session::Incumbent announce(const succession::Incumbent& incumbent) {
    SessionClient caller(coordinator->port());
    caller.say_first({.job_id = "job", .node = incumbent.node, .announced = incumbent});
    return caller.expect<session::Incumbent>();
  }
};

TEST_F(CoordinatorMeetingTest, NewcomersAndObserversAreDirectedToTheAnnouncedCoordinator) {
  start();
  const auto reply = announce(elected());
  EXPECT_TRUE(reply.is_elsewhere);
  EXPECT_EQ(reply.incumbent, elected());
  const auto node = connect(1);
  node->join(nnodes(1, 4));
  const auto directed = node->expect<session::Incumbent>();
  EXPECT_TRUE(directed.is_elsewhere);
  EXPECT_FALSE(directed.displaced) << "it has no job yet";
  EXPECT_EQ(directed.incumbent.address, elected().address);

  SessionClient observer(coordinator->port());
  observer.say_first({.job_id = "job", .observer = session::ObserverRequest{}});
  EXPECT_EQ(observer.expect<session::Incumbent>().incumbent.address, elected().address);

  const auto other = connect(2, "another job");
  other->join(nnodes(1, 1));
  EXPECT_EQ(other->expect<rdzv::Round>().record->round, 1U);
}

TEST_F(CoordinatorMeetingTest, ARunningJobWithoutARecordDissolves) {
  start();
  const auto nodes = run_round(2, nnodes(2, 2));
  announce(elected());
  for (const auto& node : nodes) {
    const auto displaced = node->expect<session::Incumbent>();
    ASSERT_TRUE(displaced.displaced);
    EXPECT_THAT(*displaced.displaced, HasSubstr(elected().address));
    EXPECT_EQ(displaced.incumbent, elected());
    EXPECT_TRUE(node->is_closed());
  }
  // One that comes late, too.
  EXPECT_EQ(connect(3)->expect<session::Incumbent>().incumbent, elected());
}

TEST_F(CoordinatorMeetingTest, WaitingNodesAreSentToTheAnnouncedCoordinator) {
  start();
  const auto node = connect(1);
  node->join(nnodes(2, 2));
  node->expect<rdzv::Waiting>();
  announce(elected());
  EXPECT_TRUE(node->expect<session::Incumbent>().displaced);
}

// A job's timer reads the sessions before it judges: an announcement may arrive just there.
TEST_F(CoordinatorMeetingTest, AJobMayDissolveInsideItsOwnTimer) {
  start();
  SessionClient caller(coordinator->port());
  const auto node = connect(1);
  JobSettings settings = nnodes(2, 2);
  settings.join_timeout = std::chrono::milliseconds(1);
  node->join(settings);
  node->expect<rdzv::Waiting>();
  group.pause(&coordinator->loop());
  caller.say_first({.job_id = "job", .node = elected().node, .announced = elected()});
  group.advance(std::chrono::milliseconds(2));
  group.resume(&coordinator->loop());
  caller.expect<session::Incumbent>();
  while (node->receive()) continue;  // it is sent away, or its time is over
  EXPECT_EQ(connect(2)->expect<session::Incumbent>().incumbent.address, elected().address);
}

TEST_F(CoordinatorMeetingTest, AJobThatHasEndedStillSendsItsResult) {
  start();
  const auto nodes = run_round(2, nnodes(2, 2));
  nodes[0]->send_message(rdzv::Done{{}, 1});
  nodes[1]->send_message(rdzv::Done{{}, 1});
  nodes[0]->expect<rdzv::Closed>();
  EXPECT_TRUE(announce(elected()).is_elsewhere);
  EXPECT_EQ(nodes[1]->expect<rdzv::Closed>().result->outcome, JobOutcome::kSucceeded);
  EXPECT_FALSE(nodes[1]->receives<session::Incumbent>());
}

TEST_F(CoordinatorMeetingTest, TheAnnouncedCoordinatorThatContinuesIsKept) {
  start();
  succession::Incumbent other = elected(2);
  other.lineage = {1, 1};
  other.address = "10.0.0.1:29401";
  announce(elected(3));
  EXPECT_EQ(announce(other).incumbent, elected(3)) << "so that it dissolves, too";
  EXPECT_EQ(connect(1)->expect<session::Incumbent>().incumbent, elected(3));
}

TEST_F(CoordinatorMeetingTest, AnAnnouncementWithoutAnAddressIsRefused) {
  start();
  const auto nodes = run_round(1, nnodes(1, 1));
  for (const auto& [term, address] : {std::pair(0, "10.0.0.9:29401"), std::pair(2, "")}) {
    succession::Incumbent faulty = elected(static_cast<std::uint64_t>(term));
    faulty.address = address;
    SessionClient caller(coordinator->port());
    caller.say_first({.job_id = "job", .announced = faulty});
    EXPECT_THAT(std::string(caller.expect<rdzv::Refused>().error.message()),
                HasSubstr("no term or no address"));
  }
  EXPECT_FALSE(nodes[0]->receives<session::Incumbent>());
}

}  // namespace
}  // namespace elastic::host
