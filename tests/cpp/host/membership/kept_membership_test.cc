// Sessions whose job's record a store keeps, with real threads and time. The rules are stories
// (tests/data/scenarios/record); whole jobs are in tests/python/process/test_store_jobs.py.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <future>
#include <mutex>
#include <set>

#include "elastic/agent.h"
#include "elastic/rendezvous_backend.h"
#include "elastic/store_server.h"
#include "host/base/event_thread.h"
#include "host/membership/membership.h"
#include "host/membership/memory_backend.h"
#include "os/file/file.h"
#include "os/loop/clock.h"
#include "os/loop/thread.h"

namespace elastic::host {
namespace {

using namespace std::chrono_literals;
using ::elastic::test::MemoryBackend;
using ::elastic::test::MemoryStore;
using ::testing::HasSubstr;

JobSettings kept_settings(int min_nodes, int max_nodes) {
  JobSettings settings;
  settings.min_nodes = min_nodes;
  settings.max_nodes = max_nodes;
  settings.last_call_timeout = 50ms;
  settings.settle = 50ms;
  settings.node_timeout = 5s;
  settings.store_grace = 60s;
  settings.join_timeout = 60s;
  return settings;
}

// One node: a membership with its own loop, and the events that it received.
class KeptNode {
 public:
  KeptNode(std::shared_ptr<RendezvousBackend> backend, JobSettings settings, int number)
      : events_(*os::Notifier::create()) {
    options_.backend = std::move(backend);
    options_.settings = std::move(settings);
    info_.id = {7, static_cast<std::uint64_t>(number)};
    info_.name = "node" + std::to_string(number);
    info_.store_port = 29'000;
    info_.address = "127.0.0.1";
    thread_ = *os::LoopThread::start("seat");
    thread_->call([&] {
      membership_ = *open_membership(&thread_->loop(), options_, "job",
                                     [this](const MembershipEvent& event) { events_.push(event); });
    });
  }
  ~KeptNode() { crash(); }

  void crash() {
    thread_->call([&] { membership_.reset(); });
  }
  void join() { send(rdzv::Join{info_, options_.settings}); }
  void send(const core::NodeStatement& statement) {
    thread_->call([&] { membership_->send(statement); });
  }
  // Drains the membership. Returns whether that ended before the limit.
  bool drain(Duration limit) {
    const Instant deadline = os::monotonic_now() + limit;
    std::promise<void> done;
    thread_->call([&] { membership_->drain(limit, [&] { done.set_value(); }); });
    done.get_future().wait();
    return os::monotonic_now() < deadline;
  }
  // The next event of the kind; others are skipped.
  template <typename Event>
  std::optional<Event> next() {
    const Instant deadline = os::monotonic_now() + 60s;
    while (auto event = events_.pop(deadline, {})) {
      if (const auto* one = std::get_if<Event>(&*event)) return *one;
    }
    return std::nullopt;
  }

 private:
  RendezvousOptions options_;
  core::NodeInfo info_;
  EventQueue<MembershipEvent> events_;
  std::unique_ptr<os::LoopThread> thread_;
  std::unique_ptr<Membership> membership_;
};

using KeptNodes = std::vector<std::unique_ptr<KeptNode>>;

using MakeBackend = std::function<std::shared_ptr<RendezvousBackend>(int)>;

KeptNodes start_nodes(const JobSettings& settings, const MakeBackend& make_backend) {
  KeptNodes nodes;
  for (int i = 0; i < settings.max_nodes; ++i) {
    nodes.push_back(std::make_unique<KeptNode>(make_backend(i), settings, i));
  }
  return nodes;
}

void expect_one_round(const KeptNodes& nodes) {
  for (const auto& seat : nodes) seat->join();
  std::set<int> ranks;
  for (const auto& seat : nodes) {
    const auto round = seat->next<rdzv::Round>();
    ASSERT_TRUE(round.has_value());
    EXPECT_EQ(round->record->nodes, static_cast<int>(nodes.size()));
    ranks.insert(round->own.group_rank);
  }
  EXPECT_EQ(ranks.size(), nodes.size());
}

TEST(KeptMembership, FormsARoundOverAStoreWithFaults) {
  const MemoryBackend::Faults faults = {
      .lost_write = 0.3, .lost_answer = 0.2, .stale_read = 0.2, .failed_call = 0.2};
  auto store = std::make_shared<MemoryStore>();
  expect_one_round(start_nodes(kept_settings(6, 6), [&](int i) {
    return std::make_shared<MemoryBackend>(store, faults, static_cast<std::uint64_t>(i));
  }));
}

TEST(KeptMembership, AChangeIsPushedWhereTheStoreCanWatch) {
  MemoryBackend::Faults watching;
  watching.can_watch = true;
  JobSettings settings = kept_settings(2, 2);
  settings.node_timeout = 100s;  // only the change can wake a node in time
  auto store = std::make_shared<MemoryStore>();
  expect_one_round(start_nodes(
      settings, [&](int) { return std::make_shared<MemoryBackend>(store, watching, 1); }));
}

TEST(KeptMembership, MissingStoreIsLoggedAndEndsTheMembershipAfterStoreGrace) {
  auto store = std::make_shared<MemoryStore>();
  auto backend = std::make_shared<MemoryBackend>(store);
  JobSettings settings = kept_settings(1, 1);
  settings.store_grace = 4s;
  KeptNode seat(backend, settings, 0);
  seat.join();
  ASSERT_TRUE(seat.next<rdzv::Round>().has_value());
  backend->is_unreachable = true;
  const auto log_progress = seat.next<MembershipProgress>();
  ASSERT_TRUE(log_progress.has_value());
  EXPECT_THAT(log_progress->message, HasSubstr("the memory is away"));
  const auto lost = seat.next<MembershipLost>();
  ASSERT_TRUE(lost.has_value());
  EXPECT_EQ(lost->exit_code, kExitCoordinatorLost);
  EXPECT_TRUE(seat.drain(60s)) << "nothing can be acknowledged any more";
}

// From some moment on no call returns, as on a dead network mount; interrupt() has no effect.
class DeadBackend final : public RendezvousBackend {
 public:
  explicit DeadBackend(std::shared_ptr<MemoryStore> store) : alive_(std::move(store)) {}
  void die() {
    const std::lock_guard lock(mutex_);
    is_dead_ = true;
  }
  // Lets the threads of the test end.
  void release() {
    const std::lock_guard lock(mutex_);
    is_dead_ = false;
    released_.notify_all();
  }
  std::string name() const override { return "dead"; }
  Result<std::optional<StoredState>> get_state() override {
    std::unique_lock lock(mutex_);
    released_.wait(lock, [&] { return !is_dead_; });
    return alive_.get_state();
  }
  Result<StoredWrite> set_state(std::string_view bytes,
                                const std::optional<std::string>& token) override {
    return alive_.set_state(bytes, token);
  }

 private:
  MemoryBackend alive_;
  std::mutex mutex_;
  std::condition_variable released_;
  bool is_dead_ = false;
};

TEST(KeptMembership, ACallThatNeverReturnsDoesNotKeepTheNode) {
  const auto backend = std::make_shared<DeadBackend>(std::make_shared<MemoryStore>());
  backend->die();
  JobSettings settings = kept_settings(1, 1);
  settings.join_timeout = 100ms;
  {
    KeptNode seat(backend, settings, 1);
    const auto lost = seat.next<MembershipLost>();
    ASSERT_TRUE(lost.has_value());
    EXPECT_EQ(lost->exit_code, kExitJoinTimedOut);
    EXPECT_THAT(lost->message, HasSubstr("dead"));
    seat.crash();  // returns
  }
  backend->release();
}

TEST(KeptMembership, ACallThatDoesNotReturnInARoundEndsTheMembershipAfterStoreGrace) {
  const auto backend = std::make_shared<DeadBackend>(std::make_shared<MemoryStore>());
  JobSettings settings = kept_settings(1, 1);
  settings.node_timeout = 100ms;
  settings.store_grace = 100ms;
  KeptNode seat(backend, settings, 1);
  seat.join();
  ASSERT_TRUE(seat.next<rdzv::Round>().has_value());
  backend->die();
  const auto lost = seat.next<MembershipLost>();
  ASSERT_TRUE(lost.has_value());
  EXPECT_EQ(lost->exit_code, kExitCoordinatorLost);
  EXPECT_THAT(lost->message, HasSubstr("a call of the store has not returned"));
  backend->release();
}

TEST(KeptMembership, DrainEndsAtItsLimitWithoutTheStore) {
  auto backend = std::make_shared<MemoryBackend>(std::make_shared<MemoryStore>());
  backend->is_unreachable = true;
  KeptNode seat(backend, kept_settings(1, 1), 0);
  seat.join();
  EXPECT_FALSE(seat.drain(100ms));
}

TEST(KeptMembership, RunsOverAFile) {
  auto directory = os::TemporaryDirectory::create();
  ASSERT_TRUE(directory.ok());
  expect_one_round(start_nodes(kept_settings(8, 8), [&](int) {
    return make_file_backend({.path = directory->path() + "/job", .run_id = "a/b 1"});
  }));
  EXPECT_TRUE(std::filesystem::exists(directory->path() + "/job.a%2fb%201"));
}

TEST(KeptMembership, RunsOverAStoreServer) {
  auto server = StoreServer::start({});
  ASSERT_TRUE(server.ok());
  const KeptNodes nodes = start_nodes(kept_settings(8, 8), [&](int) {
    return make_store_backend({.host = "127.0.0.1", .port = (*server)->port(), .run_id = "r"});
  });
  for (const auto& node : nodes) {
    const auto ready = node->next<MembershipReady>();
    ASSERT_TRUE(ready.has_value());
    EXPECT_EQ(ready->address, "127.0.0.1") << "all that use this store are on this host";
  }
  expect_one_round(nodes);
}

}  // namespace
}  // namespace elastic::host
