// A job that does without hosts: which nodes it refuses, and when it takes them all the same.

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "core/job/job.h"
#include "core/succession/job_record.h"
#include "support/node_info.h"

namespace elastic::core {
namespace {

using namespace std::chrono_literals;

// Of each host there is one node, of the same number.
class ExclusionTest : public ::testing::Test {
 protected:
  static NodeId id(int number) { return {1, static_cast<std::uint64_t>(number)}; }
  static std::string host(int number) { return "node" + std::to_string(number); }
  static JobSettings nnodes(int least, int most) {
    JobSettings settings;
    settings.min_nodes = least;
    settings.max_nodes = most;
    settings.max_restarts = 10;
    settings.last_call_timeout = 1s;
    settings.settle = 0s;
    settings.restart_backoff = 0s;
    settings.extra = {{std::string(kPolicySetting) + "01", "line=3 on=exit:42 do=exclude"}};
    return settings;
  }
  static JobSettings two_without_replacements() {
    JobSettings settings = nnodes(2, 2);
    settings.on_loss = LossPolicy::kFail;
    settings.last_call_timeout = 30s;
    return settings;
  }
  Job make_job(const JobSettings& settings) {
    settings_ = settings;
    return {"job", settings, now_, Duration::zero()};
  }

  // One line for each action that matters here.
  std::string step(Job* job, const JobEvent& event) {
    std::vector<JobAction> actions;
    job->step(event, now_ += 1ms, &actions);
    return text_of(actions);
  }
  static std::string text_of(const std::vector<JobAction>& actions) {
    std::string lines;
    for (const JobAction& action : actions) {
      if (const auto* one = std::get_if<RendezvousAction>(&action)) {
        const std::string to = std::to_string(addressee(*one).low);
        if (std::holds_alternative<rdzv::Round>(*one)) lines += "round to " + to + "\n";
        if (std::holds_alternative<rdzv::Restart>(*one)) lines += "restart to " + to + "\n";
        if (const auto* timed_out = std::get_if<rdzv::TimedOut>(one)) {
          lines += "timed out " + to + ": " + timed_out->message + "\n";
        }
        if (const auto* refused = std::get_if<rdzv::Refused>(one)) {
          EXPECT_TRUE(refused->is_excluded);
          lines += "refused " + to + "\n";
        }
      } else if (const auto* news = std::get_if<gate::HostAction>(&action)) {
        lines += gate::describe(*news) + "\n";
      } else if (const auto* inform = std::get_if<gate_action::Inform>(&action)) {
        lines += std::string(inform->is_done ? "done: " : "refused: ") + inform->text + "\n";
      }
    }
    return lines;
  }
  rdzv::Join join(int number, std::uint64_t highest_round = 0) {
    rdzv::Join join{support::node_info(static_cast<std::uint64_t>(number)), settings_};
    join.node.name = host(number) + "_7";
    join.node.host = host(number);
    join.node.highest_round = highest_round;
    return join;
  }
  rdzv::Failed failed(int number, int code) {
    return {id(number), 1, {0, 0, code, "exited with code " + std::to_string(code), now_}};
  }
  JobEvent request(const std::string& host, bool is_readmission = false) {
    return job_event::HostRequested{1, host, "ann: fan", is_readmission};
  }
  // The nodes stop their workers and join again, the last of them last.
  std::string join_again(Job* job, const std::vector<int>& numbers, std::uint64_t round = 1) {
    for (const int number : numbers) (void)step(job, rdzv::Gone{id(number), round});
    std::string lines;
    for (const int number : numbers) lines += step(job, join(number, round));
    return lines;
  }

  Instant now_{1000s};
  JobSettings settings_;
};

gate::Finding bad(const std::string& host) {
  return {host, "gpu", gate::Verdict::kBad, "row remap failure"};
}

TEST_F(ExclusionTest, WithoutReplacementsTheOthersWaitOnlyTheLastCallForABadHost) {
  Job job = make_job(two_without_replacements());
  (void)step(&job, join(1));
  now_ += 5s;
  (void)step(&job, job_event::Found{id(2), bad(host(2))});
  now_ += 29s;
  EXPECT_EQ(step(&job, rdzv::Heartbeat{id(1)}), "");
  now_ += 1s;
  EXPECT_EQ(step(&job, rdzv::Tick{}),
            "timed out 1: 1 of 2 nodes joined (node1_7), and host node2 is bad; lost nodes are not "
            "replaced\n");
  // Whoever is late has the same time.
  (void)step(&job, join(3));
  now_ += 29s;
  EXPECT_EQ(step(&job, rdzv::Heartbeat{id(3)}), "");
  now_ += 1s;
  EXPECT_NE(step(&job, rdzv::Tick{}).find("timed out 3"), std::string::npos);
}

TEST(BadHost, IsKnownBeforeTheFirstNodeJoins) {
  RendezvousMachine machine(JobSettings(), Instant(1000s));
  std::vector<RendezvousAction> actions;
  machine.step(rdzv::HostBad{"node2"}, Instant(1001s), &actions);
  JobSettings settings;
  settings.min_nodes = settings.max_nodes = 2;
  settings.on_loss = LossPolicy::kFail;
  machine.begin_anew(settings, Instant(1002s));
  machine.step(rdzv::Join{support::node_info(1), settings}, Instant(1003s), &actions);
  EXPECT_NE(machine.describe(Instant(1003s)).find("host node2 is bad"), std::string::npos);
}

TEST_F(ExclusionTest, ASpareTakesThePlaceOfABadHostBeforeTheFirstRound) {
  Job job = make_job(two_without_replacements());
  (void)step(&job, join(1));
  (void)step(&job, job_event::Found{id(2), bad(host(2))});
  now_ += 20s;
  (void)step(&job, rdzv::Heartbeat{id(1)});
  EXPECT_EQ(step(&job, join(3)), "round to 1\nround to 3\n");
}

TEST_F(ExclusionTest, AReplacementOfABadHostHasTheTimeOfAJoin) {
  JobSettings settings = nnodes(2, 2);
  settings.join_timeout = 60s;
  settings.last_call_timeout = 30s;
  Job job = make_job(settings);
  (void)step(&job, join(1));
  (void)step(&job, job_event::Found{id(2), bad(host(2))});
  std::string lines;
  int seconds = 0;
  for (; seconds < 100 && lines.empty(); ++seconds) {
    now_ += 1s;
    lines = step(&job, rdzv::Heartbeat{id(1)}) + step(&job, rdzv::Tick{});
  }
  EXPECT_EQ(seconds, 60);
  EXPECT_TRUE(lines.starts_with("timed out 1: 1 of 2 nodes joined (node1_7); gave up after 1 min"))
      << lines;
}

TEST_F(ExclusionTest, ARuleExcludesTheHostOfAFailure) {
  Job job = make_job(nnodes(2, 3));
  for (const int one : {1, 2}) (void)step(&job, join(one));
  EXPECT_EQ(step(&job, join(3)), "round to 1\nround to 2\nround to 3\n");
  EXPECT_EQ(step(&job, failed(2, 42)), "restart to 1\nrestart to 2\nrestart to 3\n");
  EXPECT_EQ(join_again(&job, {1, 2, 3}), "refused 2\nround to 1\nround to 3\n");
  EXPECT_TRUE(job.hosts().is_excluded("node2"));
  EXPECT_EQ(job.hosts().why_excluded("node2"),
            "rule 1 (line 3) of the failure policy excludes host node2");
  // Another agent of the host is refused at once, and one of another host is not.
  rdzv::Join again = join(2);
  again.node.id = id(22);
  EXPECT_EQ(step(&job, again), "refused 22\n");
  (void)step(&job, join(4));
  EXPECT_TRUE(job.rendezvous().has_node(id(4)));
}

TEST_F(ExclusionTest, AnExcludedNodeIsTheLastSpareOfAJobThatHasTooFew) {
  Job job = make_job(nnodes(2, 2));
  (void)step(&job, join(1));
  (void)step(&job, join(2));
  (void)step(&job, failed(2, 42));
  EXPECT_EQ(join_again(&job, {1, 2}), "round to 1\nround to 2\n");
  // Another node takes its place as soon as it is there.
  EXPECT_EQ(step(&job, join(3)), "restart to 1\nrestart to 2\n");
  EXPECT_EQ(join_again(&job, {1, 2}, 2), "refused 2\nround to 1\nround to 3\n");
}

TEST_F(ExclusionTest, AnExcludedNodeThatWaitsIsRefusedWhenItIsNotNeeded) {
  Job job = make_job(nnodes(2, 4));
  EXPECT_EQ(step(&job, request("node1")),
            "host node1 is excluded for 1 h: ann: fan\n"
            "done: host node1 is excluded for 1 h; no node of it is here now\n");
  EXPECT_EQ(step(&job, join(1)), "");
  (void)step(&job, join(2));
  EXPECT_TRUE(job.rendezvous().has_node(id(1)));
  EXPECT_EQ(step(&job, join(3)), "refused 1\n");
}

TEST_F(ExclusionTest, AnOperatorExcludesANodeOfTheRound) {
  Job job = make_job(nnodes(2, 3));
  for (const int one : {1, 2, 3}) (void)step(&job, join(one));
  EXPECT_EQ(step(&job, request("10.0.0.2")),
            "host node2 is excluded for 1 h: ann: fan\n"
            "done: host node2 is excluded for 1 h; the round ends for that\n"
            "restart to 1\nrestart to 2\nrestart to 3\n");
  EXPECT_EQ(join_again(&job, {1, 2, 3}), "refused 2\nround to 1\nround to 3\n");
  EXPECT_EQ(step(&job, request("node3")),
            "host node3 is excluded for 1 h: ann: fan\n"
            "done: host node3 is excluded for 1 h; its node stays until the job has 2 nodes "
            "without it, or until the next round\n");
  EXPECT_EQ(step(&job, request("node9", true)), "refused: host node9 is not excluded\n");
  EXPECT_EQ(step(&job, request("node3", true)),
            "host node3 is no longer excluded: ann: fan\n"
            "done: host node3 is no longer excluded\n");
  EXPECT_EQ(step(&job, join(5)), "restart to 1\nrestart to 3\n");
}

TEST_F(ExclusionTest, ABadFindingExcludesAndItsTimeEnds) {
  Job job = make_job(nnodes(1, 2));
  (void)step(&job, join(1));
  EXPECT_EQ(step(&job, job_event::Found{id(2), {"node2", "gpu", gate::Verdict::kBad, "ECC"}}),
            "host node2 is excluded for 1 h: check gpu: bad: ECC\n");
  EXPECT_EQ(step(&job, join(2)), "refused 2\n");
  now_ = job.hosts().next_expiry();
  EXPECT_EQ(job.next_deadline() <= now_, true);
  (void)step(&job, rdzv::Heartbeat{id(1)});
  EXPECT_EQ(step(&job, rdzv::Tick{}).substr(0, 38), "host node2 is no longer excluded: its ");
}

TEST_F(ExclusionTest, ItIsInTheRecordBeforeAnythingFollows) {
  Job job = make_job(nnodes(1, 3));
  for (const int one : {1, 2, 3}) (void)step(&job, join(one));
  job.gate().keep_at(RecordKeeper::kSuccession);
  std::vector<JobAction> actions;
  const auto begun = job.take_proposal();
  ASSERT_TRUE(begun.has_value());
  job.in_force(begun->number, now_, &actions);
  EXPECT_EQ(step(&job, request("node2")), "");
  const auto proposal = job.take_proposal();
  ASSERT_TRUE(proposal.has_value());
  actions.clear();
  job.in_force(proposal->number, now_, &actions);
  EXPECT_NE(text_of(actions).find("restart to 2"), std::string::npos);
  EXPECT_NE(text_of(actions).find("done: host node2 is excluded"), std::string::npos);

  const auto record = succession::decode_record(proposal->content.bytes);
  ASSERT_TRUE(record.ok());
  Job next = make_job(settings_);
  ASSERT_TRUE(
      next.succeed(record->state, {.term = 2, .successor = {}, .lost_incumbent = {}}, now_).ok());
  EXPECT_TRUE(next.hosts().is_excluded("node2"));
  // The next job of the id too.
  next.begin_anew(settings_, now_);
  (void)step(&next, join(1));
  EXPECT_EQ(step(&next, join(2)), "refused 2\n");
}

TEST_F(ExclusionTest, AJobOfOneNodeHasNoOther) {
  Job job = make_job(nnodes(1, 1));
  EXPECT_EQ(step(&job, request("node1")),
            "refused: the job has one node, whose host cannot be excluded\n");
}

TEST_F(ExclusionTest, RoundsWithoutProgressStopTheJob) {
  JobSettings settings = nnodes(2, 2);
  settings.extra = {{std::string(kProgressSetting), "2"}};
  Job job = make_job(settings);
  (void)step(&job, join(1));
  (void)step(&job, join(2));
  std::uint64_t round = 1;
  const auto reach = [&](std::int64_t at) {
    hang::NodeProgress progress;
    progress.round = round;
    progress.reporting = 1;
    progress.newest = progress.oldest = at;
    (void)step(&job, job_event::Progressed{id(1), progress});
  };
  const auto fail = [&] {
    rdzv::Failed event = failed(2, 1);
    event.round = round;
    (void)step(&job, event);
    if (job.is_over()) return;
    (void)join_again(&job, {1, 2}, round);
    round = job.rendezvous().record().round;
  };
  reach(10);
  fail();  // the first to get so far
  reach(10);
  fail();  // not further
  ASSERT_FALSE(job.is_over());
  reach(11);
  fail();  // further
  fail();
  reach(11);
  ASSERT_FALSE(job.is_over());
  (void)step(&job, rdzv::Failed{id(2), round, failed(2, 1).failure});
  for (const int one : {1, 2}) (void)step(&job, rdzv::Gone{id(one), round});
  ASSERT_TRUE(job.is_over());
  EXPECT_NE(job.rendezvous().result()->message.find(
                "; 2 rounds ended without a step after 11 (stop_without_progress)"),
            std::string::npos)
      << job.rendezvous().result()->message;
  EXPECT_EQ(job.rendezvous().result()->exit_code, 1);
}

TEST_F(ExclusionTest, TheHostOfAStragglerIsExcluded) {
  JobSettings settings = nnodes(1, 2);
  settings.extra = {{std::string(kPolicySetting) + "01", "line=1 on=straggler for=60 do=exclude"}};
  Job job = make_job(settings);
  (void)step(&job, join(1));
  (void)step(&job, join(2));
  std::string lines;
  for (int second = 1; second <= 90 && lines.empty(); ++second) {
    now_ += 1s;
    for (const int one : {1, 2}) {
      hang::NodeProgress progress;
      progress.round = 1;
      progress.reporting = 1;
      progress.slowest_rank = one - 1;
      progress.newest = progress.oldest = one == 1 ? second : 1;
      progress.idle = progress.slowest_idle = one == 1 ? 0s : 1s * (second - 1);
      progress.limit = 10s;
      (void)step(&job, job_event::Progressed{id(one), progress});
      (void)step(&job, rdzv::Heartbeat{id(one)});
    }
    if (job.next_deadline() <= now_) lines = step(&job, rdzv::Tick{});
  }
  EXPECT_NE(lines.find("host node2 is excluded for 1 h: rule 1 (line 1) of the failure policy "
                       "excludes host node2: rank 1 has made no progress for 1 min"),
            std::string::npos)
      << lines;
  EXPECT_TRUE(job.rendezvous().is_growth_due());  // at the next agreed step
}

TEST(NodeHost, IsItsOwnWordOrTheNameWithoutTheProcess) {
  NodeInfo info;
  info.name = "gpu_1_4711";
  EXPECT_EQ(host_of(info), "gpu_1");
  info.host = "gpu-1";
  EXPECT_EQ(host_of(info), "gpu-1");
  EXPECT_EQ(host_of("n1"), "n1");
  EXPECT_EQ(host_of("the node of rank 3"), "");
}

}  // namespace
}  // namespace elastic::core
