// A coordinator that continues a job after an election, and its announcement at the job's
// endpoints.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host/coordinator/coordinator_fixture.h"
#include "host/coordinator/coordinator_service.h"
#include "host/membership/endpoint_caller.h"
#include "os/loop/event_loop.h"
#include "os/loop/thread.h"
#include "support/node_info.h"

namespace elastic::host {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr reg::LineageId kLineage{7, 7};
constexpr NodeId kElected{1, 2};

JobSettings settings() {
  JobSettings job = nnodes(2, 3);
  job.last_call_timeout = job.settle = Duration::zero();
  return job;
}

// The state of a job whose nodes 1:1 and 1:2 are in round 1, or have succeeded in it.
std::string state_of_round(Instant now, bool is_over = false) {
  core::RendezvousMachine machine(settings(), now, Duration::zero());
  std::vector<core::RendezvousAction> actions;
  for (const std::uint64_t number : {1, 2}) {
    machine.step(rdzv::Join{support::node_info(number), settings()}, now, &actions);
  }
  machine.step(rdzv::Tick{}, now + milliseconds(1), &actions);
  EXPECT_EQ(machine.record().round, 1U);
  for (const std::uint64_t number : {1, 2}) {
    if (is_over) machine.step(rdzv::Done{{1, number}, 1}, now + milliseconds(2), &actions);
  }
  EXPECT_EQ(machine.result() != nullptr, is_over);
  return machine.encode();
}

class ElectedCoordinatorTest : public InVirtualTime {
 protected:
  void SetUp() override {
    thread_->call([&] {
      auto opened = CoordinatorService::open(
          &thread_->loop(), {.host = "127.0.0.1"},
          {.job = "job", .feed = [](const succession::Event&) {}, .is_standby = true});
      ASSERT_TRUE(opened.ok()) << opened.status().message();
      service_ = *std::move(opened);
      const succession::JobRecord record{.job_id = "job",
                                         .settings = settings(),
                                         .state = state_of_round(group.now()),
                                         .nodes = {}};
      ASSERT_TRUE(service_->succeed({kLineage, 2, record, NodeId{}}, kElected).ok());
      service_->on_succession(succession::Inform{incumbent()});
    });
  }
  void TearDown() override {
    thread_->call([this] {
      caller_.reset();
      service_.reset();
    });
  }

  succession::Incumbent incumbent() const {
    return {.lineage = kLineage,
            .term = 2,
            .node = kElected,
            .address = "127.0.0.1:" + std::to_string(service_->port()),
            .voters = {{{1, 1}, "127.0.0.1:1"}, {kElected, "127.0.0.1:2"}}};
  }
  // Reports the coordinators that announce() meets, or that every endpoint is here.
  void call(const std::vector<std::uint16_t>& ports) {
    std::vector<Endpoint> endpoints;
    for (const std::uint16_t port : ports) endpoints.push_back({"127.0.0.1", port});
    thread_->call([&] {
      caller_ = std::make_unique<EndpointCaller>(
          &thread_->loop(), endpoints, "job",
          EndpointCaller::Sink{
              .met = [this](const auto& other) { reports_.push_back(other.address); },
              .all_are_here = [this] { reports_.push_back("here"); }},
          /*call_timeout=*/seconds(60));
    });
  }
  void announce() {
    thread_->call([this] { caller_->announce(incumbent(), nullptr); });
  }
  std::string next_report() {
    if (!group.run_until([this] { return !reports_.empty(); })) return "none";
    std::string first = reports_.front();
    reports_.pop_front();
    return first;
  }

  const std::unique_ptr<os::LoopThread> thread_ = *os::LoopThread::start("test-elected", &group);
  std::unique_ptr<CoordinatorService> service_;
  std::unique_ptr<EndpointCaller> caller_;
  std::deque<std::string> reports_;
};

TEST_F(ElectedCoordinatorTest, NoticesThatTheOnlyEndpointLeadsToItself) {
  call({service_->port()});
  announce();
  EXPECT_EQ(next_report(), "here");
}

TEST_F(ElectedCoordinatorTest, AnnouncesItselfAtTheOtherEndpoints) {
  const auto other = *TurnedCoordinator::start({});
  call({service_->port(), other->port()});
  announce();
  EXPECT_EQ(next_report(), incumbent().address) << "the other one directs nodes to it";
  const auto directed = SessionClient(other->port(), 9).expect<session::Incumbent>();
  EXPECT_EQ(directed.incumbent.address, incumbent().address);
}

TEST_F(ElectedCoordinatorTest, MeetsAJobThatWasBegunAtTheEndpoint) {
  const auto other = *TurnedCoordinator::start({});
  SessionClient node(other->port(), 9);
  node.join(nnodes(1, 1));
  node.expect<rdzv::Round>();
  call({other->port()});
  announce();
  EXPECT_EQ(next_report(), "") << "a job without a record";
  EXPECT_TRUE(node.expect<session::Incumbent>().displaced);
}

// A coordinator of the same job id that was killed: a store has kept its record.
class KeptCoordinatorTest : public ElectedCoordinatorTest {
 protected:
  void TearDown() override {
    thread_->call([this] { kept_.reset(); });
    ElectedCoordinatorTest::TearDown();
  }
  void open(bool is_over) {
    thread_->call([&] {
      const auto put_in_force = [this](const succession::Event& event) {
        const auto* proposed = std::get_if<succession::Propose>(&event);
        if (proposed == nullptr) return;
        thread_->loop().post([this, number = proposed->number] {
          kept_->on_succession(succession::InForce{number});
        });
      };
      auto opened =
          CoordinatorService::open(&thread_->loop(), {.host = "127.0.0.1"},
                                   {.job = "job", .feed = put_in_force, .is_standby = true});
      ASSERT_TRUE(opened.ok()) << opened.status().message();
      kept_ = *std::move(opened);
      const succession::JobRecord record{.job_id = "job",
                                         .settings = settings(),
                                         .state = state_of_round(group.now(), is_over),
                                         .nodes = {}};
      const succession::StartCoordinator start{
          .lineage = kLineage, .term = 2, .record = record, .is_kept = true};
      ASSERT_TRUE(kept_->succeed(start, kElected).ok());
    });
  }

  std::unique_ptr<CoordinatorService> kept_;
};

// The job had ended. The next one of the id may have other settings.
TEST_F(KeptCoordinatorTest, TheNextJobBeginsAfterTheResultOfTheFormerOne) {
  open(/*is_over=*/true);
  SessionClient node(kept_->port(), 9);
  node.join(nnodes(1, 1));
  EXPECT_EQ(node.expect<rdzv::Round>().record->nodes, 1);
}

// It is not refused for the settings of the former job.
TEST_F(KeptCoordinatorTest, ANodeOfTheNextJobWaitsAlsoInASecondSession) {
  open(/*is_over=*/false);
  SessionClient node(kept_->port(), 9);
  node.join(nnodes(1, 1));
  node.expect<rdzv::Waiting>();
  SessionClient again(kept_->port(), 9);
  again.resume(nnodes(1, 1), rdzv::NodePhase::kJoined, std::nullopt);
  EXPECT_EQ(again.expect<rdzv::Round>().record->nodes, 1);
}

TEST_F(KeptCoordinatorTest, TheNextJobHasTheSettingsOfANodeThatIsStillThere) {
  open(/*is_over=*/false);
  auto lost = std::make_unique<SessionClient>(kept_->port(), 8);
  lost->join(nnodes(2, 2));
  lost->expect<rdzv::Waiting>();
  SessionClient node(kept_->port(), 9);
  node.join(nnodes(1, 1));
  node.expect<rdzv::Waiting>();
  lost.reset();
  EXPECT_EQ(node.expect<rdzv::Round>().record->nodes, 1);
}

// Its workers stop, and it joins: the number of its round says nothing here.
TEST_F(ElectedCoordinatorTest, ANodeOfAnotherLineageCannotResumeItsRound) {
  SessionClient stranger(service_->port(), 9);
  stranger.resume(settings(), rdzv::NodePhase::kWorking, held(5, 2, 0));
  EXPECT_EQ(stranger.expect<rdzv::Evicted>().round, 5U);
  stranger.info.highest_round = 5;
  stranger.join(settings());
  stranger.expect<rdzv::Waiting>();

  SessionClient known(service_->port(), 1);
  core::HeldRound own = held(1, 2, 0);
  known.resume(settings(), rdzv::NodePhase::kWorking, own);
  EXPECT_FALSE(known.receives<rdzv::Evicted>());
}

// The deadline of the notice has passed while ranks save their state at the committed step: the
// nodes are asked for it, also one that is done.
TEST_F(ElectedCoordinatorTest, ADrainThatWasCommittedGoesOnWithDoneNodes) {
  SessionClient done(service_->port(), 1);
  done.resume(settings(), rdzv::NodePhase::kDone, held(1, 2, 0));
  done.expect<rdzv::Waiting>();
  SessionClient saving(service_->port(), 2);
  saving.resume(settings(), rdzv::NodePhase::kWorking, held(1, 2, 1));
  saving.send_message(drain::Notice{Duration::zero(), "SIGTERM"});
  for (SessionClient* const node : {&done, &saving}) {
    const auto ask = node->expect<drain::Order>();
    EXPECT_EQ(ask.kind, drain::Order::Kind::kAsk);
    drain::Reply reply;
    reply.round = 1;
    reply.proposal = ask.proposal;
    reply.held = 41;
    reply.is_committed = true;
    node->send_message(reply);
  }
  for (SessionClient* const node : {&done, &saving}) {
    const auto commit = node->expect<drain::Order>();
    EXPECT_EQ(commit.kind, drain::Order::Kind::kCommit);
    EXPECT_EQ(commit.step, 41);
  }
}

TEST_F(ElectedCoordinatorTest, SaysInEachReplyForHowLongItHasReachedNoMajority) {
  SessionClient node(service_->port(), 1);
  const auto alone = [&] {
    node.send_message(session::Heartbeat{Instant(seconds(1))});
    return node.expect<session::HeartbeatReply>().alone;
  };
  EXPECT_EQ(alone(), std::nullopt);
  thread_->call([&] { service_->on_succession(succession::MajorityLost{}); });
  group.advance(seconds(2));
  EXPECT_EQ(alone(), seconds(2));
  thread_->call([&] { service_->on_succession(succession::MajorityRegained{}); });
  EXPECT_EQ(alone(), std::nullopt);
}

}  // namespace
}  // namespace elastic::host
