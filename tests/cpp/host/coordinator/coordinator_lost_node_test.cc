// When a node whose session ends without a Leave is lost: at once if its process has provably
// ended, else after reconnect_grace. In virtual time.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <utility>

#include "host/coordinator/coordinator_fixture.h"
#include "os/net/listener.h"

namespace elastic::host {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using testing::HasSubstr;

class LostNodeTest : public TurnedCoordinatorTest {
 protected:
  // A round of a node that stays and one that is lost, with the liveness port of the listener.
  void run() {
    start();
    settings.reconnect_grace = minutes(1);
    for (std::uint64_t i = 1; i <= 2; ++i) {
      auto node = std::make_unique<SessionClient>(coordinator->port());
      node->be(i);
      greet(node.get());
      node->join(settings);
      (i == 1 ? stays : lost) = std::move(node);
    }
    stays->expect<rdzv::Round>();
    round = *lost->expect<rdzv::Round>().record;
    group.advance(seconds(1));
  }
  void greet(SessionClient* node) {
    session::ClientHello hello{
        .job_id = "job", .node = node->info.id, .secret = node->secret, .attempt = ++hellos};
    if (node->info.id.low == 2) hello.liveness_port = port;
    node->say_first(hello);
  }
  bool is_lost() { return stays->receives<rdzv::Restart>(); }

  JobSettings settings = nnodes(1, 2);
  Result<os::Listener> listener = os::Listener::open("127.0.0.1", 0);
  const std::uint16_t port = listener->address().port();
  std::unique_ptr<SessionClient> stays, lost;
  RoundRecord round;
  std::uint64_t hellos = 0;
};

TEST_F(LostNodeTest, IsLostWhenAgentAndGuardianHaveEnded) {
  run();
  lost.reset();  // the agent; the guardian still kills the workers
  group.advance(seconds(1));
  EXPECT_FALSE(is_lost());
  listener->close();
  EXPECT_THAT(stays->expect<rdzv::Restart>().reason, HasSubstr("its agent has ended"));
}

TEST_F(LostNodeTest, IsLostWhenItsPortWasRefusedTwice) {
  run();
  listener->close();
  lost.reset();
  EXPECT_FALSE(is_lost()) << "new connections to the node may be rejected, but not its own";
  group.advance(seconds(1));
  EXPECT_TRUE(is_lost());
}

TEST_F(LostNodeTest, HasTheGraceIfItsPortNeverAnswered) {
  listener->close();
  run();
  lost.reset();
  group.advance(seconds(59));
  EXPECT_FALSE(is_lost());
  group.advance(seconds(1));
  EXPECT_TRUE(is_lost());
}

// A broken connection: the agent accepts the next one.
TEST_F(LostNodeTest, HasTheGraceIfItsAgentLives) {
  run();
  os::UniqueFd test, dialed;
  ASSERT_EQ(listener->accept(&test), os::Listener::AcceptStatus::kAccepted);
  lost.reset();
  EXPECT_FALSE(is_lost());
  ASSERT_EQ(listener->accept(&dialed), os::Listener::AcceptStatus::kAccepted);
  dialed.reset();
  group.advance(seconds(1));
  EXPECT_FALSE(is_lost());

  lost = std::make_unique<SessionClient>(coordinator->port());
  lost->be(2);
  greet(lost.get());
  lost->resume(settings, rdzv::NodePhase::kWorking, core::HeldRound{round, 1});
  lost->expect<rdzv::Resumed>();
  group.advance(minutes(1));
  EXPECT_FALSE(is_lost());
  listener->close();
  lost.reset();
  group.advance(seconds(1));
  EXPECT_TRUE(is_lost());
}

TEST_F(LostNodeTest, IsNotDialedIfItLeft) {
  run();
  os::UniqueFd test, dialed;
  ASSERT_EQ(listener->accept(&test), os::Listener::AcceptStatus::kAccepted);
  lost->send_message(rdzv::Leave{{}, "SIGTERM"});
  EXPECT_THAT(stays->expect<rdzv::Restart>().reason, HasSubstr("SIGTERM"));
  lost.reset();
  group.advance(seconds(1));
  EXPECT_EQ(listener->accept(&dialed), os::Listener::AcceptStatus::kEmpty);
}

// It would wait for a next job of the id, which nobody starts.
TEST_F(LostNodeTest, ReceivesTheResultOfItsJobIfAllOthersHaveLeft) {
  run();
  listener->close();
  lost.reset();
  group.advance(seconds(1));
  EXPECT_EQ(stays->expect<rdzv::Restart>().round, 1U);
  stays->send_message(rdzv::Gone{{}, 1});
  stays->info.highest_round = 1;
  stays->join(settings);
  EXPECT_EQ(stays->expect<rdzv::Round>().record->round, 2U);
  stays->send_message(rdzv::Done{{}, 2});
  EXPECT_EQ(stays->expect<rdzv::Closed>().result->outcome, JobOutcome::kSucceeded);
  stays->send_message(rdzv::Leave{{}, "the job has ended"});
  stays.reset();
  group.advance(seconds(1));
  EXPECT_EQ(coordinator->stats().jobs, 0U);

  const auto comes_back = [this](bool has_round) {
    lost = std::make_unique<SessionClient>(coordinator->port());
    lost->be(2);
    lost->info.highest_round = 1;
    greet(lost.get());
    has_round ? lost->resume(settings, rdzv::NodePhase::kWorking, core::HeldRound{round, 1})
              : lost->join(settings);
    return lost->expect<rdzv::Closed>().result->outcome;
  };
  EXPECT_EQ(comes_back(false), JobOutcome::kSucceeded);
  EXPECT_EQ(comes_back(true), JobOutcome::kSucceeded);
  lost.reset();
}

}  // namespace
}  // namespace elastic::host
