#include "core/gate/node_checks.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "core/workers/worker_exits.h"
#include "support/instant.h"

namespace elastic::gate {
namespace {

using std::chrono::seconds;
using support::at;

class NodeChecksTest : public ::testing::Test {
 protected:
  // What was done, as words.
  std::vector<std::string> take() {
    std::vector<std::string> words;
    for (const CheckAction& action : out_) {
      if (const auto* run = std::get_if<check_action::Run>(&action)) {
        words.push_back("run " + std::to_string(run->run) + " " + to_string(run->occasion));
      } else if (const auto* kill = std::get_if<check_action::Kill>(&action)) {
        words.push_back("kill " + std::to_string(kill->run));
      } else if (const auto* report = std::get_if<check_action::Report>(&action)) {
        words.push_back(report->finding.check + " " + to_string(report->finding.verdict));
      } else if (std::holds_alternative<check_action::Admit>(action)) {
        words.push_back("admit");
      } else {
        words.push_back("reject: " + describe(std::get<check_action::Reject>(action).finding));
      }
    }
    out_.clear();
    return words;
  }
  std::vector<std::string> end(std::uint32_t run, int code, const std::string& output = "") {
    const CheckEnded ended{run, {.exit = core::exited(code), .output = output}};
    checks_.step(ended, at(2), &out_);
    return take();
  }
  std::vector<std::string> start() {
    checks_.step(core::node_event::Started{}, at(1), &out_);
    return take();
  }
  std::vector<std::string> fail() {
    checks_.step(core::node_event::WorkerFailed{}, at(1), &out_);
    return take();
  }

  using Words = std::vector<std::string>;
  NodeChecks checks_{{.host = "n7", .checks = {"gpu", "disk"}, .limit = seconds(60)}};
  NodeChecks::Out out_;
};

TEST_F(NodeChecksTest, TheNodeJoinsWhenTheLastCheckHasEnded) {
  EXPECT_FALSE(checks_.holds_join());
  EXPECT_EQ(start(), (Words{"run 1 join", "run 2 join"}));
  EXPECT_TRUE(checks_.holds_join());
  EXPECT_EQ(checks_.next_deadline(), at(61));
  EXPECT_EQ(end(2, 0), Words{"disk good"});
  EXPECT_TRUE(checks_.holds_join());
  EXPECT_EQ(end(1, 3), (Words{"gpu unknown", "admit"})) << "unknown joins";
  EXPECT_FALSE(checks_.holds_join());
  EXPECT_EQ(checks_.next_deadline(), std::nullopt);
}

TEST_F(NodeChecksTest, TheFirstBadCheckDecides) {
  start();
  EXPECT_EQ(end(1, 1, "GPU 3 is lost\n"),
            (Words{"gpu bad", "kill 2", "reject: check gpu of host n7: GPU 3 is lost"}));
  EXPECT_FALSE(checks_.holds_join());
  EXPECT_EQ(checks_.next_deadline(), std::nullopt);
  EXPECT_TRUE(end(2, 1).empty()) << "it was killed";
  EXPECT_TRUE(fail().empty()) << "it is over";
}

TEST_F(NodeChecksTest, AHungCheckIsKilledAndUnknown) {
  start();
  end(1, 0);
  checks_.step(core::PartTick{}, at(60), &out_);
  EXPECT_TRUE(take().empty());
  checks_.step(core::PartTick{}, at(61), &out_);
  EXPECT_EQ(take(), (Words{"kill 2", "disk unknown", "admit"}));
  EXPECT_TRUE(end(2, 1).empty()) << "its late end changes nothing";
}

TEST_F(NodeChecksTest, AllHungChecksAreOneWait) {
  start();
  checks_.step(core::PartTick{}, at(61), &out_);
  EXPECT_EQ(take(), (Words{"kill 1", "gpu unknown", "kill 2", "disk unknown", "admit"}));
}

TEST_F(NodeChecksTest, AfterAFailureNothingWaits) {
  start();
  end(1, 0);
  end(2, 0);
  EXPECT_EQ(fail(), (Words{"run 3 failure", "run 4 failure"}));
  EXPECT_FALSE(checks_.holds_join());
  EXPECT_TRUE(fail().empty()) << "they run already";
  EXPECT_EQ(end(3, 0), Words{"gpu good"});
  EXPECT_EQ(end(4, 2, "no disk"), (Words{"disk bad", "reject: check disk of host n7: no disk"}));
}

TEST_F(NodeChecksTest, TheNextFailureIsCheckedAgain) {
  fail();
  end(1, 0);
  end(2, 0);
  EXPECT_EQ(fail(), (Words{"run 3 failure", "run 4 failure"}));
}

TEST_F(NodeChecksTest, TheEndOfTheNodeKillsThem) {
  start();
  checks_.step(core::node_event::Ended{}, at(2), &out_);
  EXPECT_EQ(take(), (Words{"kill 1", "kill 2"}));
  EXPECT_FALSE(checks_.holds_join());
  EXPECT_EQ(checks_.next_deadline(), std::nullopt);
}

TEST(NodeChecks, WithoutChecksNothingHappens) {
  NodeChecks none({.host = "n7", .checks = {}});
  NodeChecks::Out out;
  none.step(core::node_event::Started{}, at(1), &out);
  none.step(core::node_event::WorkerFailed{}, at(1), &out);
  none.step(core::node_event::Ended{}, at(1), &out);
  EXPECT_TRUE(out.empty());
  EXPECT_FALSE(none.holds_join());
}

// The pairs that do something, and their next states; all others keep the state.
TEST(NodeChecks, HasThisTable) {
  using enum CheckState;
  using enum CheckInput;
  const std::map<std::pair<CheckState, CheckInput>, CheckState> edges = {
      {{kIdle, kStart}, kJoining}, {{kIdle, kFailed}, kBeside}, {{kIdle, kEnd}, kOver},
      {{kJoining, kClear}, kIdle}, {{kJoining, kBad}, kOver},   {{kJoining, kEnd}, kOver},
      {{kBeside, kClear}, kIdle},  {{kBeside, kBad}, kOver},    {{kBeside, kEnd}, kOver},
  };
  for (std::size_t s = 0; s < kCheckStates; ++s) {
    for (std::size_t i = 0; i < kCheckInputs; ++i) {
      const auto state = static_cast<CheckState>(s);
      const auto input = static_cast<CheckInput>(i);
      const auto known = edges.find({state, input});
      const NodeChecks::Edge& edge = NodeChecks::edge_of(state, input);
      EXPECT_EQ(edge.run != nullptr, known != edges.end()) << s << ' ' << i;
      EXPECT_EQ(edge.next, known == edges.end() ? state : known->second) << s << ' ' << i;
    }
  }
}

}  // namespace
}  // namespace elastic::gate
