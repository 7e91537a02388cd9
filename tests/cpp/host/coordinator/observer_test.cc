// Observers over real sockets: what they see of a job, and that the job does not notice them.

#include "elastic/observer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>

#include "host/coordinator/coordinator_fixture.h"
#include "host/coordinator/coordinator_service.h"
#include "host/membership/observing.h"
#include "os/loop/clock.h"
#include "os/loop/event_loop.h"
#include "os/loop/thread.h"
#include "support/eventually.h"

namespace elastic::host {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

bool is_running(const ObservedJob& job) {
  return job.phase == RendezvousPhase::kRunning && job.nodes.size() == job.record.nodes + 0u;
}

class ObserverTest : public CoordinatorTest {
 protected:
  std::unique_ptr<Observer> observe(const std::string& job = "", bool workers = true) {
    return observe_at(coordinator->port(), job, workers);
  }
  static std::unique_ptr<Observer> observe_at(std::uint16_t port, const std::string& job = "",
                                              bool workers = true) {
    auto started = Observer::start(
        {.endpoint_host = "127.0.0.1", .endpoint_port = port, .run_id = job, .workers = workers});
    EXPECT_TRUE(started.ok());
    return *std::move(started);
  }
  // Observes a job of one node until the job has succeeded and the node has closed its session.
  std::unique_ptr<Observer> observe_to_the_end() {
    const auto nodes = run_round(1, nnodes(1, 1));
    auto observer = observe();
    await(observer.get(), is_running);
    nodes[0]->send_message(rdzv::Done{{}, 1});
    nodes[0]->expect<rdzv::Closed>();
    return observer;
  }
};

TEST_F(ObserverTest, ASnapshotHasTheRoundAndItsNodes) {
  start();
  const auto nodes = run_round(3, nnodes(3, 3));
  const auto observer = observe();
  const Snapshot job = await(observer.get(), is_running);
  EXPECT_EQ(job->id, "job");
  EXPECT_EQ(job->record.round, 1u);
  EXPECT_EQ(job->record.nodes, 3);
  EXPECT_EQ(job->settings.max_nodes, 3);
  ASSERT_NE(job->incumbent, std::nullopt);
  EXPECT_TRUE(job->incumbent->address.starts_with("127.0.0.1:")) << job->incumbent->address;
  EXPECT_EQ(job->incumbent->voters, std::vector<std::string>());
  ASSERT_EQ(job->nodes.size(), 3u);
  for (const ObservedNode& node : job->nodes) {
    EXPECT_EQ(node.phase, rdzv::NodePhase::kWorking);
    EXPECT_FALSE(node.is_suspect);
    EXPECT_EQ(node.address, "127.0.0.1");
  }
  ASSERT_EQ(job->rounds.size(), 1u);
  EXPECT_NE(job->rounds[0].formed, std::nullopt);
}

TEST_F(ObserverTest, NodesReportTheirWorkersOnlyWhileSomeoneObserves) {
  start();
  const auto nodes = run_round(2, nnodes(2, 2));
  EXPECT_FALSE(nodes[0]->receives<session::WatchWorkers>());
  auto observer = observe();
  for (const auto& node : nodes) {
    EXPECT_TRUE(node->expect<session::WatchWorkers>().is_on);
    node->send_message(
        session::Workers{{1, "host", {{0, 0, 4711, ObservedWorkerState::kRunning, 0}}}});
  }
  const Snapshot job = await(observer.get(), [](const ObservedJob& one) {
    return one.nodes.size() == 2 &&
           std::all_of(one.nodes.begin(), one.nodes.end(),
                       [](const ObservedNode& node) { return node.report.has_value(); });
  });
  ASSERT_EQ(job->nodes.size(), 2u);
  EXPECT_EQ(job->nodes[0].report->workers[0].pid, 4711);
  observer.reset();
  for (const auto& node : nodes) EXPECT_FALSE(node->expect<session::WatchWorkers>().is_on);
}

TEST_F(ObserverTest, AnObserverWithoutWorkersCostsTheNodesNothing) {
  start();
  const auto nodes = run_round(2, nnodes(2, 2));
  const auto observer = observe("job", false);
  await(observer.get(), is_running);
  for (const auto& node : nodes) EXPECT_FALSE(node->receives<session::WatchWorkers>());
}

// The messages that begin a round are handled in the iteration in which a snapshot is due, too.
TEST_F(ObserverTest, ASnapshotHasTheHistoryOfTheRoundThatItShows) {
  const auto thread = *os::LoopThread::start("test");
  os::EventLoop& loop = thread->loop();
  std::unique_ptr<CoordinatorService> service;
  thread->call([&] { service = *CoordinatorService::open(&loop, {}); });
  JobSettings settings = nnodes(2, 2);
  settings.max_restarts = 1;
  SessionClient a(service->port(), 1), b(service->port(), 2);
  for (SessionClient* node : {&a, &b}) node->join(settings);
  for (SessionClient* node : {&a, &b}) node->expect<rdzv::Round>();
  auto observer = observe_at(service->port());
  await(observer.get(), is_running);
  b.send_message(rdzv::Failed{{}, 1, {0, 1, 137, "killed", os::monotonic_now()}});
  for (SessionClient* node : {&a, &b}) {
    node->info.highest_round = node->expect<rdzv::Restart>().round;
    node->send_message(rdzv::Gone{{}, 1});
  }
  a.join(settings);
  a.expect<rdzv::Waiting>();
  EXPECT_FALSE(b.receives<rdzv::Round>());
  thread->call([&] {
    a.send_message(session::Workers{{1, "host", {}}});  // a snapshot is due soon after it
    loop.post([&] {
      b.join(settings);
      support::stall_for_test(std::chrono::milliseconds(100));
    });
  });
  const Snapshot job = await(observer.get(), [](const ObservedJob& one) {
    return one.record.round == 2 && one.phase == RendezvousPhase::kRunning;
  });
  EXPECT_EQ(job->rounds.size(), 2u);
  observer.reset();
  thread->call([&] { service.reset(); });
}

TEST_F(ObserverTest, ANodeThatLeftDisappears) {
  start();
  const auto nodes = run_round(3, nnodes(2, 3));
  const auto observer = observe();
  await(observer.get(), is_running);
  nodes[2]->send_message(rdzv::Leave{{}, "enough"});
  const NodeId left = nodes[2]->info.id;
  await(observer.get(), [&](const ObservedJob& one) {
    return std::none_of(one.nodes.begin(), one.nodes.end(),
                        [&](const ObservedNode& node) { return node.id == left; });
  });
}

TEST_F(ObserverTest, AllNodesOfALargeJobArrive) {
  start();
  constexpr int kNodes = 600;  // three pages
  const auto nodes = run_round(kNodes, nnodes(kNodes, kNodes));
  const auto observer = observe("job", false);
  const Snapshot job = await(observer.get(), is_running);
  EXPECT_EQ(job->nodes.size(), 600u);
}

TEST_F(ObserverTest, TheResultIsTheFinalSnapshot) {
  start();
  const auto observer = observe_to_the_end();
  const Snapshot job =
      await(observer.get(), [](const ObservedJob& one) { return one.result.has_value(); });
  ASSERT_TRUE(job->result);
  EXPECT_EQ(job->result->outcome, JobOutcome::kSucceeded);
  EXPECT_THAT(std::string(end_of(observer.get()).message()), HasSubstr("the job has ended"));
}

TEST_F(ObserverTest, ARefusalListsTheJobs) {
  start();
  const auto first = connect(1, "alpha");
  const auto second = connect(2, "beta");
  for (const auto& node : {first.get(), second.get()}) {
    node->join(nnodes(1, 1));
    node->expect<rdzv::Round>();
  }
  const auto unknown = observe("gamma");
  EXPECT_THAT(std::string(end_of(unknown.get()).message()),
              HasSubstr("no job gamma; its jobs: alpha, beta"));
  const auto any = observe("");
  const Status ambiguous = end_of(any.get());
  EXPECT_EQ(ambiguous.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(ambiguous.message()), HasSubstr("alpha, beta"));
  EXPECT_EQ(coordinator->stats().jobs, 2u) << "an observer creates no job";
}

TEST_F(ObserverTest, AnObserverCannotSendMessagesOfANode) {
  start();
  const auto nodes = run_round(2, nnodes(2, 2));
  SessionClient intruder(coordinator->port());
  session::ClientHello hello{.job_id = "job", .node = nodes[0]->info.id};
  hello.observer = session::ObserverRequest{};
  intruder.say_first(hello);
  intruder.expect<session::ServerHello>();
  intruder.send_message(rdzv::Leave{{}, "not mine"});
  EXPECT_THAT(std::string(intruder.expect<rdzv::Refused>().error.message()),
              HasSubstr("an observer may send no messages of a node"));
  EXPECT_FALSE(nodes[0]->receives<rdzv::Restart>());
  EXPECT_FALSE(nodes[1]->receives<rdzv::Restart>());
}

// Each of them is kept until its answer.
TEST_F(ObserverTest, AnObserverHasFewRequestsThatWaitForAnAnswer) {
  start();
  const auto nodes = run_round(2, nnodes(2, 2));
  SessionClient observer(coordinator->port());
  session::ClientHello hello{.job_id = "job", .node = nodes[0]->info.id};
  hello.observer = session::ObserverRequest{};
  observer.say_first(hello);
  observer.expect<session::ServerHello>();
  for (int i = 0; i < 17; ++i) {
    observer.send_message(session::RequestDrain{{.left = seconds(100), .reason = "asked"}});
  }
  EXPECT_THAT(observer.expect<session::DrainReport>().text, HasSubstr("too many requests"));
  observer.send_message(session::RequestStacks{});
  EXPECT_THAT(observer.expect<session::StacksReport>().text, HasSubstr("too many requests"));
}

TEST_F(ObserverTest, ACoordinatorDoesNotWaitForObserversWhenItEnds) {
  start();
  const auto observer = observe_to_the_end();
  coordinator->close(std::chrono::hours(1));
  EXPECT_EQ(end_of(observer.get()).code(), StatusCode::kUnavailable);
}

TEST(Observer, APlainPortIsAnError) {
  auto observer = Observer::start({.endpoint_host = "127.0.0.1", .endpoint_port = 1});
  ASSERT_TRUE(observer.ok());
  const auto job = (*observer)->next(os::monotonic_now() + seconds(60));
  EXPECT_EQ(job.status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace elastic::host
