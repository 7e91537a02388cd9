// The addresses that a session dials, in turn.

#include "core/session/session_route.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace elastic::core {
namespace {

using testing::ElementsAre;

struct Named {
  std::string name;
  const std::string& text() const { return name; }
};

std::vector<Named> addresses(const std::vector<std::string>& names) {
  std::vector<Named> all;
  for (const std::string& name : names) all.push_back({name});
  return all;
}

template <typename Order>
std::vector<std::string> ordered(Order* order, const std::vector<std::string>& names) {
  std::vector<std::string> texts;
  for (const Named& one : order->order(addresses(names))) texts.push_back(one.name);
  return texts;
}

TEST(AddressOrder, EachAddressIsTriedInTurn) {
  AddressOrder<Named> order;
  EXPECT_THAT(ordered(&order, {"a", "b", "c"}), ElementsAre("a", "b", "c"));
  order.note_dead_end("a");
  EXPECT_TRUE(order.has_untried());
  EXPECT_THAT(ordered(&order, {"a", "b", "c"}), ElementsAre("b", "c", "a"));
  order.note_dead_end("b");
  order.note_dead_end("c");
  EXPECT_FALSE(order.has_untried());
  EXPECT_THAT(ordered(&order, {"a", "b", "c"}), ElementsAre("a", "b", "c"));
  order.note_dead_end("a");
  EXPECT_THAT(ordered(&order, {"a", "b", "c"}), ElementsAre("b", "c", "a"));
  order.forget();
  EXPECT_THAT(ordered(&order, {"a", "b", "c"}), ElementsAre("a", "b", "c"));
}

TEST(AddressOrder, AnAddressThatTheNameGetsLaterIsTriedFirst) {
  AddressOrder<Named> order;
  order.order(addresses({"a"}));
  order.note_dead_end("a");
  EXPECT_FALSE(order.has_untried());
  EXPECT_THAT(ordered(&order, {"a", "b"}), ElementsAre("b", "a"));
  EXPECT_TRUE(order.has_untried());
}

TEST(SessionRoute, ANodeMayHostWhenEveryEndpointWasAskedOrThereIsOne) {
  SessionRoute<Named> single(1);
  single.begin(0);
  EXPECT_TRUE(single.may_host());
  SessionRoute<Named> several(2);
  several.begin(0);
  EXPECT_FALSE(several.may_host());
  EXPECT_FALSE(several.is_further());
  several.begin(2);  // where the coordinator moved to: no endpoint
  EXPECT_FALSE(several.is_further());
  several.begin(1);
  EXPECT_TRUE(several.is_further());
  EXPECT_FALSE(several.may_host());
  several.begin(0);
  EXPECT_TRUE(several.may_host());
}

TEST(SessionRoute, AnAttemptIsAtTheAddressThatIsKnownOrWaitsForARecordThatNamesOne) {
  SessionRoute<Named> route(1);
  struct Case {
    const char* moved_to;
    std::optional<std::string> recorded;  // nullopt: no store keeps the record
    bool begins;
    const char* address;
  };
  for (const Case& one : {Case{"", std::nullopt, true, ""}, Case{"a:1", std::nullopt, true, "a:1"},
                          Case{"", "", false, ""}, Case{"", "b:1", true, "b:1"},
                          Case{"a:1", "b:1", true, "a:1"}, Case{"a:1", "", true, "a:1"}}) {
    EXPECT_EQ(route.begin(0, one.moved_to, one.recorded), one.begins);
    EXPECT_EQ(route.awaits_record(), !one.begins);
    EXPECT_EQ(route.address(), one.address);
  }
}

TEST(SessionRoute, TheLastGoodAddressIsThatOfItsEndpointUntilItLeadsNowhere) {
  SessionRoute<Named> route(2);
  route.begin(1);
  EXPECT_FALSE(route.last_good());
  route.connected({"a"});
  EXPECT_EQ(route.last_good()->name, "a");
  route.begin(0);
  EXPECT_FALSE(route.last_good());
  route.begin(1);
  route.failed("b", false);
  EXPECT_TRUE(route.last_good());
  route.failed("a", false);
  EXPECT_FALSE(route.last_good());
  route.connected({"a"});
  route.misdirected();
  EXPECT_FALSE(route.last_good());
  route.connected({"a"});
  route.failed("", true);
  EXPECT_FALSE(route.last_good()) << "something else listens there now";
}

TEST(SessionRoute, AnAddressOfTheNameIsTriedAgainOnceACoordinatorHasReplied) {
  SessionRoute<Named> route(1);
  route.begin(0);
  EXPECT_THAT(ordered(&route, {"a", "b"}), ElementsAre("a", "b"));
  route.failed("a", true);
  EXPECT_TRUE(route.has_untried());
  EXPECT_THAT(ordered(&route, {"a", "b"}), ElementsAre("b", "a"));
  route.failed("b", true);
  EXPECT_FALSE(route.has_untried());
  route.found({"b"});
  EXPECT_EQ(route.last_good()->name, "b");
  EXPECT_THAT(ordered(&route, {"a", "b"}), ElementsAre("a", "b"));
  route.begin(1);
  EXPECT_FALSE(route.has_untried()) << "where the coordinator moved to has one address";
  EXPECT_THAT(ordered(&route, {"b", "a"}), ElementsAre("b", "a"));
}

}  // namespace
}  // namespace elastic::core
