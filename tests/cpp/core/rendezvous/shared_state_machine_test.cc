// Nodes that share a state, in simulated time: what a node does when a write or a reply is lost,
// when the store is unreachable or empty, when its content is foreign or of a newer version, and
// with the state of an ended job. Long runs with many faults are in tests/cpp/sim.

#include "core/rendezvous/shared_state_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

namespace elastic::core {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

JobSettings settings_of(int min_nodes, int max_nodes) {
  JobSettings settings;
  settings.min_nodes = min_nodes;
  settings.max_nodes = max_nodes;
  settings.last_call_timeout = 1s;
  settings.settle = 100ms;
  settings.node_timeout = 2s;
  settings.join_timeout = 30s;
  settings.store_grace = 10s;
  return settings;
}

struct Store {
  std::optional<StoredState> state;
  int writes = 0;

  StoredWrite write(const SharedWrite& write) {
    const auto token = state ? std::optional(state->token) : std::nullopt;
    const bool was_set = token == write.token;
    if (was_set) state = StoredState{write.bytes, std::to_string(++writes)};
    return {was_set, *state};
  }
};

struct Node {
  Node(Store* its_store, int number, const JobSettings& its_settings, Instant now)
      : store(its_store),
        settings(its_settings),
        member(its_settings, static_cast<std::uint64_t>(number), now) {
    info.id = {1, static_cast<std::uint64_t>(number)};
    info.name = "node" + std::to_string(number);
    info.address = "10.0.0." + std::to_string(number);
    info.store_port = 1000;
  }

  void join() {
    info.highest_round = round;
    member.send(rdzv::Join{info, settings});
  }
  // One complete poll of the store.
  Status poll_state(Instant now) {
    Status status = member.read(store->state, now, &delivered);
    if (!status.ok()) return status;
    if (const auto write = member.propose(now, &delivered)) {
      status = member.wrote(store->write(*write), now, &delivered);
    }
    for (const auto& action : delivered) {
      if (const auto* one = std::get_if<rdzv::Round>(&action)) round = one->record->round;
    }
    return status;
  }
  template <typename Action>
  const Action* record_activity() const {
    const Action* last = nullptr;
    for (const auto& action : delivered) {
      if (const auto* one = std::get_if<Action>(&action)) last = one;
    }
    return last;
  }

  Store* store;
  JobSettings settings;
  NodeInfo info;
  SharedStateMachine member;
  std::vector<RendezvousAction> delivered;
  std::uint64_t round = 0;
};

class SharedStateMachineTest : public ::testing::Test {
 protected:
  Node& add(int number, const JobSettings& settings) {
    nodes.push_back(std::make_unique<Node>(&store, number, settings, now));
    return *nodes.back();
  }
  // Advances the time; each node except the `silent` ones polls when its poll is due.
  void run_for(Duration time, const std::vector<Node*>& silent = {}) {
    const Instant end = now + time;
    while (true) {
      Node* next = nullptr;
      for (const auto& node : nodes) {
        if (std::find(silent.begin(), silent.end(), node.get()) != silent.end()) continue;
        if (next == nullptr || node->member.next_poll(false) < next->member.next_poll(false)) {
          next = node.get();
        }
      }
      if (next == nullptr || next->member.next_poll(false) > end) break;
      now = std::max(now, next->member.next_poll(false));
      const Status status = next->poll_state(now);
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_LT(++looks, 100'000);
    }
    now = end;
  }

  Store store;
  std::vector<std::unique_ptr<Node>> nodes;
  Instant now = Instant(1h);
  int looks = 0;
};

TEST_F(SharedStateMachineTest, NodesThatJoinFormARound) {
  const JobSettings settings = settings_of(3, 3);
  for (int i = 0; i < 3; ++i) add(i, settings).join();
  run_for(500ms);
  for (int i = 0; i < 3; ++i) {
    ASSERT_NE(nodes[static_cast<std::size_t>(i)]->record_activity<rdzv::Round>(), nullptr) << i;
    const auto& delivered = *nodes[static_cast<std::size_t>(i)]->record_activity<rdzv::Round>();
    EXPECT_EQ(delivered.record->nodes, 3);
    EXPECT_EQ(delivered.own.group_rank, i);
  }
}

TEST_F(SharedStateMachineTest, SixtyFourConcurrentJoinsFormARound) {
  const JobSettings settings = settings_of(64, 64);
  for (int i = 0; i < 64; ++i) add(i, settings).join();
  run_for(5s);
  for (const auto& node : nodes)
    EXPECT_NE(node->record_activity<rdzv::Round>(), nullptr) << node->info.name;
}

TEST_F(SharedStateMachineTest, LostWriteIsRetried) {
  const JobSettings settings = settings_of(2, 2);
  Node& a = add(0, settings);
  Node& b = add(1, settings);
  a.join();
  b.join();
  // Both read the empty store; b is first to write.
  ASSERT_TRUE(a.member.read(store.state, now, &a.delivered).ok());
  const auto late = a.member.propose(now, &a.delivered);
  ASSERT_TRUE(late.has_value());
  ASSERT_TRUE(b.poll_state(now).ok());
  ASSERT_TRUE(a.member.wrote(store.write(*late), now, &a.delivered).ok());
  EXPECT_TRUE(a.delivered.empty()) << "nothing was decided";
  EXPECT_FALSE(a.member.has_sent_all());
  run_for(500ms);
  EXPECT_NE(a.record_activity<rdzv::Round>(), nullptr);
  EXPECT_NE(b.record_activity<rdzv::Round>(), nullptr);
}

TEST_F(SharedStateMachineTest, AWriteWhoseAnswerWasLostIsRecognised) {
  Node& a = add(0, settings_of(1, 1));
  a.join();
  ASSERT_TRUE(a.member.read(store.state, now, &a.delivered).ok());
  store.write(*a.member.propose(now, &a.delivered));
  ASSERT_TRUE(a.member.write_failed({StatusCode::kUnavailable, "reset"}, now).ok());
  EXPECT_EQ(a.record_activity<rdzv::Round>(), nullptr);
  ASSERT_TRUE(a.poll_state(now + 1s).ok());
  ASSERT_NE(a.record_activity<rdzv::Round>(), nullptr);
  EXPECT_TRUE(a.member.has_sent_all());
  EXPECT_EQ(a.record_activity<rdzv::Round>()->record->round, 1u) << "the join was taken once";
}

TEST_F(SharedStateMachineTest, ReplacedVersionIsIgnored) {
  const JobSettings settings = settings_of(1, 2);
  Node& a = add(0, settings);
  a.join();
  ASSERT_TRUE(a.poll_state(now).ok());
  const auto before = store.state;
  Node& b = add(1, settings);
  b.join();
  ASSERT_TRUE(b.poll_state(now).ok());
  ASSERT_TRUE(b.member.read(before, now, &b.delivered).ok());
  EXPECT_FALSE(b.member.propose(now, &b.delivered).has_value());
  EXPECT_EQ(b.record_activity<rdzv::Evicted>(), nullptr);
  EXPECT_GT(b.member.next_poll(false), now) << "and it does not ask again without a pause";
}

TEST_F(SharedStateMachineTest, AStoreThatHasLostTheStateIsAnError) {
  Node& a = add(0, settings_of(1, 2));
  a.join();
  run_for(2s);
  ASSERT_NE(a.record_activity<rdzv::Round>(), nullptr);

  store.state.reset();
  const Status gone = a.poll_state(now);
  EXPECT_EQ(gone.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(gone.message()), HasSubstr("restarted"));
}

TEST_F(SharedStateMachineTest, RecreatedStoreIsAnErrorForItsFormerUsers) {
  Node& a = add(0, settings_of(1, 2));
  a.join();
  run_for(2s);
  store.state.reset();
  Node& b = add(1, settings_of(1, 2));
  b.join();
  ASSERT_TRUE(b.poll_state(now).ok());
  EXPECT_EQ(a.poll_state(now).code(), StatusCode::kFailedPrecondition);
}

TEST_F(SharedStateMachineTest, IncompatibleStateRejectsTheNode) {
  Node& first = add(0, settings_of(2, 2));
  first.join();
  ASSERT_TRUE(first.poll_state(now).ok());
  std::string newer = store.state->bytes;
  newer[4] = 9;  // the version, behind the magic number
  std::string damaged = store.state->bytes;
  damaged.resize(damaged.size() - 3);
  struct Case {
    const char* name;
    std::string bytes;
    JobSettings settings;
    const char* error;
  } const cases[] = {
      {"foreign", "something else", settings_of(2, 2), "another value"},
      {"newer", newer, settings_of(2, 2), "newer version (format 9"},
      {"damaged", damaged, settings_of(2, 2), "damaged"},
      {"other settings", store.state->bytes, settings_of(2, 4),
       "this node has --nnodes=2:4, the job has --nnodes=2"},
  };
  for (const Case& one : cases) {
    Store other;
    other.state = StoredState{one.bytes, "1"};
    Node node(&other, 7, one.settings, now);
    node.join();
    ASSERT_TRUE(node.poll_state(now).ok()) << one.name;
    ASSERT_NE(node.record_activity<rdzv::Refused>(), nullptr) << one.name;
    EXPECT_THAT(std::string(node.record_activity<rdzv::Refused>()->error.message()),
                HasSubstr(one.error));
    EXPECT_EQ(other.state->bytes, one.bytes) << one.name << ": nothing is written";
  }
}

TEST_F(SharedStateMachineTest, FailsAfterStoreGraceWithoutTheStore) {
  Node& a = add(0, settings_of(1, 1));
  a.join();
  ASSERT_TRUE(a.poll_state(now).ok());
  const Status cause(StatusCode::kUnavailable, "refused");
  EXPECT_TRUE(a.member.read_failed(cause, now + 9s).ok());
  const Status end = a.member.read_failed(cause, now + 11s);
  EXPECT_EQ(end.code(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(end.message()), HasSubstr("refused"));
}

TEST_F(SharedStateMachineTest, FailsAfterJoinTimeoutIfTheStoreWasNeverReached) {
  Node& a = add(0, settings_of(1, 1));
  const Status cause(StatusCode::kUnavailable, "refused");
  EXPECT_TRUE(a.member.read_failed(cause, now + 29s).ok());
  EXPECT_EQ(a.member.read_failed(cause, now + 31s).code(), StatusCode::kDeadlineExceeded);
}

TEST_F(SharedStateMachineTest, AJoinThatIsNeverWrittenTimesOut) {
  Node& node = add(1, settings_of(1, 2));
  node.join();
  bool has_timed_out = false;
  for (Duration waited{}; waited <= node.settings.join_timeout + 1s; waited += 500ms) {
    ASSERT_TRUE(node.member.read(std::nullopt, now + waited, &node.delivered).ok());
    if (node.member.propose(now + waited, &node.delivered)) {
      ASSERT_TRUE(node.member.wrote({false, {}}, now + waited, &node.delivered).ok());
    }
    has_timed_out = node.record_activity<rdzv::TimedOut>() != nullptr;
    EXPECT_EQ(has_timed_out, waited > node.settings.join_timeout);
  }
  EXPECT_TRUE(has_timed_out);
  EXPECT_TRUE(node.member.has_sent_all());
}

TEST_F(SharedStateMachineTest, SilentNodeIsLostAndNotifiedLater) {
  const JobSettings settings = settings_of(1, 2);
  Node& a = add(0, settings);
  Node& b = add(1, settings);
  a.join();
  b.join();
  run_for(1s);
  ASSERT_EQ(a.round, 1u);
  ASSERT_EQ(b.round, 1u);
  run_for(1900ms, {&a});
  EXPECT_EQ(b.record_activity<rdzv::Restart>(), nullptr) << "node_timeout is not over";
  run_for(800ms, {&a});
  ASSERT_NE(b.record_activity<rdzv::Restart>(), nullptr);
  EXPECT_THAT(b.record_activity<rdzv::Restart>()->reason, HasSubstr("node0 was lost"));
  ASSERT_TRUE(a.poll_state(now).ok());
  EXPECT_NE(a.record_activity<rdzv::Evicted>(), nullptr);
}

// A node that sends heartbeats at its own, longer interval would be evicted again and again.
TEST_F(SharedStateMachineTest, TimingsOfTheFirstNodeApplyToAllNodes) {
  JobSettings slow = settings_of(2, 2);
  slow.node_timeout = 60s;
  Node& a = add(0, settings_of(2, 2));
  Node& b = add(1, slow);
  a.join();
  ASSERT_TRUE(a.poll_state(now).ok());
  b.join();
  run_for(60s);
  EXPECT_EQ(a.round, 1u);
  EXPECT_EQ(a.record_activity<rdzv::Restart>(), nullptr);
  EXPECT_EQ(b.record_activity<rdzv::Evicted>(), nullptr);
  EXPECT_EQ(a.member.timing_difference(), "");
  EXPECT_EQ(b.member.timing_difference(),
            "the timings of the job's first node replace those of this node: node_timeout is 2 s "
            "(here 1 min)");
}

TEST_F(SharedStateMachineTest, NodeWithoutStoreAccessEvictsNoNode) {
  const JobSettings settings = settings_of(1, 2);
  Node& a = add(0, settings);
  Node& b = add(1, settings);
  a.join();
  b.join();
  run_for(1s);
  now += 3 * settings.node_timeout;  // the store is unreachable for both
  run_for(1500ms);
  EXPECT_EQ(a.record_activity<rdzv::Evicted>(), nullptr);
  EXPECT_EQ(b.record_activity<rdzv::Evicted>(), nullptr);
  EXPECT_EQ(a.record_activity<rdzv::Restart>(), nullptr);
}

TEST_F(SharedStateMachineTest, EveryOverdueJoinTimesOut) {
  JobSettings settings = settings_of(3, 3);
  settings.join_timeout = 5s;
  for (int i = 0; i < 2; ++i) add(i, settings).join();
  run_for(6s);
  for (const auto& node : nodes) {
    ASSERT_NE(node->record_activity<rdzv::TimedOut>(), nullptr) << node->info.name;
    EXPECT_EQ(node->record_activity<rdzv::Evicted>(), nullptr) << node->info.name;
  }
}

TEST_F(SharedStateMachineTest, OrderlyEndFreesTheJobNameAtOnce) {
  Node& a = add(0, settings_of(1, 1));
  a.join();
  ASSERT_TRUE(a.poll_state(now).ok());
  a.member.send(rdzv::Done{a.info.id, 1});
  ASSERT_TRUE(a.poll_state(now).ok());
  ASSERT_NE(a.record_activity<rdzv::Closed>(), nullptr);
  a.member.send(rdzv::Leave{a.info.id, "the job is over"});
  ASSERT_TRUE(a.poll_state(now).ok());

  Node& b = add(1, settings_of(1, 1));
  b.join();
  ASSERT_TRUE(b.poll_state(now).ok());
  ASSERT_NE(b.record_activity<rdzv::Round>(), nullptr);
  EXPECT_EQ(b.record_activity<rdzv::Round>()->record->generation, 2u);
}

TEST_F(SharedStateMachineTest, StateOfADeadJobIsDiscardedAfterNodeTimeout) {
  Node& a = add(0, settings_of(1, 1));
  a.join();
  ASSERT_TRUE(a.poll_state(now).ok());
  a.member.send(rdzv::Done{a.info.id, 1});
  ASSERT_TRUE(a.poll_state(now).ok());
  nodes.clear();  // and it dies before it leaves

  now += 1h;
  Node& b = add(1, settings_of(1, 1));
  b.join();
  run_for(1500ms);
  EXPECT_TRUE(b.delivered.empty()) << "it may still live";
  run_for(1s);
  ASSERT_NE(b.record_activity<rdzv::Round>(), nullptr);
  EXPECT_EQ(b.record_activity<rdzv::Closed>(), nullptr);
}

TEST_F(SharedStateMachineTest, FormerMemberNeedNotWaitForOtherHeartbeats) {
  const JobSettings settings = settings_of(2, 2);
  Node& a = add(0, settings);
  Node& b = add(1, settings);
  a.join();
  b.join();
  run_for(200ms);
  a.member.send(rdzv::Close{a.info.id, {}});
  ASSERT_TRUE(a.poll_state(now).ok());
  a.member.send(rdzv::Leave{a.info.id, "shut down"});
  ASSERT_TRUE(a.poll_state(now).ok());
  a.member.send(rdzv::Close{a.info.id, {}});
  ASSERT_TRUE(a.poll_state(now).ok());
  EXPECT_TRUE(a.member.has_sent_all());
}

TEST_F(SharedStateMachineTest, ClosedJobWithLiveNodesSendsALateNodeItsResult) {
  Node& a = add(0, settings_of(1, 1));
  a.join();
  ASSERT_TRUE(a.poll_state(now).ok());
  a.member.send(rdzv::Done{a.info.id, 1});
  ASSERT_TRUE(a.poll_state(now).ok());
  Node& b = add(1, settings_of(1, 1));
  b.join();
  run_for(1s);
  EXPECT_NE(b.record_activity<rdzv::Closed>(), nullptr);
}

TEST_F(SharedStateMachineTest, IdleNodeReadsTwentyTimesAndWritesFourTimesPerNodeTimeout) {
  Node& a = add(0, settings_of(1, 1));
  a.join();
  run_for(60s);
  const int looks_before = looks;
  const int writes_before = store.writes;
  run_for(20s);
  EXPECT_LE(looks - looks_before, 20 * 20 / 2 * 3 / 2);
  EXPECT_EQ(store.writes - writes_before, 40);
}

}  // namespace
}  // namespace elastic::core
