// One attempt to find a coordinator.

#include "host/membership/session_link.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <utility>
#include <variant>

#include "host/coordinator/turned_coordinator.h"
#include "os/loop/event_loop.h"
#include "os/loop/thread.h"
#include "support/loop_group.h"

namespace elastic::host {
namespace {

using std::chrono::seconds;

// A name may take long to be resolved, and the coordinator may be started after it.
TEST(SessionAttempt, TimeOfALookUpDoesNotCount) {
  support::LoopGroup group;
  const auto coordinator = *TurnedCoordinator::start({});
  const auto node = *os::LoopThread::start("node", &group);
  PeerGroup connections(&node->loop(), 1 << 20, 1 << 20);
  std::optional<std::variant<os::DetachedStream, SessionAttempt::Failure>> outcome;
  SessionAttempt attempt(
      &connections, {.host = "127.0.0.1", .port = coordinator->port(), .limit = seconds(1)},
      {.route = [](const Result<SessionAttempt::Addresses>& found) { return *found; },
       .on_delay = [](const Status&) {},
       .done = [&](auto result) { outcome = std::move(result); }});
  // Between the begin of the look-up and its result, which the loop delivers in its next turn.
  const auto resolver = *os::LoopThread::start("resolver", &group);
  resolver->loop().post([&] { group.take(seconds(2)); });
  ASSERT_TRUE(group.run_until([&] { return outcome.has_value(); }));
  const auto* failure = std::get_if<SessionAttempt::Failure>(&*outcome);
  EXPECT_EQ(failure, nullptr) << failure->why.message();
}

}  // namespace
}  // namespace elastic::host
