// The check of the network between the nodes of a job: what its first round waits for, whom it
// names, and how it goes on when a node or the coordinator is lost.

#include "core/gate/network_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/job/job.h"
#include "support/node_info.h"

namespace elastic::core {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

// Nodes that carry out their orders at once, on a network with faults. Of each host there is one
// node, of the same number.
class NetworkCheckTest : public ::testing::Test {
 protected:
  std::set<int> absent;                   // answer nobody and carry out nothing
  std::set<int> refusing;                 // their port is closed
  std::set<int> slow;                     // a fifth of the bandwidth
  std::set<std::pair<int, int>> broken;   // links
  std::set<int> has_round;                // the nodes that have received it
  std::map<int, gate::Finding> findings;  // as the nodes have received them
  std::vector<std::string> log;
  std::vector<std::pair<int, int>> orders;  // that were sent

  static NodeId id(int number) { return {1, static_cast<std::uint64_t>(number)}; }
  static int number_of(const NodeId& id) { return static_cast<int>(id.low); }
  static JobSettings nnodes(int least, int most) {
    JobSettings settings;
    settings.min_nodes = least;
    settings.max_nodes = most;
    settings.last_call_timeout = 1s;
    return settings;
  }
  void make_job(int least, int most) {
    settings_ = nnodes(least, most);
    job_ = std::make_unique<Job>("job", settings_, now_, Duration::zero());
  }
  rdzv::Join join(int number) const {
    rdzv::Join join{support::node_info(static_cast<std::uint64_t>(number)), settings_};
    join.node.name = "node" + std::to_string(number) + "_7";
    join.node.host = "node" + std::to_string(number);
    join.node.probe_port = static_cast<std::uint16_t>(30'000 + number);
    return join;
  }
  void step(const JobEvent& event) {
    std::vector<JobAction> actions;
    job_->step(event, now_, &actions);
    for (const JobAction& action : actions) {
      if (const auto* one = std::get_if<RendezvousAction>(&action)) {
        const int to = number_of(addressee(*one));
        if (std::holds_alternative<rdzv::Round>(*one)) has_round.insert(to);
        if (std::holds_alternative<rdzv::Refused>(*one))
          log.push_back("refused " + std::to_string(to));
      } else if (const auto* network = std::get_if<gate::NetworkAction>(&action)) {
        follow(*network);
      } else if (const auto* host = std::get_if<gate::HostAction>(&action)) {
        log.push_back(gate::describe(*host));
      }
    }
  }
  void follow(const gate::NetworkAction& action) {
    if (const auto* order = std::get_if<gate::network_action::Order>(&action)) {
      const int from = number_of(order->to);
      const int to = std::stoi(order->order.node.substr(4));
      EXPECT_EQ(order->order.address,
                "10.0.0." + std::to_string(to) + ":" + std::to_string(30'000 + to));
      orders.emplace_back(from, to);
      if (absent.count(from) == 0) reports_.push_back({id(from), measure(from, to, order->order)});
    } else if (const auto* inform = std::get_if<gate::network_action::Inform>(&action)) {
      findings[number_of(inform->to)] = inform->finding;
    } else {
      log.push_back(std::get<gate::network_action::Log>(action).text);
    }
  }
  gate::ProbeReport measure(int from, int to, const gate::ProbeOrder& order) const {
    gate::ProbeReport report{.check = order.check, .round = order.round};
    if (absent.count(to) > 0 || broken.count(std::minmax(from, to)) > 0) {
      report.error = "no answer within 2.5 s";
    } else if (refusing.count(to) > 0) {
      report.error = "connection refused";
    } else {
      const bool is_slow = slow.count(from) + slow.count(to) > 0;
      report.has_answered = true;
      report.bytes_per_second = is_slow ? 2'000'000'000 : 10'000'000'000;
      report.latency = std::chrono::microseconds(25);
    }
    return report;
  }
  void join_all(int nodes) {
    for (int one = 1; one <= nodes; ++one) step(join(one));
  }
  // Until the round has begun. Returns how long that took.
  Duration run() {
    const Instant began = now_;
    for (int n = 0; has_round.empty() && now_ - began < 60s; ++n) {
      if (n == 1000) {
        ADD_FAILURE() << "no end: " << job_->rendezvous().describe(now_);
        break;
      }
      for (auto& [from, report] : std::exchange(reports_, {})) {
        step(job_event::Probed{from, std::move(report)});
      }
      if (!reports_.empty() || !has_round.empty()) continue;
      for (const NodeId& one : joined()) step(rdzv::Heartbeat{one});
      const auto deadline = job_->next_deadline();
      if (!deadline) break;
      now_ = std::max(now_, std::min(*deadline, now_ + 1s));
      step(rdzv::Tick{});
    }
    return now_ - began;
  }
  std::vector<NodeId> joined() const {
    std::vector<NodeId> found;
    for (const NodeStatus& node : job_->rendezvous().nodes(now_)) found.push_back(node.id);
    return found;
  }
  std::set<int> named(gate::Verdict verdict) const {
    std::set<int> found;
    for (const auto& [node, finding] : findings) {
      if (finding.verdict == verdict) found.insert(node);
    }
    return found;
  }
  std::set<int> excluded() const {
    std::set<int> found;
    for (const gate::Exclusion& one : job_->hosts().excluded(now_)) {
      found.insert(std::stoi(one.host.substr(4)));
    }
    return found;
  }

  Instant now_{1000s};
  JobSettings settings_;
  std::unique_ptr<Job> job_;
  std::vector<std::pair<NodeId, gate::ProbeReport>> reports_;
};

using Numbers = std::set<int>;

TEST_F(NetworkCheckTest, AGoodNetworkBeginsTheRoundWithoutAWait) {
  for (const int nodes : {2, 3, 15, 16}) {
    SCOPED_TRACE(nodes);
    has_round.clear();
    findings.clear();
    make_job(nodes, nodes);
    join_all(nodes);
    EXPECT_TRUE(has_round.empty());
    EXPECT_THAT(job_->rendezvous().describe(now_),
                HasSubstr("network between them is being checked"));
    EXPECT_EQ(run(), Duration::zero());
    EXPECT_EQ(has_round.size(), static_cast<std::size_t>(nodes));
    EXPECT_EQ(named(gate::Verdict::kGood).size(), static_cast<std::size_t>(nodes));
    EXPECT_TRUE(excluded().empty());
  }
  EXPECT_EQ(log.back(),
            "the network between 16 nodes was checked in 0 ms: good, median 10 GB/s and "
            "0.025 ms");
  EXPECT_EQ(findings[1].reason, "with node2: 10 GB/s and 0.025 ms");
}

TEST_F(NetworkCheckTest, WithoutTheOptionNothingWaits) {
  make_job(2, 2);
  for (const int one : {1, 2}) {
    rdzv::Join event = join(one);
    event.node.probe_port = 0;
    step(event);
  }
  EXPECT_EQ(has_round, (Numbers{1, 2}));
  EXPECT_TRUE(log.empty());
}

TEST_F(NetworkCheckTest, OneNodeHasNothingToCheck) {
  make_job(2, 2);
  rdzv::Join other = join(1);
  other.node.probe_port = 0;
  step(other);
  step(join(2));
  EXPECT_EQ(has_round, (Numbers{1, 2}));
  EXPECT_EQ(log, (std::vector<std::string>{"the network is not checked: 1 node of the round has "
                                           "--node-check=network, and it takes two"}));
}

TEST_F(NetworkCheckTest, EachSingleFaultIsNamedAndItsHostIsExcluded) {
  for (const int nodes : {3, 15, 16}) {
    for (int bad = 1; bad <= nodes; ++bad) {
      for (auto* fault : {&absent, &slow}) {
        SCOPED_TRACE(std::to_string(bad) + " of " + std::to_string(nodes));
        absent.clear();
        slow.clear();
        findings.clear();
        has_round.clear();
        log.clear();
        *fault = {bad};
        make_job(nodes - 1, nodes);
        join_all(nodes);
        EXPECT_LE(run(), 10s + settings_.last_call_timeout);
        EXPECT_EQ(named(gate::Verdict::kBad), (Numbers{bad}));
        EXPECT_TRUE(named(gate::Verdict::kUnknown).empty());
        EXPECT_EQ(excluded(), (Numbers{bad}));
        EXPECT_EQ(has_round.size(), static_cast<std::size_t>(nodes - 1));
        EXPECT_EQ(has_round.count(bad), 0U);
        EXPECT_THAT(log, ::testing::Contains("refused " + std::to_string(bad)));
      }
    }
  }
}

TEST_F(NetworkCheckTest, TwoBadHostsAreNamed) {
  for (int a = 1; a <= 16; ++a) {
    for (int b = a + 1; b <= 16; ++b) {
      SCOPED_TRACE(std::to_string(a) + " and " + std::to_string(b));
      absent = {a};
      slow = {b};
      findings.clear();
      has_round.clear();
      make_job(14, 16);
      join_all(16);
      EXPECT_LE(run(), 10s + settings_.last_call_timeout);
      EXPECT_EQ(named(gate::Verdict::kBad), (Numbers{a, b}));
    }
  }
}

TEST_F(NetworkCheckTest, ABadLinkBlamesNoHost) {
  broken = {{5, 6}};
  make_job(16, 16);
  join_all(16);
  EXPECT_LE(run(), 10s);
  EXPECT_TRUE(named(gate::Verdict::kBad).empty());
  EXPECT_EQ(named(gate::Verdict::kUnknown), (Numbers{5, 6}));
  EXPECT_EQ(has_round.size(), 16U);
  EXPECT_EQ(findings[5].reason,
            "the network between it and node6 is bad, and both are good with others: look at the "
            "link; with node6: no answer within 2.5 s, with node1: 10 GB/s and 0.025 ms");
}

TEST_F(NetworkCheckTest, TwoNodesCannotTellWhoseFaultItIs) {
  refusing = {2};
  make_job(2, 2);
  join_all(2);
  EXPECT_LE(run(), 10s);
  EXPECT_EQ(named(gate::Verdict::kUnknown), (Numbers{1, 2}));
  EXPECT_EQ(has_round, (Numbers{1, 2}));
  EXPECT_EQ(findings[1].reason,
            "the network between it and node2 is bad, and too few nodes are here to know whose "
            "fault it is; with node2: connection refused");
}

TEST_F(NetworkCheckTest, ABadNodeTakesPartWhereTheJobHasTooFewOthers) {
  slow = {2};
  make_job(4, 4);
  join_all(4);
  run();
  EXPECT_EQ(excluded(), (Numbers{2}));
  EXPECT_EQ(has_round.size(), 4U);
  EXPECT_THAT(findings[2].reason,
              HasSubstr("its network is slow: with node1: 2 GB/s and 0.025 ms, with node"));
}

TEST_F(NetworkCheckTest, ANodeThatIsLostMeanwhileIsNotBlamed) {
  make_job(3, 4);
  join_all(4);
  ASSERT_EQ(orders, (std::vector<std::pair<int, int>>{{1, 2}, {3, 4}}));
  reports_.erase(reports_.begin() + 1);
  step(rdzv::Leave{id(3), "preempted"});
  EXPECT_LE(run(), 10s);
  EXPECT_EQ(has_round, (Numbers{1, 2, 4}));
  EXPECT_EQ(named(gate::Verdict::kGood), (Numbers{1, 2, 4}));
  EXPECT_TRUE(excluded().empty());
}

TEST_F(NetworkCheckTest, ReportsThatWereNotAskedForAreIgnored) {
  make_job(4, 4);
  join_all(4);
  ASSERT_EQ(reports_.size(), 2U);
  const gate::ProbeReport good = reports_[0].second;
  for (const auto change : {0, 1, 2}) {
    gate::ProbeReport other = good;
    other.has_answered = false;
    if (change == 0) other.check += 1;
    if (change == 1) other.round += 1;
    step(job_event::Probed{change == 2 ? id(2) : id(1), other});
  }
  step(job_event::Probed{id(9), good});
  run();
  EXPECT_EQ(named(gate::Verdict::kGood), (Numbers{1, 2, 3, 4}));
  step(job_event::Probed{id(1), good});
  EXPECT_EQ(log.size(), 2U);
}

TEST_F(NetworkCheckTest, ANodeThatJoinsMeanwhileOrLaterIsNotChecked) {
  make_job(2, 4);
  join_all(2);
  for (; orders.empty(); now_ += 100ms) step(rdzv::Tick{});
  step(join(3));
  run();
  EXPECT_EQ(has_round, (Numbers{1, 2, 3}));
  EXPECT_EQ(findings.count(3), 0U);
  orders.clear();
  step(join(4));
  EXPECT_TRUE(orders.empty());
}

// The nodes resume with the port at which they answer.
TEST_F(NetworkCheckTest, ANewCoordinatorBeginsAgain) {
  make_job(4, 4);
  join_all(4);
  ASSERT_EQ(orders.size(), 2U);
  const std::string state = job_->rendezvous().encode();
  const auto late = std::exchange(reports_, {});
  now_ += 2s;
  job_ = std::make_unique<Job>("job", settings_, now_, Duration::zero());
  ASSERT_TRUE(job_->succeed(state, {.term = 2, .successor = {}, .lost_incumbent = {}}, now_).ok());
  for (int one = 1; one <= 4; ++one) {
    const rdzv::Join again = join(one);
    step(rdzv::Resume{again.node, again.settings, rdzv::NodePhase::kJoined, {}, {}});
  }
  EXPECT_EQ(orders.size(), 4U);
  for (const auto& [from, report] : late) step(job_event::Probed{from, report});
  EXPECT_TRUE(has_round.empty()) << "reports to the former one";
  run();
  EXPECT_EQ(has_round, (Numbers{1, 2, 3, 4}));
}

TEST_F(NetworkCheckTest, RatesHaveThreeDigits) {
  EXPECT_EQ(gate::rate_text(0), "0 B/s");
  EXPECT_EQ(gate::rate_text(999.4), "999 B/s");
  EXPECT_EQ(gate::rate_text(999.6), "1 kB/s");
  EXPECT_EQ(gate::rate_text(123'456'789), "123 MB/s");
  EXPECT_EQ(gate::rate_text(9.87e12), "9.87e+03 GB/s");
}

}  // namespace
}  // namespace elastic::core
