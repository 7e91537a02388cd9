// The encoded state. Damaged ones are tried by fuzz/rendezvous_decoder_fuzz.cc.

#include <gmock/gmock.h>

#include <utility>

#include "core/base/bytes.h"
#include "core/rendezvous/rendezvous_harness.h"

namespace elastic::test {
namespace {

using testing::HasSubstr;

JobSettings with_restarts() {
  return with(nnodes(2, 3), [](JobSettings& s) {
    s.max_restarts = 2;
    s.extra = {{"version", "1"}};
  });
}

// A job with a value in every field: waiting, stopping, departed, a failure, armed timers.
void fill(Job* job) {
  job->node("b").role = "reader";
  job->node("b").topology = "rack7";
  job->join_all({"a", "b", "c"});
  job->join("spare");
  job->fail("a", 4);
  job->gone("b");
  job->leave("c");
}

TEST(RendezvousCodec, DecodingReturnsTheEncodedState) {
  Job job(with_restarts());
  fill(&job);
  const std::string bytes = job.machine().encode();
  core::RendezvousMachine other(job.settings(), Instant(5s));
  ASSERT_TRUE(other.load(bytes, Instant(5s)).ok());
  EXPECT_EQ(other.encode(), bytes);
  EXPECT_EQ(other.describe(Instant(5s)), job.describe());
  EXPECT_EQ(other.record(), job.machine().record());
  EXPECT_EQ(other.members(), job.machine().members());
}

TEST(RendezvousCodec, HoldsDurationsAndNoInstants) {
  Job job(with_restarts());
  fill(&job);
  // Another process, with another clock value, after the same time.
  core::RendezvousMachine other(job.settings(), Instant(77777s));
  ASSERT_TRUE(other.load(job.machine().encode(), Instant(77777s)).ok());
  EXPECT_EQ(*other.next_deadline() - Instant(77777s), *job.machine().next_deadline() - job.now());
}

TEST(RendezvousCodec, ARestoredRoundKnowsTheRanksOfItsMembers) {
  Job job(nnodes(3, 3));
  job.node("a").local_world_size = 2;
  job.node("b").role = "reader";
  job.join_all({"a", "b", "c"});
  const NodeAssignment sent = job.share("c").own;
  // The members of an adopted round resume one after the other, before and after the state is read.
  job.restart_coordinator();
  for (const char* name : {"c", "a"}) job.resume(name, rdzv::NodePhase::kWorking);
  ASSERT_TRUE(job.machine().restore(job.machine().encode(), job.now()).ok());
  for (const char* name : {"b", "a"}) job.resume(name, rdzv::NodePhase::kWorking);
  rdzv::Resume late = job.resume_of("c", rdzv::NodePhase::kJoined);
  late.last.reset();
  late.node.highest_round = 0;
  const Sent answer = job.step(late);
  ASSERT_NE(job.action_to<rdzv::Round>(answer, "c"), nullptr);
  EXPECT_EQ(job.action_to<rdzv::Round>(answer, "c")->own, sent);
}

TEST(RendezvousCodec, AClosedStateIsKept) {
  Job job(nnodes(1, 1));
  job.join("a");
  job.fail("a", 9);
  job.gone("a");
  ASSERT_TRUE(job.is_closed());
  core::RendezvousMachine other(nnodes(4, 8), job.now());
  ASSERT_TRUE(other.load(job.machine().encode(), job.now()).ok())
      << "the settings of a job that has ended bind no node";
  ASSERT_NE(other.result(), nullptr);
  EXPECT_EQ(*other.result(), job.result());
}

TEST(RendezvousCodec, OtherSettingsAreRejectedWithBothValues) {
  Job job(nnodes(2, 2));
  job.join("a");
  core::RendezvousMachine other(nnodes(3, 3), job.now());
  const Status status = other.load(job.machine().encode(), job.now());
  EXPECT_EQ(status.message(), "this node has --nnodes=3, the job has --nnodes=2");
}

TEST(RendezvousCodec, ANewerVersionIsNamed) {
  Job job(nnodes(1, 1));
  std::string bytes = job.machine().encode();
  bytes[4] = static_cast<char>(core::kStateVersion + 1);
  const Status status = job.machine().load(bytes, job.now());
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("newer version (format " + std::to_string(core::kStateVersion + 1)));
  EXPECT_EQ(job.machine().load("gar", job.now()).code(), StatusCode::kPeerViolation);
  EXPECT_EQ(job.machine().load("Y2FuaW1hZGFt", job.now()).code(), StatusCode::kPeerViolation);
}

TEST(RendezvousCodec, EveryPrefixIsRejectedAndChangesNothing) {
  Job job(with_restarts());
  fill(&job);
  const std::string bytes = job.machine().encode();
  core::RendezvousMachine other(job.settings(), job.now());
  const std::string empty = other.encode();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    ASSERT_FALSE(other.load(std::string_view(bytes).substr(0, length), job.now()).ok()) << length;
    ASSERT_EQ(other.encode(), empty);
  }
  EXPECT_FALSE(other.load(bytes + "x", job.now()).ok());
}

// The bytes of these values in the order in which the state has them.
template <typename... Values>
std::string bytes_of(Values... values) {
  std::string bytes;
  (core::append_integer(&bytes, values), ...);
  return bytes;
}

std::string replaced(std::string bytes, const std::string& from, const std::string& to) {
  const std::size_t at = bytes.find(from);
  EXPECT_NE(at, std::string::npos);
  EXPECT_EQ(bytes.find(from, at + 1), std::string::npos) << "which one is meant?";
  return bytes.replace(at, from.size(), to);
}

std::string node_bytes(rdzv::NodePhase phase, std::int32_t rank, std::uint64_t arrival) {
  return bytes_of(phase, rank, arrival);
}

// The machine indexes members and ranks without further checks, and the bytes can be anybody's.
TEST(RendezvousCodec, AStateThatCannotBeIndexedIsRejected) {
  Job job(nnodes(2, 3));
  job.join_all({"a", "b", "c"});
  const std::string bytes = job.machine().encode();
  const auto working = [](std::int32_t rank, std::uint64_t arrival) {
    return node_bytes(rdzv::NodePhase::kWorking, rank, arrival);
  };
  const auto record = [](std::int32_t nodes) {
    return bytes_of(std::uint64_t{1}, std::uint64_t{1}, std::uint32_t{1}, nodes);
  };
  const std::pair<const char*, std::string> damages[] = {
      {"more nodes than members", replaced(bytes, record(3), record(4))},
      {"fewer nodes than members", replaced(bytes, record(3), record(2))},
      {"a working node without a rank", replaced(bytes, working(1, 2), working(-1, 2))},
      {"two nodes of one rank", replaced(bytes, working(1, 2), working(0, 2))},
      {"a rank beyond the members", replaced(bytes, working(1, 2), working(3, 2))},
  };
  core::RendezvousMachine other(job.settings(), job.now());
  const std::string empty = other.encode();
  ASSERT_TRUE(core::RendezvousMachine(job.settings(), job.now()).load(bytes, job.now()).ok());
  for (const auto& [what, damaged] : damages) {
    EXPECT_EQ(other.load(damaged, job.now()).code(), StatusCode::kPeerViolation) << what;
    EXPECT_EQ(other.encode(), empty) << what;
  }
}

}  // namespace
}  // namespace elastic::test
