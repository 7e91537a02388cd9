// The succession over a store that keeps the record: single calls of the store. The stories are in
// tests/data/scenarios/record; tests/cpp/sim has many processes, and a store with faults.

#include "core/succession/kept_machine.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "elastic/agent.h"

namespace elastic::succession {
namespace {

using namespace std::chrono_literals;

struct Store {
  std::optional<StoredState> state;
  int writes = 0;

  KeptRecord record() const { return *decode_kept(state->bytes); }
};

class Node {
 public:
  Node(Store* store, std::uint64_t self)
      : store_(*store), machine({.store = "memory", .self = {self, self}}, self, now) {}

  // Answers the calls of the process until it waits for a change.
  void settle() {
    while (auto call = machine.next_call()) {
      if (std::holds_alternative<KeeperWait>(*call)) break;
      answer(*call);
    }
  }
  void answer(const KeeperCall& call) {
    const auto* const write = std::get_if<KeeperWrite>(&call);
    if (write == nullptr) return machine.read(store_.state, now, &actions);
    const auto there = store_.state ? std::optional(store_.state->token) : std::nullopt;
    if (there != write->token) {
      return machine.written(StoredWrite{false, store_.state.value_or(StoredState{})}, now,
                             &actions);
    }
    store_.state = StoredState{write->bytes, std::to_string(++store_.writes)};
    machine.written(StoredWrite{true, *store_.state}, now, &actions);
  }
  template <typename One>
  std::vector<One> all() const {
    std::vector<One> found;
    for (const Action& action : actions) {
      if (const auto* one = std::get_if<One>(&action)) found.push_back(*one);
    }
    return found;
  }
  template <typename One>
  bool has() const {
    return !all<One>().empty();
  }

  Store& store_;
  Instant now{1h};
  std::vector<Action> actions;
  KeptMachine machine;
};

TEST(KeptMachine, OfTwoClaimsOneIsStored) {
  Store store;
  Node first(&store, 1);
  Node second(&store, 2);
  first.answer(*first.machine.next_call());
  second.answer(*second.machine.next_call());  // both have read that nothing is there
  first.settle();
  second.settle();
  EXPECT_TRUE(first.has<StartCoordinator>());
  EXPECT_FALSE(second.has<StartCoordinator>());
}

TEST(KeptMachine, AProcessThatEndsGivesBackAClaimThatIsPending) {
  Store store;
  Node node(&store, 1);
  node.answer(*node.machine.next_call());
  const auto claim = node.machine.next_call();
  ASSERT_TRUE(claim && std::holds_alternative<KeeperWrite>(*claim));
  node.machine.step(Resign{}, node.now, &node.actions);
  EXPECT_FALSE(node.machine.is_released());
  node.answer(*claim);
  node.settle();
  EXPECT_TRUE(node.machine.is_released());
  EXPECT_FALSE(node.has<StartCoordinator>());
  EXPECT_EQ(store.record().holder, NodeId{});
}

TEST(KeptMachine, AnErrorThatStaysEndsTheNodeWithItsExitCode) {
  struct Case {
    StatusCode code;
    int exit_code;
  };
  const Case cases[] = {{StatusCode::kInvalidArgument, kExitUsage},
                        {StatusCode::kNotFound, kExitUsage},
                        {StatusCode::kFailedPrecondition, kExitCoordinatorLost},
                        {StatusCode::kPeerViolation, kExitRejected},
                        {StatusCode::kInternal, kExitInternal}};
  for (const Case& one : cases) {
    Store store;
    Node node(&store, 1);
    ASSERT_TRUE(node.machine.next_call());
    node.machine.read(Status(one.code, "why"), node.now, &node.actions);
    ASSERT_EQ(node.all<KeeperFault>().size(), 1u);
    EXPECT_EQ(node.all<KeeperFault>()[0].exit_code, one.exit_code);
    EXPECT_EQ(node.all<KeeperFault>()[0].message, "memory rendezvous: why");
  }
}

}  // namespace
}  // namespace elastic::succession
