#include "host/membership/local_membership.h"
#include "os/loop/event_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace elastic::host {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string word_of(const MembershipEvent& event) {
  struct Reader {
    std::string operator()(const MembershipReady& one) const { return "ready " + one.address; }
    std::string operator()(const MembershipProgress&) const { return "log_progress"; }
    std::string operator()(const MembershipCoordinatorLog&) const { return "coordinator log"; }
    std::string operator()(const MembershipCoordinator&) const { return "coordinator"; }
    std::string operator()(const MembershipLost&) const { return "lost"; }
    std::string operator()(const MembershipStoreClients&) const { return "store clients"; }
    std::string operator()(const MembershipWatch&) const { return "watch"; }
    std::string operator()(const hang::StacksWanted&) const { return "stacks wanted"; }
    std::string operator()(const hang::Verdict&) const { return "verdict"; }
    std::string operator()(const drain::Order&) const { return "drain order"; }
    std::string operator()(const drain::News& news) const { return news.text; }
    std::string operator()(const snapshot::CopyOrder&) const { return "copy order"; }
    std::string operator()(const gate::ProbeOrder&) const { return "probe order"; }
    std::string operator()(const gate::NetworkFinding&) const { return "network finding"; }
    std::string operator()(const rdzv::Round& one) const {
      return "round " + std::to_string(one.record->round) + " after " +
             std::to_string(one.record->restarts);
    }
    std::string operator()(const rdzv::Restart& one) const {
      return "restart " + std::to_string(one.round);
    }
    std::string operator()(const rdzv::Waiting&) const { return "waiting"; }
    std::string operator()(const rdzv::Evicted&) const { return "evicted"; }
    std::string operator()(const rdzv::Refused&) const { return "refused"; }
    std::string operator()(const rdzv::TimedOut&) const { return "timed out"; }
    std::string operator()(const rdzv::Closed& one) const {
      return "closed " + std::to_string(one.result->exit_code);
    }
    std::string operator()(const rdzv::RoundOver& one) const {
      return "over " + std::to_string(one.round);
    }
  };
  return std::visit(Reader{}, event);
}

class LocalMembershipTest : public ::testing::Test {
 protected:
  LocalMembershipTest() {
    auto loop = os::EventLoop::create();
    EXPECT_TRUE(loop.ok());
    loop_ = *std::move(loop);
    JobSettings settings;
    settings.max_nodes = 7;  // as with --nnodes=1:7 and no endpoint
    settings.max_restarts = 1;
    membership_ = std::make_unique<LocalMembership>(
        loop_.get(), LocalMembership::Options{.settings = settings, .address = "127.0.0.1"},
        [this](const MembershipEvent& event) { received_.push_back(word_of(event)); });
    node_.id = {1, 2};
    node_.store_port = 1234;
  }

  // The events that are delivered until none is left.
  std::vector<std::string> received() {
    membership_->drain(std::chrono::seconds(0), [this] { loop_->stop(); });
    loop_->run();
    return std::exchange(received_, {});
  }
  void join() { membership_->send(rdzv::Join{node_, {}}); }
  void receive_round(std::uint64_t round) { node_.highest_round = round; }
  rdzv::Failed failed(std::uint64_t round) const {
    FailureReport failure;
    failure.exit_code = 3;
    return {node_.id, round, failure};
  }

  std::unique_ptr<os::EventLoop> loop_;
  std::unique_ptr<LocalMembership> membership_;
  core::NodeInfo node_;
  std::vector<std::string> received_;
};

TEST_F(LocalMembershipTest, IsReadyAtOnceAndDeliversNothingInsideACall) {
  EXPECT_THAT(received_, IsEmpty());
  EXPECT_THAT(received(), ElementsAre("ready 127.0.0.1"));
  join();
  EXPECT_THAT(received_, IsEmpty());
  EXPECT_THAT(received(), ElementsAre("round 1 after 0"));
  EXPECT_EQ(membership_->waiting_nodes(), 0);
}

TEST_F(LocalMembershipTest, RestartsAFailedRoundWithinTheBudgetAndClosesBeyond) {
  join();
  membership_->send(failed(1));
  EXPECT_THAT(received(), ElementsAre("ready 127.0.0.1", "round 1 after 0", "restart 1"));
  membership_->send(rdzv::Gone{node_.id, 1});
  receive_round(1);
  join();
  EXPECT_THAT(received(), ElementsAre("over 1", "round 2 after 1"));
  membership_->send(failed(2));
  membership_->send(rdzv::Gone{node_.id, 2});
  EXPECT_THAT(received(), ElementsAre("restart 2", "over 2", "closed 3"));
}

TEST_F(LocalMembershipTest, ClosesWhenTheNodeIsDone) {
  join();
  membership_->send(rdzv::Done{node_.id, 1});
  EXPECT_THAT(received(), ElementsAre("ready 127.0.0.1", "round 1 after 0", "closed 0", "over 1"));
}

TEST_F(LocalMembershipTest, MayBeDestroyedWithUnsentStatements) {
  join();
  membership_.reset();
  loop_->defer([this] { loop_->stop(); });
  loop_->run();
  EXPECT_THAT(received_, IsEmpty());
}

}  // namespace
}  // namespace elastic::host
