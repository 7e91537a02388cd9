// What a job remembers of hosts.

#include "core/gate/host_memory.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "support/instant.h"

namespace elastic::gate {
namespace {

using namespace std::chrono_literals;
using support::at;

class HostMemoryTest : public ::testing::Test {
 protected:
  // One line for each action.
  std::string step(const HostEvent& event) {
    std::vector<HostAction> actions;
    hosts_.step(event, now_, &actions);
    std::string lines;
    for (const HostAction& action : actions) lines += describe(action) + "\n";
    return lines;
  }
  Duration left(const std::string& host) const {
    for (const Exclusion& one : hosts_.excluded(now_)) {
      if (one.host == host) return one.left;
    }
    return {};
  }
  HostMemory continued(Duration later, std::int64_t epoch = 0) const {
    HostMemory next;
    next.set_epoch(epoch);
    EXPECT_TRUE(next.decode(hosts_.encode(now_), now_ + later));
    return next;
  }

  HostMemory hosts_;
  Instant now_ = at(1000);
};

TEST_F(HostMemoryTest, AnExclusionLastsAnHourTwiceAsLongEachTimeAndAtMostADay) {
  EXPECT_EQ(step(Exclude{"a", "an operator: fan"}),
            "host a is excluded for 1 h: an operator: fan\n");
  for (const Duration expected : {2h, 4h, 8h, 16h, 24h, 24h}) {
    now_ += left("a");
    EXPECT_EQ(step(Expire{}), "host a is no longer excluded: its time is over\n");
    EXPECT_FALSE(hosts_.is_excluded("a"));
    (void)step(Exclude{"a", "again"});
    EXPECT_EQ(left("a"), expected);
  }
}

TEST_F(HostMemoryTest, SeveralWitnessesOfOneFaultExcludeOnce) {
  (void)step(Exclude{"a", "rule 1"});
  now_ += 59s;
  EXPECT_EQ(step(Exclude{"a", "a check"}), "");
  EXPECT_EQ(hosts_.why_excluded("a"), "rule 1");
  EXPECT_EQ(hosts_.evidence("a"), "a check\nrule 1\n");
  now_ += 1s;
  EXPECT_EQ(step(Exclude{"a", "rule 2"}), "host a is excluded for 2 h: rule 2\n");
}

TEST_F(HostMemoryTest, AReadmittedHostIsNewAgain) {
  EXPECT_EQ(step(Readmit{"a", "an operator"}), "");
  (void)step(Exclude{"a", "x"});
  EXPECT_EQ(step(Readmit{"a", "an operator"}), "host a is no longer excluded: an operator\n");
  (void)step(Exclude{"a", "x"});
  EXPECT_EQ(left("a"), 1h);
}

TEST_F(HostMemoryTest, OnlyABadFindingExcludes) {
  EXPECT_EQ(step(Finding{"a", "gpu", Verdict::kGood, ""}), "");
  EXPECT_EQ(step(Finding{"a", "gpu", Verdict::kUnknown, "no nvidia-smi"}), "");
  EXPECT_EQ(step(Finding{"a", "gpu", Verdict::kBad, "GPU 3: ECC"}),
            "host a is excluded for 1 h: check gpu: bad: GPU 3: ECC\n");
  EXPECT_EQ(hosts_.evidence("a"),
            "check gpu: bad: GPU 3: ECC\ncheck gpu: unknown: no nvidia-smi\n");
}

TEST_F(HostMemoryTest, AHostOfWhichNothingWasHeardIsForgotten) {
  (void)step(Exclude{"a", "x"});
  now_ += 1h;
  (void)step(Expire{});
  now_ += kForgottenAfter - 1ns;
  (void)step(Expire{});
  EXPECT_NE(hosts_.evidence("a"), "");
  now_ += 1ns;
  (void)step(Expire{});
  EXPECT_EQ(hosts_.evidence("a"), "");
  (void)step(Exclude{"a", "x"});
  EXPECT_EQ(left("a"), 1h);
}

TEST_F(HostMemoryTest, WhatWasFoundIsListedByHostNewestFirst) {
  (void)step(Finding{"b", "gpu", Verdict::kUnknown, "no driver"});
  (void)step(Exclude{"a", "x"});
  now_ += 1s;
  (void)step(Finding{"a", "ib", Verdict::kGood, ""});
  const Found good{"a", "check ib: good", 0s};
  const Found rule{"a", "x", 1s};
  const Found unknown{"b", "check gpu: unknown: no driver", 1s};
  EXPECT_EQ(hosts_.found(now_, 9), (std::vector<Found>{good, rule, unknown}));
  EXPECT_EQ(hosts_.found(now_, 1), (std::vector<Found>{good}));
}

TEST_F(HostMemoryTest, AboveTheLimitThoseThatMatterLeastMakeRoom) {
  const auto name = [](int number) { return "h" + std::to_string(number); };
  (void)step(Finding{"seen", "gpu", Verdict::kUnknown, ""});
  for (std::size_t i = 0; i < kHostsMax; ++i) {
    now_ += 1s;
    (void)step(Exclude{name(static_cast<int>(i)), "x"});
  }
  EXPECT_EQ(hosts_.evidence("seen"), "");
  EXPECT_TRUE(hosts_.is_excluded(name(0)));
  now_ += 1s;
  (void)step(Exclude{"one more", "x"});
  EXPECT_FALSE(hosts_.is_excluded(name(0)));
  EXPECT_TRUE(hosts_.is_excluded(name(1)));
  EXPECT_TRUE(hosts_.is_excluded("one more"));
  EXPECT_EQ(hosts_.excluded(now_).size(), kHostsMax);
  EXPECT_LT(hosts_.encode(now_).size(), core::kHostGateBytesMax);
}

TEST_F(HostMemoryTest, TextsOfPeersAreBoundedAndPrintable) {
  (void)step(Exclude{"a\nb", std::string(5000, 'x') + "\x1b[31m"});
  const auto all = hosts_.excluded(now_);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].host.find('\n'), std::string::npos);
  EXPECT_EQ(all[0].why.size(), kNoteBytesMax);
  EXPECT_EQ(step(Exclude{"", "no host"}), "");
}

TEST_F(HostMemoryTest, ASuccessorContinuesWithTheTimeThatIsLeft) {
  (void)step(Exclude{"a", "x"});
  now_ += 10min;
  const HostMemory next = continued(1000h);  // another clock
  const auto all = next.excluded(now_ + 1000h);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0], (Exclusion{"a", 50min, "x", 1}));
  EXPECT_EQ(next.evidence("a"), "x\n");
  EXPECT_EQ(next.encode(now_ + 1000h), hosts_.encode(now_));
}

TEST_F(HostMemoryTest, TheTimeWithoutACoordinatorCountsIfTheTimeOfDayIsKnown) {
  constexpr std::int64_t kEpoch = 1'700'000'000'000'000'000;
  hosts_.set_epoch(kEpoch);
  (void)step(Exclude{"a", "x"});
  now_ += 10min;
  EXPECT_EQ(continued(20min, kEpoch).excluded(now_ + 20min)[0].left, 30min);
  EXPECT_EQ(continued(2h, kEpoch).excluded(now_ + 2h)[0].left, 0s);
  // A clock that was set back does not make it longer, and one that is not known changes nothing.
  EXPECT_EQ(continued(0s, kEpoch - 999'999'999'999'999).excluded(now_)[0].left, 50min);
  EXPECT_EQ(continued(2h, 0).excluded(now_ + 2h)[0].left, 50min);
}

TEST_F(HostMemoryTest, WhatIsNoMemoryIsRefusedAndChangesNothing) {
  (void)step(Exclude{"a", "x"});
  const std::string bytes = hosts_.encode(now_);
  for (std::size_t size = 1; size < bytes.size(); ++size) {
    EXPECT_FALSE(hosts_.decode(std::string_view(bytes).substr(0, size), now_)) << size;
  }
  EXPECT_TRUE(hosts_.is_excluded("a"));
  EXPECT_TRUE(hosts_.decode("", now_));
  EXPECT_FALSE(hosts_.is_excluded("a"));
}

TEST_F(HostMemoryTest, TheRendezvousAsksThroughItsInterface) {
  core::HostGate& gate = hosts_;
  EXPECT_EQ(gate.next_expiry(), Instant::max());
  gate.exclude("a", "rule 1", now_);
  EXPECT_EQ(gate.why_excluded("a"), "rule 1");
  EXPECT_EQ(gate.next_expiry(), now_ + 1h);
  EXPECT_FALSE(gate.expire(now_ + 1h - 1ns));
  EXPECT_TRUE(gate.expire(now_ + 1h));
  EXPECT_EQ(gate.why_excluded("a"), "");
  EXPECT_EQ(hosts_.take_actions().size(), 2u);
}

}  // namespace
}  // namespace elastic::gate
