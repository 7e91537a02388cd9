// A node that waits for an operator's override, or for the return of its coordinator.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/session/session_machine.h"
#include "core/session/session_machine_harness.h"

namespace elastic::core {
namespace {

using namespace session_machine_test;
using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SessionMachineOverride : public SessionMachineTest {};

TEST_F(SessionMachineOverride, StopsItsWorkersAndWaitsForAnOverrideAfterTheStoreGrace) {
  machine_.set_override_timeout(600s);
  enter_round(3);
  lose_connection();
  fail_attempt();
  EXPECT_THAT(after(60s), ::testing::Contains("deliver: restart 3"));
  submit(rdzv::Gone{kNode, 3});
  submit(join(3));
  EXPECT_THAT(after(599s), ::testing::Not(::testing::Contains(HasSubstr("lost"))));
  EXPECT_THAT(after(1s), ::testing::Contains(AllOf(HasSubstr("lost 77: "), HasSubstr("11 min"))));
}

TEST_F(SessionMachineOverride, JoinsAgainAtACoordinatorThatAnswersWhileItWaits) {
  machine_.set_override_timeout(600s);
  enter_round(3);
  lose_connection();
  fail_attempt();
  after(60s);
  submit(rdzv::Gone{kNode, 3});
  submit(join(3));
  after(100s);
  step(M::CoordinatorMoved{"10.0.0.2:5000"});
  EXPECT_THAT(step(M::Connected{}), ::testing::Contains("resume joined in 3"));
  hello(2);
  acknowledge_heartbeat();
  EXPECT_THAT(receive(round(4)), ElementsAre("deliver: round 4"));
  // The next loss has its own limits.
  lose_connection();
  fail_attempt();
  EXPECT_THAT(after(59s), ::testing::Not(::testing::Contains("deliver: restart 4")));
  EXPECT_THAT(after(1s), ::testing::Contains("deliver: restart 4"));
}

TEST_F(SessionMachineOverride, WaitsAsWellIfItsOwnCoordinatorHasExpired) {
  machine_.set_override_timeout(600s);
  enter_round(3);
  EXPECT_THAT(step(M::CoordinatorExpired{"no majority"}),
              ElementsAre("log: no majority; the node waits for a coordinator, or an override, for "
                          "10 min",
                          "deliver: restart 3"));
  EXPECT_THAT(step(M::CoordinatorExpired{"no majority"}), ElementsAre("lost 77: no majority"));
}

TEST_F(SessionMachineOverride, WithoutAnOverrideTimeoutAnExpiredCoordinatorEndsTheNode) {
  enter_round(3);
  EXPECT_THAT(step(M::CoordinatorExpired{"no majority"}), ElementsAre("lost 77: no majority"));
}

TEST_F(SessionMachineOverride, AFinishedNodeWaitsForAnOverrideWithoutStoppingAnything) {
  machine_.set_override_timeout(600s);
  enter_round(3);
  submit(rdzv::Done{kNode, 3});
  lose_connection();
  fail_attempt();
  EXPECT_THAT(after(60s), ::testing::Contains(HasSubstr("waits for a coordinator")));
  step(M::CoordinatorMoved{"10.0.0.2:5000"});
  EXPECT_THAT(step(M::Connected{}), ::testing::Contains("resume done in 3"));
}

}  // namespace
}  // namespace elastic::core
