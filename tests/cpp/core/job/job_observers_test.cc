// What a job owes to its observers.

#include <gmock/gmock.h>

#include "core/job/job_fixture.h"

namespace elastic::core {
namespace {

using ::testing::IsEmpty;

// The round that was rebuilt succeeds, and the nodes that wait form the next job in the same step.
TEST_F(JobTest, AnObserverIsAnsweredIfTheNextJobOfTheIdBeginsAtOnce) {
  const auto rounds = all<rdzv::Round>(begin_round());
  job_ = Job("job", settings_, now_, Duration::zero());
  for (const rdzv::Round& held : rounds) {
    rdzv::Resume resume{{}, settings_, rdzv::NodePhase::kWorking, {}, {}};
    resume.node = support::node_info(held.to.low);
    resume.last = HeldRound{.record = *held.record, .group_rank = held.own.group_rank};
    (void)step(resume);
  }
  (void)join(2);
  (void)join(3);
  EXPECT_THAT(
      all<drain_action::Inform>(step(job_event::DrainRequested{7, {seconds(100), "asked"}, {}})),
      IsEmpty());
  (void)step(rdzv::Done{node(0), 1});
  const auto last = step(rdzv::Done{node(1), 1});
  ASSERT_EQ(job_.rendezvous().record().generation, 2U);
  const auto answers = all<drain_action::Inform>(last);
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].observer, 7U);
  EXPECT_FALSE(answers[0].is_agreed);
  EXPECT_FALSE(job_.is_over()) << "the end of the one job is not that of the next";
}

// The clock of a node, or the estimate of it, may be wrong by days.
TEST_F(JobTest, ObserversSeeNoFailureThatIsOlderThanIsPossible) {
  for (const Duration wrong : {Duration(-std::chrono::hours(24 * 3)), Duration(seconds(9))}) {
    job_ = Job("job", settings_, now_, Duration::zero());
    (void)begin_round();
    FailureReport failure;
    failure.exit_code = 5;
    failure.at = now_ + wrong;
    (void)step(rdzv::Failed{node(1), 1, failure});
    ASSERT_EQ(job_.history().rounds().size(), 1U);
    const auto failed = job_.history().rounds()[0].failed;
    ASSERT_TRUE(failed);
    EXPECT_LE(*failed, now_);
    EXPECT_GE(*failed, now_ - kEvidenceAgeMax);
  }
}

}  // namespace
}  // namespace elastic::core
