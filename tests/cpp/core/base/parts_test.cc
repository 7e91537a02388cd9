#include "core/base/parts.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "support/instant.h"

namespace elastic::core {
namespace {

using support::at;

struct Shared {};

// Asks for nothing, and has no deadline.
struct Quiet {
  using Event = std::variant<Shared>;
  void step(const Event&, Instant) { ++received; }

  int received = 0;
};
struct Word {
  std::string text;
};
struct Timed {
  using Event = std::variant<Shared, PartTick>;
  using Out = std::vector<std::variant<Word, int>>;
  void step(const Event& event, Instant now, Out* out) {
    if (std::holds_alternative<PartTick>(event)) due.reset();
    out->emplace_back(Word{name + std::to_string(event.index())});
    out->emplace_back(static_cast<int>((now - Instant{}).count()));
  }
  std::optional<Instant> next_deadline() const { return due; }

  std::string name;
  std::optional<Instant> due = {};
};

class PartsTest : public ::testing::Test, private PartOwner<PartsTest> {
 protected:
  template <typename Self>
  static auto parts_of(Self* self) {
    return std::tie(self->quiet_, self->first_, self->second_);
  }
  template <typename Event>
  std::vector<const void*> receivers() {
    std::vector<const void*> all;
    for_each_receiver<Event>(parts_of(this), [&](auto& part) { all.push_back(&part); });
    return all;
  }
  // What the machine was asked for, and which parts had settled.
  std::string feed_shared() {
    feed(Shared{});
    return std::exchange(log_, {});
  }
  std::string tick(Instant now) {
    now_ = now;
    feed_ticks();
    return std::exchange(log_, {});
  }
  std::optional<Instant> deadline() const { return parts_deadline(); }

  Quiet quiet_;
  Timed first_{.name = "a"};
  Timed second_{.name = "b"};

 private:
  friend class PartOwner<PartsTest>;
  void apply(const Word& word) { log_ += word.text + " "; }
  void apply(int) { log_ += "number "; }
  void settled(Quiet*) { log_ += "quiet "; }
  void settled(Timed* part) { log_ += "settled " + part->name + "; "; }

  std::string log_;
};

TEST_F(PartsTest, AnEventIsReceivedByThePartsThatNameItInOrder) {
  const std::vector<const void*> all = {&quiet_, &first_, &second_};
  EXPECT_EQ(receivers<Shared>(), all);
  const std::vector<const void*> timed = {&first_, &second_};
  EXPECT_EQ(receivers<PartTick>(), timed);
}

TEST_F(PartsTest, APartsActionsAreAppliedBeforeTheNextPartReceivesTheEvent) {
  EXPECT_EQ(feed_shared(), "quiet a0 number settled a; b0 number settled b; ");
  EXPECT_EQ(quiet_.received, 1);
}

TEST_F(PartsTest, OnlyAPartWhoseDeadlineHasComeReceivesATick) {
  first_.due = at(2);
  second_.due = at(1);
  EXPECT_EQ(deadline(), at(1));
  EXPECT_EQ(tick(at(1)), "b1 number settled b; ");
  EXPECT_EQ(deadline(), at(2));
  EXPECT_EQ(tick(at(1)), "");
  EXPECT_EQ(tick(at(3)), "a1 number settled a; ");
  EXPECT_EQ(deadline(), std::nullopt);
}

TEST_F(PartsTest, APartWithoutADeadlineIsNeverDue) {
  const Instant soon{std::chrono::seconds(1)};
  first_.due = soon;
  EXPECT_TRUE(is_due(first_, soon));
  EXPECT_FALSE(is_due(second_, soon));
  EXPECT_FALSE(is_due(quiet_, soon));
}

}  // namespace
}  // namespace elastic::core
