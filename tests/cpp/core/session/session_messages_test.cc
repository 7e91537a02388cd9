// Whom each message of a coordinator reaches, in order.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/session/session_machine_harness.h"

namespace elastic::core {
namespace {

using namespace session_machine_test;
using namespace std::chrono_literals;

using Texts = std::vector<std::string>;

// A node that has joined. The coordinator has replied to its hello.
class JoinedNode {
 public:
  JoinedNode() {
    std::vector<M::Action> actions;
    machine_.begin(now_, &actions);
    for (const M::Event& event : {M::Event(M::Connected{}), M::Event(M::Submit{join()}),
                                  M::Event(M::HelloReceived{1, now_})}) {
      machine_.step(event, now_, &actions);
    }
  }
  Texts receive(const session::ServerMessage& message) {
    std::vector<M::Action> actions;
    machine_.receive(message, now_, &actions);
    Texts texts;
    for (const M::Action& action : actions) texts.push_back(text_of(action, now_));
    return texts;
  }
  void end() {
    std::vector<M::Action> actions;
    machine_.step(M::End{0s, "job"}, now_, &actions);
    machine_.step(M::Tick{}, now_ + 2s, &actions);
  }

 private:
  Instant now_{std::chrono::seconds(1000)};
  M machine_{settings(), {"coordinator:29400"}, 1};
};

succession::Incumbent incumbent(std::string address) {
  succession::Incumbent incumbent;
  incumbent.address = std::move(address);
  return incumbent;
}

TEST(SessionMessages, EachReachesThoseWhomItConcerns) {
  struct Case {
    session::ServerMessage message;
    Texts expected;
  };
  const std::vector<Case> cases = {
      {session::HeartbeatReply{}, {"active"}},
      {session::Counts{1, 2}, {"active", "counts"}},
      {session::Timings{settings()}, {"active", "timings"}},
      {session::Leaving{"why"}, {"active"}},
      {session::OpenPorts{}, {"active", "ports wanted"}},
      {session::StoreClients{1, {"10.0.0.1"}}, {"active", "inform"}},
      {session::WatchWorkers{true}, {"active", "inform"}},
      {hang::StacksWanted{}, {"active", "inform"}},
      {hang::Verdict{}, {"active", "inform"}},
      {drain::Order{}, {"active", "inform"}},
      {drain::News{}, {"active", "inform"}},
      {snapshot::CopyOrder{}, {"active", "inform"}},
      {gate::ProbeOrder{}, {"active", "inform"}},
      {gate::NetworkFinding{}, {"active", "inform"}},
      {rdzv::Waiting{kNode, "for more"}, {"active", "deliver: waiting"}},
      {round(1), {"active", "deliver: round 1"}},
      {session::Incumbent{.incumbent = incumbent("10.0.0.2:29400")}, {"active", "named"}},
      // Another process: it shows nothing about the coordinator.
      {session::Incumbent{.incumbent = incumbent("10.0.0.2:29400"), .is_elsewhere = true},
       {"directed by the coordinator"}},
      {session::Incumbent{.incumbent = incumbent("10.0.0.3:29400"), .displaced = "it was first"},
       {"active", "dissolved", "log: this node joins the job elsewhere: it was first",
        "disconnect (lost)", "connect to 10.0.0.3:29400"}},
      // To observers.
      {session::StacksReport{}, {"active"}},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.message.index());
    EXPECT_EQ(JoinedNode().receive(one.message), one.expected);
  }
}

TEST(SessionMessages, AHelloIsHandledByTheRestOfTheProcessBeforeTheNodeSendsItsFacts) {
  std::vector<M::Action> actions;
  const Instant now{std::chrono::seconds(1000)};
  M machine(settings(), {"coordinator:29400"}, 1);
  machine.begin(now, &actions);
  machine.step(M::Connected{}, now, &actions);
  actions.clear();
  machine.receive(session::ServerHello{.term = 3, .incarnation = 7, .host_job = "other"}, now,
                  &actions);
  ASSERT_GE(actions.size(), 2U);
  EXPECT_TRUE(std::holds_alternative<M::CoordinatorActive>(actions[0]));
  const auto* found = std::get_if<M::CoordinatorFound>(&actions[1]);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->incarnation, 7U);
  EXPECT_EQ(found->term, 3U);
  EXPECT_EQ(found->host_job, "other");
}

TEST(SessionMessages, AMessageToASessionThatHasEndedIsIgnored) {
  JoinedNode node;
  node.end();
  EXPECT_EQ(node.receive(session::HeartbeatReply{}), Texts{});
}

}  // namespace
}  // namespace elastic::core
