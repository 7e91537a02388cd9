// A coordinator rebuilds a round of an earlier job of its id, and nodes of the next one come.

#include <gmock/gmock.h>

#include "core/rendezvous/rendezvous_harness.h"

namespace elastic::test {
namespace {

using rdzv::NodePhase;
using testing::HasSubstr;

JobSettings elastic_job() {
  return with(nnodes(1, 8), [](JobSettings& s) { s.max_restarts = 1; });
}

// A stale agent of an earlier job of this id reaches the new coordinator first.
TEST(RendezvousNextJob, NodesOfANewJobDoNotWaitForThoseOfAnEarlierOne) {
  Job job(nnodes(2, 2));
  job.join_all({"stale", "gone"});
  job.restart_coordinator();
  job.resume("stale", NodePhase::kWorking);
  job.join("a");
  EXPECT_TRUE(job.is_running()) << "one alone may be a replacement";
  const Sent sent = job.join("b");
  EXPECT_EQ(sent.count<rdzv::Round>(), 2);
  EXPECT_THAT(job.action_to<rdzv::Evicted>(sent, "stale")->reason, HasSubstr("an earlier job"));
  EXPECT_EQ(job.share("a").record->restarts, 0);
  EXPECT_EQ(job.round(), 2u);
  EXPECT_EQ(job.resume("gone", NodePhase::kWorking).count<rdzv::Evicted>(), 1);
  job.run(100s, {"a", "b"});
  EXPECT_TRUE(job.is_running());
}

// As many newcomers as the earlier job had nodes, though the new one could have more.
TEST(RendezvousNextJob, NodesOfANewJobOfFewerThanMaxNodesDoNotWaitForStoreGrace) {
  for (const bool has_failed : {false, true}) {
    Job job(elastic_job());
    job.join_all({"stale", "gone"});
    job.run(31s, {"stale", "gone"});
    job.restart_coordinator();
    job.resume("stale", NodePhase::kWorking);
    if (has_failed) job.fail("stale");
    job.join("a");
    job.run(7s, {"stale", "a"});
    EXPECT_EQ(job.machine().record().generation, 1u) << "one alone may be a replacement";
    const Sent sent = job.join("b");
    EXPECT_EQ(job.machine().record().generation, 2u);
    EXPECT_THAT(job.action_to<rdzv::Evicted>(sent, "stale")->reason, HasSubstr("an earlier job"));
    job.run(job.settings().last_call_timeout, {"a", "b"});
    EXPECT_TRUE(job.is_running());
    EXPECT_EQ(job.share("a").record->nodes, 2);
  }
}

TEST(RendezvousNextJob, ANewJobBeginsWhenTheMembersOfTheEarlierOneHadTimeToResume) {
  Job job(elastic_job());
  job.join_all({"a", "b"});
  job.run(31s, {"a", "b"});
  job.restart_coordinator();
  job.resume("a", NodePhase::kWorking);
  job.join_all({"x", "y"});
  job.run(job.settings().node_timeout, {"a", "x", "y"});
  EXPECT_EQ(job.machine().record().generation, 1u);
  job.run(1s, {"a", "x", "y"});
  EXPECT_EQ(job.machine().record().generation, 2u) << "without any further message";
}

TEST(RendezvousNextJob, NewcomersDoNotReplaceARoundWhoseMembersResume) {
  Job job(nnodes(3, 3));
  job.join_all({"a", "b", "c"});
  job.restart_coordinator();
  job.resume("a", NodePhase::kWorking);
  job.resume("b", NodePhase::kWorking);
  job.join_all({"x", "y", "z"});
  job.resume("c", NodePhase::kWorking);
  EXPECT_TRUE(job.is_running());
  EXPECT_EQ(job.round(), 1u);
}

}  // namespace
}  // namespace elastic::test
