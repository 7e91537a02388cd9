// A node whose coordinator reaches no majority of its voters: the others may go on without both.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/session/session_machine.h"
#include "core/session/session_machine_harness.h"

namespace elastic::core {
namespace {

using namespace session_machine_test;
using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class SessionMachineMajority : public SessionMachineTest {
 protected:
  // The coordinator has reached no majority for `alone` when it answers the last heartbeat.
  Texts acknowledge_alone(Duration alone) {
    return step(M::HeartbeatAcknowledged{last_heartbeat_, now_, alone});
  }
  // Connected for `time`, with a heartbeat a second; the coordinator is alone since `since`.
  Texts beat(Duration time, Instant since) {
    Texts all;
    for (const Instant end = now_ + time; now_ < end;) {
      for (const std::string& text : after(1s)) all.push_back(text);
      for (const std::string& text : acknowledge_alone(now_ - since)) all.push_back(text);
    }
    return all;
  }
};

TEST_F(SessionMachineMajority, WaitsForTheCoordinatorsOwnVerdictFirst) {
  enter_round(3);
  const Instant since = now_;
  EXPECT_THAT(beat(67s, since), Not(Contains(HasSubstr("lost"))));
  EXPECT_THAT(beat(2s, since),
              Contains(AllOf(HasSubstr("lost 77: the coordinator at node1:29400 has reached no "
                                       "majority of its voters for 1 min 8 s"))));
}

TEST_F(SessionMachineMajority, TheNextSearchContinuesTheCountAndLeavesTimeForOneAttempt) {
  enter_round(3);
  beat(40s, now_);
  lose_connection();
  fail_attempt();
  EXPECT_THAT(after(19s), Not(Contains(HasSubstr("lost"))));
  EXPECT_THAT(after(1s), Contains(HasSubstr("lost 77: the coordinator at node1:29400 was not")));
}

TEST_F(SessionMachineMajority, ACoordinatorThatGaveUpLeavesTimeForOneAttempt) {
  enter_round(3);
  beat(60s, now_);
  lose_connection();
  fail_attempt();
  EXPECT_THAT(after(7s), Not(Contains(HasSubstr("lost"))));
  EXPECT_THAT(after(1s), Contains(HasSubstr("lost 77")));
}

TEST_F(SessionMachineMajority, ASearchBeforeItCountsToo) {
  enter_round(3);
  const Instant since = now_;
  lose_connection();
  fail_attempt();
  after(55s);
  step(M::Connected{});
  hello(2);
  // Alone for a moment only; but this node has met no other one for 55 s.
  EXPECT_THAT(beat(12s, now_), Not(Contains(HasSubstr("lost"))));
  EXPECT_THAT(beat(2s, since), Contains(HasSubstr("lost 77")));
}

TEST_F(SessionMachineMajority, ACoordinatorThatIsFoundLateHasTimeToReachItsVoters) {
  enter_round(3);
  lose_connection();
  fail_attempt();
  after(59s);
  step(M::Connected{});
  hello(2);
  const Instant found = now_;
  EXPECT_THAT(beat(7s, found), Not(Contains(HasSubstr("lost"))));
  acknowledge_heartbeat();
  EXPECT_THAT(after(1s), Not(Contains(HasSubstr("lost"))));
  acknowledge_heartbeat();
  // The count begins again with the next loss of the majority.
  EXPECT_THAT(beat(60s, now_), Not(Contains(HasSubstr("lost"))));
}

TEST_F(SessionMachineMajority, ConnectionsThatLeadNowhereDoNotProlongIt) {
  enter_round(3);
  beat(60s, now_);
  lose_connection();
  const Instant end = now_ + 9s;
  Texts all;
  while (now_ < end) {
    step(M::Connected{});
    step(M::CoordinatorMoved{""});
    for (const std::string& text : after(100ms)) all.push_back(text);
  }
  EXPECT_THAT(all, Contains(HasSubstr("lost 77")));
}

TEST_F(SessionMachineMajority, TimeInWhichTheProcessWasStoppedDoesNotCount) {
  enter_round(3);
  const Instant since = now_;
  beat(60s, since);
  now_ += 3600s;
  EXPECT_THAT(step(M::ClockGap{3600s}), Not(Contains(HasSubstr("lost"))));
  EXPECT_THAT(step(M::Tick{}), Not(Contains(HasSubstr("lost"))));
  EXPECT_THAT(beat(7s, since + 3600s), Not(Contains(HasSubstr("lost"))));
  EXPECT_THAT(beat(2s, since + 3600s), Contains(HasSubstr("lost 77")));
}

TEST_F(SessionMachineMajority, AWaitingNodeHasNoWorkersToStop) {
  connect_and_join();
  EXPECT_THAT(beat(1000s, now_), Not(Contains(HasSubstr("lost"))));
}

TEST_F(SessionMachineMajority, WithAnOverrideTimeoutItStopsItsWorkersAndStaysConnected) {
  machine_.set_override_timeout(600s);
  enter_round(3);
  EXPECT_THAT(beat(69s, now_), AllOf(Contains("deliver: restart 3"), Not(Contains("disconnect"))));
  submit(rdzv::Gone{kNode, 3});
  submit(join(3));
  acknowledge_heartbeat();
  EXPECT_THAT(receive(round(4)), ElementsAre("deliver: round 4"));
}

TEST_F(SessionMachineMajority, AttemptsThatLeadToTheSameDeadEndBackOff) {
  enter_round(3);
  Texts all = lose_connection();
  int attempts = 0;
  for (const Instant end = now_ + 10s; now_ < end;) {
    const bool is_connecting = std::any_of(all.begin(), all.end(), [](const std::string& text) {
      return text.starts_with("connect");
    });
    const bool is_redirected =
        std::find(all.begin(), all.end(), "connect to 10.0.0.2:5000") != all.end();
    all.clear();
    if (is_connecting && is_redirected) {
      all = fail_attempt();
    } else if (is_connecting) {
      ++attempts;
      step(M::Connected{});
      all = step(M::CoordinatorMoved{"10.0.0.2:5000"});
    }
    for (const std::string& text : after(1ms)) all.push_back(text);
  }
  EXPECT_THAT(attempts, AllOf(::testing::Ge(5), ::testing::Le(60)));
}

}  // namespace
}  // namespace elastic::core
