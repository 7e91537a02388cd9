// The record of a job: what is encoded comes back, a truncated record is an error, and it has the
// machine's round and result for the register. fuzz/rendezvous_decoder_fuzz.cc tries any bytes.

#include "core/succession/job_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "core/register/register_codec.h"
#include "support/node_info.h"

namespace elastic::succession {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

JobRecord record() {
  JobRecord record{.job_id = "job/1",
                   .settings = {},
                   .state = std::string("\0state\xff", 7),
                   .nodes = {{{1, 2}, "10.0.0.1:29402"}, {{3, 4}, "[fe80::1]:29402"}}};
  record.settings.min_nodes = 2;
  record.settings.max_nodes = 4;
  record.settings.max_restarts = 3;
  record.settings.on_loss = LossPolicy::kFail;
  record.settings.extra = {{"voters", "3"}};
  record.settings.join_timeout = 11s;
  record.settings.restart_backoff = 7s;
  return record;
}

TEST(JobRecord, ComesBack) {
  const Result<JobRecord> decoded = decode_record(encode_record(record()));
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(decoded->job_id, "job/1");
  EXPECT_EQ(decoded->state, record().state);
  EXPECT_EQ(decoded->nodes, record().nodes);
  EXPECT_EQ(decoded->settings.max_nodes, 4);
  EXPECT_EQ(decoded->settings.max_restarts, 3);
  EXPECT_EQ(decoded->settings.on_loss, LossPolicy::kFail);
  EXPECT_EQ(decoded->settings.extra, record().settings.extra);
  EXPECT_EQ(decoded->settings.join_timeout, 11s);
  EXPECT_EQ(decoded->settings.restart_backoff, 7s);
  EXPECT_EQ(encode_record(*decoded), encode_record(record()));
}

TEST(JobRecord, EveryTruncationAndEveryAdditionIsAnError) {
  const std::string bytes = encode_record(record());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const auto decoded = decode_record(std::string_view(bytes).substr(0, size));
    ASSERT_FALSE(decoded.ok()) << "at " << size;
    EXPECT_EQ(decoded.status().code(), StatusCode::kPeerViolation);
  }
  EXPECT_FALSE(decode_record(bytes + '\0').ok());
}

TEST(JobRecord, InvalidSettingsAndOtherVersionsAreErrors) {
  JobRecord invalid = record();
  invalid.settings.min_nodes = 5;  // more than max_nodes
  EXPECT_THAT(std::string(decode_record(encode_record(invalid)).status().message()),
              HasSubstr("is damaged"));
  std::string later = encode_record(record());
  later[0] = 9;
  EXPECT_THAT(std::string(decode_record(later).status().message()),
              HasSubstr("has format 9, and this version reads 2"));
}

TEST(JobRecord, NamesTheMachinesRoundAndResult) {
  JobSettings settings;
  settings.min_nodes = settings.max_nodes = 1;
  const Instant now(1000s);
  core::RendezvousMachine machine(settings, now, 0s);
  EXPECT_EQ(content_of(machine, "bytes"), (reg::Content{1, 0, false, "bytes"}));
  const core::NodeInfo node = support::node_info(1);
  std::vector<core::RendezvousAction> actions;
  machine.step(rdzv::Join{node, settings}, now, &actions);
  EXPECT_EQ(content_of(machine, ""), (reg::Content{1, 1, false, ""}));
  machine.step(rdzv::Done{node.id, 1}, now, &actions);
  EXPECT_EQ(content_of(machine, ""), (reg::Content{1, 1, true, ""}));
}

// A state that was cut could not be restored by a successor.
TEST(JobRecord, AStateAboveTheLimitIsNotCutAndHasItsSentence) {
  JobRecord record{.job_id = "job", .settings = {}, .state = {}, .nodes = {}};
  record.state.assign(reg::kContentBytesMax + 1, 'x');
  const std::string bytes = encode_record(record);
  EXPECT_GT(bytes.size(), record.state.size());
  EXPECT_FALSE(decode_record(bytes).ok());
  EXPECT_NE(check_record_size(bytes.size()).find("15 MiB"), std::string::npos);
  EXPECT_EQ(check_record_size(reg::kContentBytesMax), "");
}

}  // namespace
}  // namespace elastic::succession
