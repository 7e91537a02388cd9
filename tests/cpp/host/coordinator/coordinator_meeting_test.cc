// An elected coordinator announces itself at a coordinator of the same job id.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "host/coordinator/coordinator_fixture.h"
#include "os/loop/clock.h"
#include "os/loop/wait.h"

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

class CoordinatorMeetingTest : public CoordinatorTest {
 protected:
  session::Incumbent announce(const succession::Incumbent& incumbent,
                              const std::string& job = "job") {
    SessionClient caller(coordinator->port());
    caller.say_first({.job_id = job, .node = incumbent.node, .announced = incumbent});
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

  announce(elected());  // as every second
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
  announce(elected());  // as every second
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
  std::promise<void> joined, sent;
  CoordinatorOptions options;
  options.log = [&, has_joined = false](std::string_view line) mutable {
    if (line.find("joins") == std::string_view::npos || std::exchange(has_joined, true)) return;
    joined.set_value();
    sent.get_future().wait();  // the loop stands still meanwhile
  };
  start(options);
  SessionClient caller(coordinator->port());
  const auto node = connect(1);
  JobSettings settings = nnodes(2, 2);
  settings.join_timeout = std::chrono::milliseconds(1);
  node->join(settings);
  joined.get_future().wait();
  const Instant due = os::monotonic_now() + std::chrono::milliseconds(2);
  caller.say_first({.job_id = "job", .node = elected().node, .announced = elected()});
  static_cast<void>(os::wait_ready(-1, 0, {.deadline = due}));  // the job's timer is due then
  sent.set_value();
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

TEST_F(CoordinatorMeetingTest, OfTwoAnnouncedCoordinatorsTheOneThatGoesOnIsKept) {
  start();
  succession::Incumbent other = elected(2);
  other.lineage = {1, 1};
  other.address = "10.0.0.1:29401";
  std::optional<session::Incumbent> directed;
  // An announcement is valid for four seconds.
  for (int attempt = 0; attempt < 5 && !directed; ++attempt) {
    const std::string job = "job" + std::to_string(attempt);
    announce(elected(3), job);
    const session::Incumbent answer = announce(other, job);
    directed = connect(1, job)->receive_one<session::Incumbent>();
    if (!directed) continue;
    EXPECT_EQ(answer.incumbent, elected(3)) << "so that it dissolves, too";
  }
  ASSERT_TRUE(directed);
  EXPECT_EQ(directed->incumbent, elected(3));
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
