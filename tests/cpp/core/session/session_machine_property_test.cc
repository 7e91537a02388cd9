#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/random.h"
#include "core/session/session_machine.h"
#include "core/session/session_machine_harness.h"

namespace elastic::core {
namespace {

using namespace std::chrono_literals;
using namespace session_machine_test;

// Guarantees to the owner that executes the actions, in any order of events.
class Properties {
 public:
  explicit Properties(std::uint64_t seed)
      : rng_(seed), machine_(settings(), {"node1:29400"}, seed) {}

  void hold() {
    std::vector<M::Action> actions;
    machine_.begin(now_, &actions);
    check(M::Tick{}, actions);
    for (int i = 0; i < 400 && !is_over_; ++i) {
      random_event();
      if (testing::Test::HasFatalFailure()) return;
      feed(M::Tick{});
      if (testing::Test::HasFatalFailure()) return;
      // After a tick no deadline is due, so a loop that waits for the deadline does not spin.
      const auto next = machine_.next_deadline();
      ASSERT_TRUE(!next || *next > now_);
    }
  }

 private:
  void feed(const M::Event& event) {
    std::vector<M::Action> actions;
    machine_.step(event, now_, &actions);
    check(event, actions);
  }
  void check(const M::Event& event, const std::vector<M::Action>& actions) {
    for (const M::Action& action : actions) {
      const std::string text = text_of(action, now_);
      const bool is_of_end = std::holds_alternative<M::EndCoordinator>(action) ||
                             std::holds_alternative<M::ReleaseRecord>(action) ||
                             std::holds_alternative<M::Ended>(action);
      ASSERT_TRUE(is_of_end || !is_lost_) << text << " after Lost";
      ASSERT_FALSE(is_over_) << text << " after the end";
      if (std::holds_alternative<M::Submit>(event)) {
        ASSERT_TRUE(!std::holds_alternative<M::Deliver>(action) &&
                    !std::holds_alternative<M::Log>(action) &&
                    !std::holds_alternative<M::Lost>(action))
            << text << " inside a call of the node";
      }
      if (std::holds_alternative<M::Connect>(action)) {
        ASSERT_FALSE(is_attempting_);
        is_attempting_ = true;
      } else if (std::holds_alternative<M::CancelAttempt>(action)) {
        ASSERT_TRUE(is_attempting_);
        is_attempting_ = false;
      } else if (std::holds_alternative<M::SendHello>(action)) {
        ASSERT_TRUE(is_open_);
        ASSERT_FALSE(is_hello_sent_);
        is_hello_sent_ = true;
      } else if (std::holds_alternative<M::Send>(action) ||
                 std::holds_alternative<M::SendHeartbeat>(action)) {
        ASSERT_TRUE(is_open_ && is_hello_sent_) << text << " before the hello";
      } else if (const auto* delivered = std::get_if<M::Deliver>(&action)) {
        if (const auto* one = std::get_if<rdzv::Round>(&delivered->action)) {
          ASSERT_GT(one->record->round, round_);
          round_ = one->record->round;
        }
      } else if (std::holds_alternative<M::Disconnect>(action)) {
        ASSERT_TRUE(is_open_);
        is_open_ = false;
      } else if (std::holds_alternative<M::EndCoordinator>(action)) {
        ASSERT_TRUE(is_lost_ || (!is_open_ && !is_attempting_))
            << "its own session is closed first";
      } else if (std::holds_alternative<M::Lost>(action)) {
        is_lost_ = true;
      } else if (std::holds_alternative<M::Ended>(action)) {
        is_over_ = true;
      }
    }
  }
  void random_event() {
    const auto pick = [this](std::uint64_t n) { return rng_.next() % n; };
    now_ += Duration(static_cast<Duration::rep>(pick(700'000'000)));
    const std::uint64_t number = round_ + pick(3);
    switch (pick(17)) {
      case 0:
      case 1:
      case 2:
        if (!is_attempting_) break;
        is_attempting_ = false;
        is_open_ = true;
        is_hello_sent_ = false;
        feed(M::Connected{});
        break;
      case 3:
        if (!is_attempting_) break;
        is_attempting_ = false;
        feed(M::AttemptFailed{Status(StatusCode::kUnavailable, "refused"), std::nullopt});
        break;
      case 4:
        if (!is_open_) break;
        is_open_ = false;
        feed(M::ConnectionLost{Status(StatusCode::kUnavailable, "reset")});
        break;
      case 5: feed(M::Submit{join(number)}); break;
      case 6: feed(M::Submit{rdzv::Gone{kNode, number}}); break;
      case 7: feed(M::Submit{rdzv::Failed{kNode, number, failure_at(now_)}}); break;
      case 8: feed(M::Submit{rdzv::Done{kNode, number}}); break;
      case 9:
        if (pick(20) == 0) feed(M::Submit{rdzv::Leave{kNode, "SIGTERM"}});
        break;
      case 10:
        if (is_hello_sent_ && is_open_) feed(M::HelloReceived{pick(3), now_});
        break;
      case 11:
        if (is_hello_sent_ && is_open_)
          feed(M::HeartbeatAcknowledged{now_ - Duration(pick(9)), now_});
        break;
      case 12:
        if (is_open_) feed(M::Received{round(number)});
        break;
      case 13:
        if (is_open_) feed(M::Received{rdzv::Restart{kNode, number, {}, "why", 1s}});
        break;
      case 14:
        if (is_open_) feed(M::Received{rdzv::Evicted{kNode, number, "why"}});
        break;
      case 15: feed(M::EndStepDone{}); break;
      default:
        if (!is_ending_ && pick(5) == 0) {
          is_ending_ = true;
          feed(M::End{Duration(static_cast<Duration::rep>(pick(3'000'000'000))), "job"});
        }
        break;
    }
  }

  Instant now_ = Instant(1h);
  Rng rng_;
  M machine_;
  bool is_attempting_ = false;
  bool is_open_ = false;
  bool is_hello_sent_ = false;
  bool is_lost_ = false;
  bool is_ending_ = false;
  bool is_over_ = false;
  std::uint64_t round_ = 0;
};

TEST(SessionMachineProperties, HoldInEveryOrderOfEvents) {
  for (std::uint64_t seed = 1; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Properties(seed).hold();
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace elastic::core
