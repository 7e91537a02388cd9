// What a node states and what its session repeats are two machines: a Participant and a
// SessionOutbox. In any order of events they agree about the node's rounds.

#include "core/session/session_outbox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/random.h"
#include "core/rendezvous/participant.h"

namespace elastic::core {
namespace {

constexpr NodeId kSelf{1, 2};

NodeInfo self() {
  NodeInfo info;
  info.id = kSelf;
  info.local_world_size = 1;
  return info;
}

class Pair {
 public:
  explicit Pair(std::uint64_t seed) : rng_(seed) {}

  void run() {
    for (int i = 0; i < 300; ++i) {
      random_event();
      check();
      if (testing::Test::HasFailure()) return;
    }
  }
  int num_rounds() const { return num_rounds_; }

 private:
  std::uint64_t pick(std::uint64_t count) { return rng_.next() % count; }

  // Of the node.
  void feed(const ParticipantEvent& event) {
    std::vector<NodeStatement> statements;
    participant_.step(event, &statements);
    for (const NodeStatement& statement : statements) {
      if (const auto* join = std::get_if<rdzv::Join>(&statement)) {
        newest_ = std::max(newest_, join->node.highest_round);
      }
      static_cast<void>(outbox_.submit(statement, true));
    }
  }

  // Of the coordinator. The node hears what the outbox delivers.
  template <typename Action>
  void send(const Action& action) {
    if (outbox_.receive(action) != SessionOutbox::Receipt::kDeliver) return;
    deliver(action);
  }
  template <typename Action>
  void deliver(const Action& action) {
    EXPECT_NE(participant_.classify(action), ParticipantInput::kStale) << name_of(action);
    feed(action);
  }
  static std::string name_of(const rdzv::Round& round) {
    return "round " + std::to_string(round.record->round);
  }
  static std::string name_of(const rdzv::Restart& restart) {
    return "restart of " + std::to_string(restart.round);
  }
  static std::string name_of(const rdzv::Evicted& evicted) { return "evicted " + evicted.reason; }
  template <typename Other>
  static std::string name_of(const Other&) {
    return "end";
  }

  void send_round(std::uint64_t number) {
    auto record = std::make_shared<RoundRecord>();
    record->round = number;
    send(rdzv::Round{kSelf, std::move(record), {}});
    num_rounds_ += participant_.state() == ParticipantState::kAssigned ? 1 : 0;
  }
  void send_restart(std::uint64_t number) {
    if (number <= former_) return;  // a coordinator ends rounds of its own job only
    send(rdzv::Restart{kSelf, number, rdzv::RestartCause::kMemberLost, "why", Duration::zero()});
  }

  void random_event() {
    switch (pick(16)) {
      case 0:
      case 1:
        if (participant_.state() == ParticipantState::kOutside || participant_.must_rejoin()) {
          feed(JoinRequested{});
        }
        break;
      case 2:
      case 3:
      case 4: send_round(++newest_); break;
      case 5: send_round(newest_); break;
      case 6:
      case 7: send_restart(newest_); break;
      case 8: send_restart(newest_ - std::min<std::uint64_t>(newest_, pick(3))); break;
      case 9:
      case 10: feed(WorkersStarted{}); break;
      case 11: feed(WorkersGone{}); break;
      case 12: feed(WorkersSucceeded{}); break;
      case 13: send(rdzv::Evicted{kSelf, newest_, "lost"}); break;
      case 14:
        if (pick(4) != 0) break;
        if (const auto evicted = outbox_.displace("another job")) deliver(*evicted);
        former_ = newest_;
        break;
      default:
        if (pick(4) == 0) send(rdzv::TimedOut{kSelf, "too few"});
        break;
    }
  }

  void check() {
    const ParticipantState state = participant_.state();
    if (state == ParticipantState::kJoining) {
      EXPECT_TRUE(outbox_.awaits_round());
    }
    if (state == ParticipantState::kAssigned || state == ParticipantState::kWorking) {
      EXPECT_TRUE(outbox_.works_in_round());
      EXPECT_EQ(outbox_.resume().last->record.round, participant_.round());
    }
    if (state == ParticipantState::kDone) {
      EXPECT_EQ(outbox_.resume().phase, rdzv::NodePhase::kDone);
    }
  }

  Rng rng_;
  Participant participant_{self(), JobSettings{}};
  SessionOutbox outbox_;
  std::uint64_t newest_ = 0;  // round of the coordinator
  std::uint64_t former_ = 0;  // the same, of a job that has dissolved
  int num_rounds_ = 0;
};

TEST(SessionOutboxProperty, AgreesWithTheParticipantInAnyOrderOfEvents) {
  int num_rounds = 0;
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Pair pair(seed);
    pair.run();
    num_rounds += pair.num_rounds();
    if (HasFailure()) return;
  }
  EXPECT_GT(num_rounds, 10000);
}

}  // namespace
}  // namespace elastic::core
