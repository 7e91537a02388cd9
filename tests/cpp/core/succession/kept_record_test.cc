// The record of a job as a store keeps it: what is written is read, and nothing else.

#include "core/succession/job_record.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>

namespace elastic::succession {
namespace {

const reg::Content kContent{.generation = 1, .round = 2, .is_result = false, .bytes = "state"};

TEST(KeptRecord, IsReadAsItWasWritten) {
  const KeptRecord record{.lineage = {7, 8},
                          .term = 3,
                          .version = 9,
                          .nonce = 11,
                          .holder = {1, 2},
                          .node = {3, 4},
                          .address = "10.0.0.1:400",
                          .challenge = 5,
                          .content = kContent};
  EXPECT_EQ(*decode_kept(encode_kept(record)), record);
}

TEST(KeptRecord, NoDamagedBytesAreARecord) {
  const std::string bytes = encode_kept({.lineage = {7, 8},
                                         .term = 3,
                                         .version = 9,
                                         .nonce = 11,
                                         .holder = {1, 2},
                                         .node = {3, 4},
                                         .address = "a:1",
                                         .content = kContent});
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(decode_kept(bytes.substr(0, size)).status().code(), StatusCode::kPeerViolation);
  }
  EXPECT_FALSE(decode_kept(bytes + "x").ok());
  EXPECT_FALSE(decode_kept("gASVAAAA").ok());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::string other = bytes;
    other[i] = static_cast<char>(other[i] ^ 0x80);
    const auto record = decode_kept(other);
    EXPECT_TRUE(!record.ok() || encode_kept(*record) == other) << i;
  }
  std::string newer = bytes;
  newer[8] = 2;
  EXPECT_NE(decode_kept(newer).status().message().find("of another version"), std::string::npos);
}

}  // namespace
}  // namespace elastic::succession
