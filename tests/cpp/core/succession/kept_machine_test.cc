// The succession over a store that keeps the record: each rule by itself. tests/cpp/sim has many
// processes, and a store with faults.

#include "core/succession/kept_machine.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/succession/job_record.h"
#include "elastic/agent.h"

namespace elastic::succession {
namespace {

using namespace std::chrono_literals;

struct Store {
  std::optional<StoredState> state;
  int writes = 0;
  bool is_away = false;
  bool loses_answers = false;
  bool has_watch = true;

  KeptRecord record() const { return *decode_kept(state->bytes); }
  void put(const KeptRecord& record) { state = {encode_kept(record), std::to_string(++writes)}; }
};

// A process; its calls of the store are answered at once, unless it is told to hold them.
class Node {
 public:
  Node(Store* store, std::uint64_t self, int rank = -1)
      : store_(*store), machine({.store = "memory", .self = {self, self}}, self, now) {
    machine.set_rank(rank);
  }

  void feed(const Event& event) {
    machine.step(event, now, &actions);
    settle();
  }
  void settle() {
    while (auto call = held ? std::nullopt : machine.next_call()) {
      if (std::holds_alternative<KeeperWait>(*call) && store_.has_watch) {
        is_waiting = true;
        break;
      }
      answer(*call);
    }
    if (is_waiting && machine.must_interrupt()) {
      is_waiting = false;
      machine.waited(true, now, &actions);
      settle();
    }
  }
  void answer(const KeeperCall& call) {
    const Status away(StatusCode::kUnavailable, "it is away");
    if (const auto* write = std::get_if<KeeperWrite>(&call)) {
      if (store_.is_away) return machine.written(away, now, &actions);
      const auto there = store_.state ? std::optional(store_.state->token) : std::nullopt;
      if (there != write->token) {
        return machine.written(StoredWrite{false, store_.state.value_or(StoredState{})}, now,
                               &actions);
      }
      store_.state = StoredState{write->bytes, std::to_string(++store_.writes)};
      if (store_.loses_answers) return machine.written(away, now, &actions);
      machine.written(StoredWrite{true, *store_.state}, now, &actions);
    } else if (std::holds_alternative<KeeperRead>(call)) {
      ++reads;
      if (store_.is_away) return machine.read(away, now, &actions);
      machine.read(store_.state, now, &actions);
    } else {
      machine.waited(store_.has_watch, now, &actions);
    }
  }
  // The store reports a change, or the wait has ended.
  void look() {
    if (!std::exchange(is_waiting, false)) return feed(Tick{});
    machine.waited(true, now, &actions);
    settle();
  }
  void advance(Duration time) {
    const Instant end = now + time;
    while (auto next = machine.next_deadline()) {
      if (*next > end) break;
      now = std::max(now, *next);
      feed(Tick{});
    }
    now = end;
    feed(Tick{});
  }
  // Starts the coordinator that the machine has asked for.
  void start(const std::string& address) { feed(CoordinatorStarted{address}); }

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
  bool is_waiting = false;
  bool held = false;  // no call begins
  int reads = 0;
  KeptMachine machine;
};

reg::Content content(std::uint64_t round) {
  JobRecord record;
  record.job_id = "job";
  record.state = "state " + std::to_string(round);
  return {.generation = 1, .round = round, .is_result = false, .bytes = encode_record(record)};
}

// A coordinator in its office.
std::unique_ptr<Node> coordinator(Store* store, const std::string& address = "10.0.0.1:400") {
  auto node = std::make_unique<Node>(store, 1, 0);
  node->settle();
  node->start(address);
  return node;
}

// A node with a session with that coordinator.
std::unique_ptr<Node> member(Store* store, const Node& of, std::uint64_t self, int rank) {
  auto node = std::make_unique<Node>(store, self, rank);
  node->now = of.now;
  node->settle();
  node->feed(Informed{*of.machine.incumbent()});
  return node;
}

TEST(KeptMachine, TheFirstProcessTakesTheOfficeAndTheNextOneFollows) {
  Store store;
  Node first(&store, 1);
  first.settle();
  const auto start = first.all<StartCoordinator>();
  ASSERT_EQ(start.size(), 1u);
  EXPECT_TRUE(start[0].is_kept);
  EXPECT_TRUE(start[0].record.state.empty());
  EXPECT_EQ(start[0].term, 1u);
  EXPECT_FALSE(incumbent_of(store.record()));  // nobody connects before it listens

  Node second(&store, 2);
  second.settle();
  EXPECT_FALSE(second.has<Follow>());
  EXPECT_NE(second.machine.explain().find("names no coordinator yet"), std::string::npos);

  first.start("10.0.0.1:400");
  EXPECT_EQ(first.all<Inform>().at(0).incumbent.address, "10.0.0.1:400");
  EXPECT_TRUE(first.has<Follow>());
  second.look();
  EXPECT_EQ(second.all<Follow>().at(0).incumbent, *first.machine.incumbent());
  EXPECT_FALSE(second.has<StartCoordinator>());
}

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

TEST(KeptMachine, ANodeWithASessionMakesNoCalls) {
  Store store;
  const auto first = coordinator(&store);
  const auto second = member(&store, *first, 2, 1);
  second->look();
  const int reads = second->reads;
  second->advance(10min);
  EXPECT_EQ(second->reads, reads);
  EXPECT_FALSE(second->machine.next_deadline());
}

TEST(KeptMachine, WhatIsProposedIsInForceWhenItIsStored) {
  Store store;
  const auto node = coordinator(&store);
  node->held = true;
  node->feed(Propose{1, content(1)});
  EXPECT_FALSE(node->is_waiting);  // the wait for a change was interrupted
  EXPECT_FALSE(node->has<InForce>());
  node->held = false;
  node->settle();
  EXPECT_EQ(node->all<InForce>().at(0).number, 1u);
  EXPECT_EQ(store.record().content, content(1));
}

TEST(KeptMachine, AWriteWhoseAnswerWasLostIsFoundInTheStore) {
  Store store;
  const auto node = coordinator(&store);
  store.loses_answers = true;
  node->feed(Propose{1, content(1)});
  EXPECT_FALSE(node->has<InForce>());
  EXPECT_TRUE(node->has<MajorityLost>());  // its nodes count from now on
  store.loses_answers = false;
  node->advance(2s);
  EXPECT_EQ(node->all<InForce>().size(), 1u);
  EXPECT_TRUE(node->has<MajorityRegained>());
}

TEST(KeptMachine, AClaimWhoseAnswerWasLostIsFoundInTheStore) {
  Store store;
  store.loses_answers = true;
  Node node(&store, 1);
  node.settle();
  EXPECT_FALSE(node.has<StartCoordinator>());
  store.loses_answers = false;
  node.advance(2s);
  EXPECT_EQ(node.all<StartCoordinator>().size(), 1u);
  EXPECT_EQ(store.record().term, 1u);
}

TEST(KeptMachine, TheSuccessorOfALostCoordinatorContinuesWhatIsStored) {
  Store store;
  const auto first = coordinator(&store);
  first->machine.set_node({8, 8});
  first->feed(Propose{1, content(1)});
  const auto second = member(&store, *first, 2, 1);
  const auto third = member(&store, *first, 3, 2);
  for (Node* node : {second.get(), third.get()}) {
    node->feed(Unreachable{"10.0.0.1:400", true, true});  // closed, and refused
    EXPECT_FALSE(node->has<StartCoordinator>());          // it is not its turn yet
  }
  second->advance(20ms);
  third->advance(20ms);
  const auto start = second->all<StartCoordinator>();
  ASSERT_EQ(start.size(), 1u);
  EXPECT_EQ(start[0].term, 2u);
  EXPECT_EQ(start[0].record.state, "state 1");
  EXPECT_EQ(start[0].lost_incumbent, (NodeId{8, 8}));
  second->start("10.0.0.2:400");
  third->advance(100ms);
  EXPECT_FALSE(third->has<StartCoordinator>());
  EXPECT_EQ(third->all<Follow>().back().incumbent.address, "10.0.0.2:400");
  // The former one lives after all: nothing of it is stored any more.
  first->feed(Propose{2, content(2)});
  EXPECT_EQ(first->all<StopCoordinator>().at(0).successor->address, "10.0.0.2:400");
  EXPECT_EQ(first->all<InForce>().size(), 1u);
  EXPECT_EQ(first->all<Follow>().back().incumbent.address, "10.0.0.2:400");
}

TEST(KeptMachine, ACoordinatorThatAnswersInTheRecordKeepsItsOffice) {
  Store store;
  const auto first = coordinator(&store);
  const auto second = member(&store, *first, 2, 1);
  second->feed(IncumbentLost{});
  EXPECT_NE(store.record().challenge, 0u);
  first->look();
  EXPECT_EQ(store.record().challenge, 0u);
  second->look();
  second->advance(2s);
  EXPECT_FALSE(second->has<StartCoordinator>());
  EXPECT_NE(second->all<Log>().at(0).message.find("lives"), std::string::npos);
  // It is asked again, and does not answer any more.
  second->advance(5s);
  EXPECT_TRUE(second->has<StartCoordinator>());
}

TEST(KeptMachine, ASilentCoordinatorWhoseAddressRefusesIsAsked) {
  Store store;
  const auto first = coordinator(&store);
  first->machine.set_node({8, 8});
  first->feed(Propose{1, content(1)});
  const auto second = member(&store, *first, 2, 1);
  second->feed(Unreachable{"10.0.0.1:400", true});  // the session is open
  second->advance(50ms);
  EXPECT_FALSE(second->has<StartCoordinator>());
  EXPECT_NE(store.record().challenge, 0u);
  second->advance(100ms);
  ASSERT_TRUE(second->has<StartCoordinator>());
  // It may only have been slow: its node has the time to resume.
  EXPECT_EQ(second->all<StartCoordinator>()[0].lost_incumbent, NodeId{});
}

TEST(KeptMachine, AConnectionIsNotTakenForLostBeforeItsNodeJoins) {
  Store store;
  const auto first = coordinator(&store);
  Node second(&store, 2, 1);
  second.settle();
  second.feed(IncumbentReturned{});  // connected; the hello waits for the workers
  second.advance(10min);
  EXPECT_EQ(store.record().challenge, 0u);
  EXPECT_FALSE(second.machine.next_deadline());
}

TEST(KeptMachine, AProposalOfAnEarlierOfficeIsIgnored) {
  Store store;
  const auto node = coordinator(&store);
  node->feed(Propose{1, content(1), 7});
  EXPECT_FALSE(node->has<InForce>());
  node->feed(Propose{1, content(1), 1});
  EXPECT_TRUE(node->has<InForce>());
}

TEST(KeptMachine, ACoordinatorThatDoesNotAnswerLosesItsOfficeInTime) {
  Store store;
  const auto first = coordinator(&store);
  const auto second = member(&store, *first, 2, 1);
  second->feed(IncumbentLost{});
  second->advance(600ms);
  EXPECT_FALSE(second->has<StartCoordinator>());
  second->advance(100ms);  // an eighth of node_timeout, and its turn
  EXPECT_TRUE(second->has<StartCoordinator>());
}

TEST(KeptMachine, AStaleRecordDelaysTheNextJobForAShortTime) {
  Store store;
  coordinator(&store);  // and nothing is left of its process
  Node next(&store, 2);
  next.settle();
  ASSERT_TRUE(next.has<Follow>());
  next.feed(Unreachable{"10.0.0.1:400", true});
  EXPECT_FALSE(next.has<StartCoordinator>());
  next.advance(150ms);
  EXPECT_TRUE(next.has<StartCoordinator>());
}

TEST(KeptMachine, AHolderThatNeverListensIsReplaced) {
  Store store;
  Node first(&store, 1);
  first.settle();  // and it ends before its coordinator listens
  Node next(&store, 2);
  next.settle();
  next.advance(4900ms);
  EXPECT_FALSE(next.has<StartCoordinator>());
  next.advance(200ms);
  EXPECT_TRUE(next.has<StartCoordinator>());
}

TEST(KeptMachine, AnAddressWithoutASessionIsLostAfterNodeTimeout) {
  Store store;
  coordinator(&store);
  Node next(&store, 2);
  next.settle();
  next.advance(4900ms);
  EXPECT_EQ(store.record().challenge, 0u);
  next.advance(200ms);
  EXPECT_NE(store.record().challenge, 0u);
}

TEST(KeptMachine, AnOfficeThatEndsInOrderIsVacant) {
  Store store;
  const auto first = coordinator(&store);
  first->feed(Propose{1, content(1)});
  const auto second = member(&store, *first, 2, 1);
  first->feed(Resign{});
  EXPECT_TRUE(first->machine.is_released());
  EXPECT_EQ(first->all<StopCoordinator>().size(), 1u);
  EXPECT_EQ(store.record().holder, NodeId{});
  EXPECT_EQ(store.record().content, content(1));
  second->feed(Unreachable{"10.0.0.1:400", true, true});
  second->advance(20ms);
  EXPECT_TRUE(second->has<StartCoordinator>());
  EXPECT_EQ(second->all<StartCoordinator>()[0].lost_incumbent, NodeId{});  // no node is lost
  first->advance(1min);
  EXPECT_EQ(first->all<StartCoordinator>().size(), 1u);
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

TEST(KeptMachine, ACoordinatorThatCannotBeStartedGivesTheOfficeToOthers) {
  Store store;
  Node first(&store, 1);
  first.settle();
  first.feed(CoordinatorFailed{"no port is free"});
  EXPECT_EQ(store.record().holder, NodeId{});
  Node second(&store, 2);
  second.now = first.now;
  second.settle();
  second.advance(50ms);
  EXPECT_TRUE(second.has<StartCoordinator>());
}

TEST(KeptMachine, WithoutTheStoreACoordinatorGivesUpAfterStoreGrace) {
  Store store;
  const auto node = coordinator(&store);
  store.is_away = true;
  node->look();
  node->advance(55s);
  EXPECT_FALSE(node->has<Expired>());
  EXPECT_NE(node->all<Log>().at(0).message.find("no round begins"), std::string::npos);
  node->advance(6s);
  ASSERT_TRUE(node->has<Expired>());
  EXPECT_TRUE(node->has<StopCoordinator>());
  EXPECT_NE(node->all<Expired>()[0].reason.find("store_grace"), std::string::npos);
  EXPECT_FALSE(node->machine.next_deadline());
}

TEST(KeptMachine, ACallThatDoesNotReturnIsAnOutage) {
  Store store;
  const auto node = coordinator(&store);
  node->look();
  node->held = true;
  node->feed(Propose{1, content(1)});
  if (node->is_waiting) node->machine.waited(true, node->now, &node->actions);
  ASSERT_TRUE(node->machine.next_call());  // and is not answered
  node->advance(2s);
  EXPECT_TRUE(node->has<MajorityLost>());
  node->advance(60s);
  EXPECT_TRUE(node->has<Expired>());
}

TEST(KeptMachine, ALostOrForeignRecordEndsTheNode) {
  struct Case {
    std::string name;
    void (*what)(Store*);
    int exit_code;
  };
  const Case cases[] = {
      {"emptied", [](Store* store) { store->state.reset(); }, kExitCoordinatorLost},
      {"another lineage",
       [](Store* store) {
         KeptRecord record = store->record();
         record.lineage = {99, 99};
         record.term = 1;
         store->put(record);
       },
       kExitCoordinatorLost},
      {"foreign bytes",
       [](Store* store) {
         store->state = StoredState{"hello", "9"};
       },
       kExitRejected},
  };
  for (const Case& one : cases) {
    Store store;
    const auto node = coordinator(&store);
    one.what(&store);
    node->look();
    ASSERT_TRUE(node->has<KeeperFault>()) << one.name;
    EXPECT_EQ(node->all<KeeperFault>()[0].exit_code, one.exit_code) << one.name;
    EXPECT_EQ(node->has<StopCoordinator>(), true) << one.name;
  }
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

TEST(KeptMachine, OldVersionsOfTheRecordChangeNothing) {
  Store store;
  const auto first = coordinator(&store);
  const StoredState old = *store.state;
  first->feed(Propose{1, content(1)});
  const StoredState now = *store.state;
  store.state = old;
  first->look();
  EXPECT_FALSE(first->has<StopCoordinator>());
  store.state = now;
  first->advance(2s);
  first->feed(Propose{2, content(2)});
  EXPECT_EQ(first->all<InForce>().size(), 2u);
}

TEST(KeptMachine, ARecordThatCannotBeContinuedIsNotClaimed) {
  Store store;
  {
    const auto first = coordinator(&store);
    KeptRecord record = store.record();
    record.content = {.generation = 1, .round = 1, .is_result = false, .bytes = "damaged"};
    record.holder = {};
    record.address.clear();
    store.put(record);
  }
  Node next(&store, 2);
  next.settle();
  next.advance(1s);
  ASSERT_TRUE(next.has<KeeperFault>());
  EXPECT_EQ(next.all<KeeperFault>()[0].exit_code, kExitRejected);
}

TEST(KeptMachine, ARecordThatAnotherProcessForgesStartsNothing) {
  Store store;
  coordinator(&store);
  Node node(&store, 2);
  node.settle();
  KeptRecord forged = store.record();
  forged.holder = {2, 2};
  ++forged.version;
  forged.content = {.generation = 1, .round = 1, .is_result = false, .bytes = "damaged"};
  store.put(forged);
  node.feed(Unreachable{"10.0.0.1:400", true, true});
  EXPECT_FALSE(node.has<StartCoordinator>());
  EXPECT_EQ(node.all<KeeperFault>().at(0).exit_code, kExitRejected);
}

TEST(KeptMachine, ARecordThatIsInUseIsWrittenAgain) {
  Store store;
  const auto node = coordinator(&store);
  const int writes = store.writes;
  const auto pass = [&](int seconds) {
    for (int i = 0; i < seconds; ++i) {
      node->advance(1s);
      node->look();
    }
  };
  pass(9 * 60);
  EXPECT_EQ(store.writes, writes);
  pass(2 * 60);
  EXPECT_EQ(store.writes, writes + 1);
  EXPECT_FALSE(node->has<StopCoordinator>());
}

TEST(KeptMachine, AStoreWithoutAWatchIsPolledByThoseWhoNeedIt) {
  Store store;
  store.has_watch = false;
  const auto first = coordinator(&store);
  const auto second = member(&store, *first, 2, 1);
  const int before = first->reads;
  first->advance(10s);
  EXPECT_GE(first->reads - before, 30);
  EXPECT_LE(first->reads - before, 50);
  const int reads = second->reads;
  second->advance(10s);
  EXPECT_EQ(second->reads, reads);
}

}  // namespace
}  // namespace elastic::succession
