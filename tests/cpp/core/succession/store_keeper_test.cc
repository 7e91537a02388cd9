// The succession over a store that keeps the record: single calls of the store. The stories are in
// tests/data/scenarios/record; tests/cpp/sim has many processes, and a store with faults.

#include "core/succession/store_keeper.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "elastic/agent.h"

namespace elastic::succession {
namespace {

using namespace std::chrono_literals;

struct KeptProcess {
  template <typename One>
  std::vector<One> all() const {
    std::vector<One> found;
    for (const Action& action : actions) {
      if (const auto* one = std::get_if<One>(&action)) found.push_back(*one);
    }
    return found;
  }
  // Finds nothing in the store; what it claims the job with.
  std::optional<KeeperWrite> claim() {
    EXPECT_TRUE(machine.next_call());
    const std::optional<StoredState> nothing;
    machine.read(nothing, now, &actions);
    const auto call = machine.next_call();
    if (!call || !std::holds_alternative<KeeperWrite>(*call)) return std::nullopt;
    return std::get<KeeperWrite>(*call);
  }
  const Instant now{1h};
  std::vector<Action> actions;
  StoreKeeper machine{{.store = "memory", .self = {1, 1}}, 1, now};
};

TEST(StoreKeeper, AProcessThatEndsGivesBackAClaimThatIsPending) {
  KeptProcess process;
  const auto claim = process.claim();
  ASSERT_TRUE(claim);
  process.machine.step(Resign{}, process.now, &process.actions);
  EXPECT_FALSE(process.machine.is_released());
  const StoredState stored{claim->bytes, "claim"};
  process.machine.written(StoredWrite{true, stored}, process.now, &process.actions);
  const auto release = process.machine.next_call();
  ASSERT_TRUE(release && std::holds_alternative<KeeperWrite>(*release));
  const StoredState released{std::get<KeeperWrite>(*release).bytes, "release"};
  EXPECT_EQ(decode_kept(released.bytes)->holder, NodeId{});
  process.machine.written(StoredWrite{true, released}, process.now, &process.actions);
  EXPECT_TRUE(process.machine.is_released());
  EXPECT_TRUE(process.all<StartCoordinator>().empty());
}

// Each try binds a port, logs a line and writes to the store.
TEST(StoreKeeper, ACoordinatorThatDoesNotStartIsTriedAgainAfterATimeout) {
  KeptProcess process;
  const auto claim = process.claim();
  ASSERT_TRUE(claim);
  const StoredState stored{claim->bytes, "claim"};
  process.machine.written(StoredWrite{true, stored}, process.now, &process.actions);
  ASSERT_EQ(process.all<StartCoordinator>().size(), 1u);
  process.machine.step(CoordinatorFailed{.reason = "no port"}, process.now, &process.actions);
  // The store does not take the claim back.
  Instant now = process.now;
  const Instant end = now + StoreKeeper::Settings().node_timeout;
  std::size_t calls = 0;
  const auto pass_to = [&](Instant time) {
    for (; now <= time; now += 100ms) {
      process.machine.step(Tick{}, now, &process.actions);
      const auto call = process.machine.next_call();
      if (!call) continue;
      ++calls;
      if (std::holds_alternative<KeeperWrite>(*call)) {
        process.machine.written(Status(StatusCode::kUnavailable, "slow"), now, &process.actions);
      } else {
        process.machine.read(std::optional(stored), now, &process.actions);
      }
    }
  };
  pass_to(end - 1s);
  EXPECT_GT(calls, 0u);
  EXPECT_EQ(process.all<StartCoordinator>().size(), 1u);
  pass_to(end + 10s);
  EXPECT_EQ(process.all<StartCoordinator>().size(), 2u);
}

// The call that had not returned for store_grace does so when the node has given up.
TEST(StoreKeeper, ACoordinatorThatHasGivenUpIsNotStartedAgain) {
  KeptProcess process;
  const auto claim = process.claim();
  ASSERT_TRUE(claim);
  StoredState stored{claim->bytes, "claim"};
  process.machine.written(StoredWrite{true, stored}, process.now, &process.actions);
  process.machine.step(CoordinatorStarted{"10.0.0.1:1"}, process.now, &process.actions);
  Instant now = process.now;
  for (bool is_reading = false; !is_reading; now += 100ms) {
    process.machine.step(Tick{}, now, &process.actions);
    const auto call = process.machine.next_call();
    if (!call) continue;
    if (const auto* write = std::get_if<KeeperWrite>(&*call)) {
      stored = {write->bytes, stored.token + "+"};
      process.machine.written(StoredWrite{true, stored}, now, &process.actions);
    } else if (std::holds_alternative<KeeperWait>(*call)) {
      process.machine.waited(false, now, &process.actions);
    } else {
      is_reading = true;
    }
  }
  for (const Instant end = now + 5min; now < end; now += 100ms) {
    process.machine.step(Tick{}, now, &process.actions);
  }
  ASSERT_EQ(process.all<Expired>().size(), 1u);
  process.machine.read(std::optional(stored), now, &process.actions);
  EXPECT_EQ(process.all<StartCoordinator>().size(), 1u);
}

TEST(StoreKeeper, AnErrorThatStaysEndsTheNodeWithItsExitCode) {
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
    KeptProcess process;
    ASSERT_TRUE(process.machine.next_call());
    process.machine.read(Status(one.code, "why"), process.now, &process.actions);
    const auto faults = process.all<KeeperFault>();
    ASSERT_EQ(faults.size(), 1u);
    EXPECT_EQ(faults[0].exit_code, one.exit_code);
    EXPECT_EQ(faults[0].message, "memory rendezvous: why");
  }
}

}  // namespace
}  // namespace elastic::succession
