// Observers of a job with one node, at its Unix-domain socket.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>

#include "host/membership/local_membership.h"
#include "host/membership/observing.h"
#include "os/file/file.h"
#include "os/loop/thread.h"
#include "support/eventually.h"

namespace elastic::host {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

class LocalObserversTest : public ::testing::Test {
 protected:
  LocalObserversTest() : directory_(os::TemporaryDirectory::create()) {
    auto thread = os::LoopThread::start("test-agent");
    EXPECT_TRUE(thread.ok());
    thread_ = *std::move(thread);
    node_.id = {1, 2};
    node_.name = "host_7_0";
    node_.local_world_size = 2;
    node_.store_port = 1234;
    thread_->call([this] { open(&membership_); });
    send(rdzv::Join{node_, {}});
  }
  ~LocalObserversTest() override {
    thread_->call([this] { membership_.reset(); });
  }

  void open(std::unique_ptr<LocalMembership>* membership) {
    *membership = std::make_unique<LocalMembership>(
        &thread_->loop(),
        LocalMembership::Options{
            .settings = {}, .address = "127.0.0.1", .job_id = "job", .observer_socket = path()},
        [this](const MembershipEvent& event) {
          if (const auto* log = std::get_if<MembershipCoordinatorLog>(&event)) log_ = log->line;
          if (const auto* watch = std::get_if<MembershipWatch>(&event)) is_watched_ = watch->is_on;
          if (std::holds_alternative<drain::Order>(event)) ++orders_;
        });
  }
  std::string path() const { return directory_->path() + "/job.sock"; }
  void send(const core::NodeStatement& statement) {
    thread_->call([&] { membership_->send(statement); });
  }
  std::unique_ptr<Observer> observe(ObserverOptions options = {}) {
    options.socket_path = path();
    auto started = Observer::start(std::move(options));
    EXPECT_TRUE(started.ok());
    return *std::move(started);
  }

  Result<os::TemporaryDirectory> directory_;
  std::unique_ptr<os::LoopThread> thread_;
  std::unique_ptr<LocalMembership> membership_;  // on the thread, as what follows
  core::NodeInfo node_;
  std::string log_;
  bool is_watched_ = false;
  int orders_ = 0;
};

bool is_running(const ObservedJob& job) { return job.phase == RendezvousPhase::kRunning; }

TEST_F(LocalObserversTest, AnObserverSeesTheRoundTheWorkersAndTheEnd) {
  const auto observer = observe({.run_id = "job"});
  const Snapshot first = await(observer.get(), is_running);
  EXPECT_EQ(first->id, "job");
  EXPECT_EQ(first->record.nodes, 1);
  EXPECT_EQ(first->incumbent->address, "unix:" + path());
  ASSERT_EQ(first->nodes.size(), 1u);
  EXPECT_EQ(first->nodes[0].name, "host_7_0");

  ASSERT_TRUE(support::eventually([this] {
    bool is_on = false;
    thread_->call([&] { is_on = is_watched_; });
    return is_on;
  }));
  const WorkerReport report{.round = 1, .host = "host", .workers = {{.rank = 1, .pid = 42}}};
  thread_->call([&] { membership_->send_workers(report); });
  const auto has_workers = [](const ObservedJob& job) { return job.nodes[0].report.has_value(); };
  EXPECT_EQ(*await(observer.get(), has_workers)->nodes[0].report, report);

  FailureReport failure;
  failure.exit_code = 3;
  failure.rank = 1;
  send(rdzv::Failed{node_.id, 1, failure});
  send(rdzv::Gone{node_.id, 1});
  const auto is_over = [](const ObservedJob& job) { return job.result.has_value(); };
  const Snapshot last = await(observer.get(), is_over);
  EXPECT_EQ(last->result->exit_code, 3);
  thread_->call([this] { membership_->drain(seconds(0), [] {}); });
  EXPECT_THAT(std::string(end_of(observer.get()).message()), HasSubstr("the job has ended"));
}

TEST_F(LocalObserversTest, AnObserverCanStopTheJobAtAStep) {
  const auto observer = observe({.drain = seconds(60), .drain_reason = "maintenance"});
  ASSERT_TRUE(support::eventually([this] {
    int orders = 0;
    thread_->call([&] { orders = orders_; });
    return orders > 0;
  }));
  const auto has_stop = [](const ObservedJob& job) {
    return job.description.find("maintenance") != std::string::npos;
  };
  await(observer.get(), has_stop);
}

TEST_F(LocalObserversTest, AnObserverOfAnotherJobReceivesTheIdOfThisOne) {
  const auto observer = observe({.run_id = "other"});
  const Status end = end_of(observer.get());
  EXPECT_EQ(end.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(end.message()), HasSubstr("has no job other; its jobs: job"));
}

TEST_F(LocalObserversTest, WithoutItsSocketTheJobRunsAllTheSame) {
  std::unique_ptr<LocalMembership> second;
  thread_->call([&] { open(&second); });
  ASSERT_TRUE(support::eventually([this] {
    std::string line;
    thread_->call([&] { line = log_; });
    return line.find("cannot listen at " + path()) != std::string::npos;
  }));
  thread_->call([&] { second.reset(); });
  await(observe().get(), is_running);
  thread_->call([this] { membership_.reset(); });
  EXPECT_NE(::access(path().c_str(), F_OK), 0);
}

}  // namespace
}  // namespace elastic::host
