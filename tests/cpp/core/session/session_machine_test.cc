// Attempts to connect, too many for a scenario. The stories are in tests/data/scenarios/session.

#include "core/session/session_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "core/session/session_machine_harness.h"

namespace elastic::core {
namespace {

using namespace session_machine_test;
using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class SessionMachineTest : public ::testing::Test {
 protected:
  using Texts = std::vector<std::string>;

  Texts texts_of(const std::vector<M::Action>& actions) {
    Texts texts;
    for (const M::Action& action : actions) {
      if (const auto* beat = std::get_if<M::SendHeartbeat>(&action)) last_heartbeat_ = beat->sent;
      texts.push_back(text_of(action, now_));
    }
    return texts;
  }
  Texts step(const M::Event& event) {
    std::vector<M::Action> actions;
    machine_.step(event, now_, &actions);
    return texts_of(actions);
  }
  Texts after(Duration wait) {
    now_ += wait;
    return step(M::Tick{});
  }
  Texts lose_connection() {
    return step(M::ConnectionLost{Status(StatusCode::kUnavailable, "reset by peer")});
  }
  Texts fail_attempt() {
    return step(M::AttemptFailed{Status(StatusCode::kUnavailable, "refused"), std::nullopt});
  }
  // Joined, and everything acknowledged.
  void connect_and_join() {
    std::vector<M::Action> actions;
    machine_.begin(now_, &actions);
    step(M::Connected{});
    step(M::Submit{join()});
    step(M::HelloReceived{1, now_});
    step(M::HeartbeatAcknowledged{last_heartbeat_, now_});
    step(M::Received{rdzv::Waiting{kNode, "for more"}});
  }
  void enter_round(std::uint64_t number) {
    connect_and_join();
    step(M::Received{round(number)});
  }
  // Connected for `time`, with a heartbeat a second; the coordinator reaches no majority since now.
  void beat_without_majority(Duration time) {
    const Instant since = now_;
    for (const Instant end = now_ + time; now_ < end;) {
      after(1s);
      step(M::HeartbeatAcknowledged{last_heartbeat_, now_, now_ - since});
    }
  }

  Instant now_ = Instant(std::chrono::hours(1));
  M machine_{settings(), {"node1:29400"}, 7};
  Instant last_heartbeat_;
};

TEST_F(SessionMachineTest, TheFirstReconnectIsAtOnceAndLaterOnesAreAtMostASecondApart) {
  connect_and_join();
  EXPECT_THAT(lose_connection(), ::testing::ElementsAre("connect"));
  std::set<Duration> waits;
  for (int i = 0; i < 30; ++i) {
    fail_attempt();
    const Instant retry = *machine_.next_deadline();
    EXPECT_LE(retry - now_, 1s);
    waits.insert(retry - now_);
    now_ = retry;
    step(M::Tick{});
  }
  EXPECT_GT(waits.size(), 20u);  // jitter
}

TEST_F(SessionMachineTest, ANodeThatLostItsCoordinatorTriesAddressesAtAFasterPace) {
  EXPECT_EQ(machine_.attempt_pace(1s), 1s);
  connect_and_join();
  EXPECT_EQ(machine_.attempt_pace(1s), settings().node_timeout / 16);
  EXPECT_EQ(machine_.attempt_pace(100ms), 100ms);
  JobSettings job = settings();
  job.node_timeout = 16ms;
  step(M::TimingsReceived{job});
  EXPECT_EQ(machine_.attempt_pace(100ms), 10ms);
}

// A refusal that can be gone in a second does not end the round of a node before store_grace is
// over.
TEST_F(SessionMachineTest, AFullCoordinatorIsAnOutageForANodeThatRunsARound) {
  enter_round(1);
  const M::Event full =
      M::Received{rdzv::Refused{kNode, Status(StatusCode::kResourceExhausted, "too many jobs")}};
  const Instant begin = now_;
  lose_connection();
  bool is_lost = false;
  for (int i = 0; i < 1000 && !is_lost; ++i) {
    step(M::Connected{});
    EXPECT_THAT(step(full), Not(::testing::Contains("deliver: refused")));
    now_ = *machine_.next_deadline();
    for (const std::string& text : step(M::Tick{})) {
      is_lost = is_lost || text.starts_with("lost 77: ");
    }
  }
  EXPECT_TRUE(is_lost);
  EXPECT_EQ(now_ - begin, settings().store_grace);
}

TEST_F(SessionMachineTest, AFullCoordinatorRefusesANodeWithoutARound) {
  connect_and_join();
  EXPECT_THAT(
      step(M::Received{rdzv::Refused{kNode, Status(StatusCode::kResourceExhausted, "full")}}),
      ::testing::ElementsAre("deliver: refused"));
}

TEST_F(SessionMachineTest, ARoundOfAnotherNumberOfWorkersIsRefused) {
  connect_and_join();
  rdzv::Round other = round(1);
  other.own.local_world_size = 2;
  EXPECT_THAT(step(M::Received{other}), ::testing::ElementsAre("deliver: refused"));
}

TEST_F(SessionMachineTest, APeerThatRedirectsEachConnectionIsNotCalledWithoutAPause) {
  enter_round(1);
  for (int i = 0; i < 5; ++i) {
    EXPECT_THAT(step(M::CoordinatorMoved{"10.0.0.9:5000"}), Contains("connect to 10.0.0.9:5000"));
    step(M::Connected{});
  }
  EXPECT_THAT(step(M::CoordinatorMoved{"10.0.0.9:5000"}), Not(Contains(HasSubstr("connect to"))));
  EXPECT_THAT(after(1s), Contains("connect"));
}

// The node's workers run, and the process at the other end gives it another round.
TEST_F(SessionMachineTest, ARoundForANodeThatRunsOneEndsTheConnectionOnly) {
  enter_round(1);
  EXPECT_THAT(step(M::Received{round(2)}), ElementsAre("disconnect (lost)"));
  EXPECT_THAT(after(1s), Contains("connect"));
  step(M::Connected{});
  step(M::HelloReceived{1, now_});
  rdzv::Round larger = round(1);
  larger.own.local_world_size = 9;
  EXPECT_THAT(step(M::Received{larger}), IsEmpty()) << "one that it has is not looked at";
}

TEST_F(SessionMachineTest, ARoundForANodeThatHasNotJoinedEndsTheConnectionOnly) {
  std::vector<M::Action> actions;
  machine_.begin(now_, &actions);
  step(M::Connected{});
  step(M::Introduce{kNode});
  step(M::HelloReceived{1, now_});
  EXPECT_THAT(step(M::Received{round(1)}), ElementsAre("disconnect (lost)"));
}

TEST_F(SessionMachineTest, ANodeThatDoesNotJoinSendsWhatItHasFound) {
  std::vector<M::Action> actions;
  machine_.begin(now_, &actions);
  step(M::Connected{});
  step(M::Report{gate::Finding{"node7", "gpu", gate::Verdict::kBad, "ECC"}});
  actions.clear();
  machine_.step(M::Introduce{kNode}, now_, &actions);
  int sent = 0;
  for (const M::Action& action : actions) {
    const auto* report = std::get_if<M::SendReport>(&action);
    if (report != nullptr) sent += std::holds_alternative<gate::Finding>(report->report) ? 1 : 0;
  }
  EXPECT_EQ(sent, 1);
  step(M::HelloReceived{1, now_});
  actions.clear();
  const Status bad(StatusCode::kFailedPrecondition, "bad");
  machine_.step(M::Received{rdzv::Refused{kNode, bad, true}}, now_, &actions);
  EXPECT_TRUE(std::any_of(actions.begin(), actions.end(), [](const M::Action& action) {
    return std::holds_alternative<M::Deliver>(action);
  }));
}

// Bytes that it cannot read, before the hello, show a false version only to a node that begins.
TEST_F(SessionMachineTest, ANodeThatWasInARoundIsNotEndedByBytesThatItCannotRead) {
  enter_round(1);
  step(M::Received{rdzv::Restart{kNode, 1, rdzv::RestartCause::kGrowth, "a node joined", 5s}});
  step(M::Submit{join(1)});
  lose_connection();
  step(M::Connected{});
  EXPECT_THAT(step(M::ConnectionLost{Status(StatusCode::kPeerViolation, "malformed")}),
              ElementsAre("connect"));
}

TEST_F(SessionMachineTest, APeerThatClosesEachConnectionIsNotCalledWithoutAPause) {
  enter_round(1);
  for (int i = 0; i < 5; ++i) {
    EXPECT_THAT(lose_connection(), ::testing::ElementsAre("connect"));
    step(M::Connected{});
    step(M::HelloReceived{1, now_});
  }
  EXPECT_THAT(lose_connection(), Not(::testing::Contains("connect")));
  EXPECT_THAT(after(1s), ::testing::Contains("connect"));
}

// Processes that direct a node to each other must not keep it for ever.
TEST_F(SessionMachineTest, BeingSentAwayDoesNotProlongTheStoreGrace) {
  enter_round(1);
  JobSettings job = settings();
  job.store_grace = 3s;
  step(M::TimingsReceived{job});
  Texts all = lose_connection();
  const Instant end = now_ + 4s;
  bool has_address = false;
  while (now_ < end) {
    const bool is_greeted = std::find(all.begin(), all.end(), "hello") != all.end();
    const bool is_connecting = std::any_of(all.begin(), all.end(), [](const std::string& text) {
      return text.starts_with("connect");
    });
    all.clear();
    if (is_greeted) {
      has_address = !has_address;
      all = step(M::CoordinatorMoved{has_address ? "10.0.0.2:5000" : ""});
    } else if (is_connecting) {
      all = step(M::Connected{});
    }
    for (const std::string& text : after(1ms)) all.push_back(text);
    for (const std::string& text : all) {
      if (text.starts_with("lost 77")) return;
    }
  }
  FAIL() << "the node still searches";
}

TEST_F(SessionMachineTest, ConnectionsThatLeadNowhereDoNotProlongIt) {
  enter_round(3);
  beat_without_majority(60s);
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

TEST_F(SessionMachineTest, AttemptsThatLeadToTheSameDeadEndBackOff) {
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

TEST_F(SessionMachineTest, ReportsAreSentAtOnceAndFollowTheResumeAtTheNextCoordinator) {
  enter_round(1);
  EXPECT_THAT(step(M::Report{hang::RankFinished{.round = 1}}), ElementsAre("finished"));
  EXPECT_THAT(step(M::Report{hang::NodeProgress{.round = 1}}), ElementsAre("progress"));
  EXPECT_THAT(step(M::Report{hang::NodeStacks{}}), ElementsAre("stacks"));
  EXPECT_THAT(step(M::Report{drain::Reply{}}), ElementsAre("reply"));

  lose_connection();
  EXPECT_THAT(step(M::Report{drain::Notice{.left = 4s}}), IsEmpty());
  EXPECT_THAT(step(M::Report{drain::Reply{}}), IsEmpty());
  EXPECT_THAT(step(M::Connected{}),
              ElementsAre("hello", "resume working in 1", "finished", "notice", "heartbeat"));
  EXPECT_THAT(step(M::HelloReceived{2, now_}), IsEmpty());
  const M::Received resumed{rdzv::Resumed{kNode, 1}};
  EXPECT_THAT(step(resumed), ElementsAre("progress")) << "now it knows the round";
  EXPECT_THAT(step(resumed), IsEmpty());
}

TEST_F(SessionMachineTest, ReportsToASilentCoordinatorFollowItsNextMessage) {
  enter_round(1);
  after(1s);
  EXPECT_THAT(after(1s), Contains("connect"));
  EXPECT_THAT(step(M::Report{drain::Reply{}}), IsEmpty());
  EXPECT_THAT(step(M::Report{drain::Notice{.left = 4s}}), IsEmpty());
  EXPECT_THAT(step(M::Activity{}), ElementsAre("cancel attempt", "reply", "notice"));
  EXPECT_THAT(step(M::Activity{}), IsEmpty());
}

TEST_F(SessionMachineTest, ReportsToASilentCoordinatorThatIsReplacedFollowTheResume) {
  enter_round(1);
  after(1s);
  after(1s);
  step(M::Report{drain::Reply{}});
  step(M::Report{drain::Notice{.left = 4s}});
  EXPECT_THAT(step(M::Connected{}),
              ElementsAre("hello", "resume working in 1", "notice", "heartbeat"));
  EXPECT_THAT(step(M::HelloReceived{1, now_}), IsEmpty());
}

// The healthy job that goes on would be stopped by the notice.
TEST_F(SessionMachineTest, NothingThatIsKeptOfADissolvedJobIsSentToTheOther) {
  enter_round(1);
  drain::Order stop;
  stop.notice.left = 4s;
  step(M::Informed{stop});
  step(M::Report{hang::RankFinished{.round = 1}});
  step(M::Report{hang::NodeProgress{.round = 1}});
  step(M::Displaced{"10.0.0.2:5000", "the job runs already"});
  step(M::Connected{});
  step(M::HelloReceived{2, now_});
  step(M::Submit{join(1)});
  step(M::Received{round(2)});
  lose_connection();
  EXPECT_THAT(step(M::Connected{}), ElementsAre("hello", "resume working in 2", "heartbeat"));
  EXPECT_THAT(step(M::HelloReceived{3, now_}), IsEmpty());
  EXPECT_THAT(step(M::Received{rdzv::Resumed{kNode, 2}}), IsEmpty());
}

TEST_F(SessionMachineTest, AnOrderForNodesThatJoinIsRepeatedUntilTheNextRound) {
  enter_round(1);
  drain::Order growth;
  growth.notice.departure = drain::Departure{};
  step(M::Informed{growth});
  lose_connection();
  EXPECT_THAT(step(M::Connected{}), Contains("notice"));
  step(M::HelloReceived{2, now_});
  step(M::Received{round(2)});
  lose_connection();
  EXPECT_THAT(step(M::Connected{}), Not(Contains("notice")));
}

}  // namespace
}  // namespace elastic::core
