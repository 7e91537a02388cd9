#include "core/base/parts.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <tuple>
#include <variant>
#include <vector>

namespace elastic::core {
namespace {

struct Tick {};
struct Shared {};

struct Quiet {
  using Event = std::variant<Shared>;
};
struct Timed {
  using Event = std::variant<Shared, Tick>;
  std::optional<Instant> next_deadline() const { return at; }

  std::optional<Instant> at;
};

class PartsTest : public ::testing::Test {
 protected:
  template <typename Event>
  std::vector<const void*> receivers() {
    std::vector<const void*> all;
    for_each_receiver<Event>(parts(), [&](auto& part) { all.push_back(&part); });
    return all;
  }
  std::tuple<Quiet&, Timed&, Timed&> parts() { return {quiet_, first_, second_}; }

  Quiet quiet_;
  Timed first_;
  Timed second_;
};

TEST_F(PartsTest, AnEventIsReceivedByThePartsThatNameItInOrder) {
  const std::vector<const void*> all = {&quiet_, &first_, &second_};
  EXPECT_EQ(receivers<Shared>(), all);
  const std::vector<const void*> timed = {&first_, &second_};
  EXPECT_EQ(receivers<Tick>(), timed);
}

TEST_F(PartsTest, TheEarliestDeadlineIsThatOfAnyPart) {
  const Instant soon{std::chrono::seconds(1)};
  const Instant late{std::chrono::seconds(2)};
  EXPECT_EQ(earliest_deadline(parts()), std::nullopt);
  second_.at = late;
  EXPECT_EQ(earliest_deadline(parts()), late);
  first_.at = soon;
  EXPECT_EQ(earliest_deadline(parts()), soon);
  EXPECT_TRUE(is_due(first_, soon));
  EXPECT_FALSE(is_due(second_, soon));
  EXPECT_FALSE(is_due(quiet_, late));
}

}  // namespace
}  // namespace elastic::core
