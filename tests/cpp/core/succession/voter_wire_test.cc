// The frames between voters: what is encoded comes back, every truncation is an error, and a
// damaged frame is an error or another valid frame. fuzz/voter_decoder_fuzz.cc tries any bytes.

#include "core/succession/voter_wire.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/random.h"
#include "support/hex.h"

namespace elastic::succession {
namespace {

Incumbent incumbent() {
  return {.lineage = {7, 8},
          .term = 3,
          .node = {1, 2},
          .address = "10.0.0.1:29401",
          .voters = {{{1, 2}, "10.0.0.1:29402"}, {{3, 4}, "10.0.0.2:29402"}}};
}

std::vector<VoterFrame> every_frame() {
  const reg::Message message = {{7, 8}, {1, 2}, {3, 4}, reg::Accepted{{3, 12}, true, false, 3}};
  std::vector<VoterFrame> frames;
  for (const VoterBody& body :
       {VoterBody(message), VoterBody(Probe{{7, 8}}), VoterBody(ProbeReply{{7, 8}, 9}),
        VoterBody(Announce{incumbent()}), VoterBody(Query{5})}) {
    frames.push_back({"job/1", {1, 2}, {3, 4}, body});
  }
  return frames;
}

TEST(VoterWire, FramesComeBack) {
  ASSERT_EQ(every_frame().size(), std::variant_size_v<VoterBody>);
  for (const VoterFrame& frame : every_frame()) {
    const auto decoded = decode_frame(encode_frame(frame));
    ASSERT_TRUE(decoded.ok()) << frame.body.index();
    EXPECT_EQ(*decoded, frame) << frame.body.index();
  }
}

// Nodes of different versions meet: docs/protocol.md has these bytes.
TEST(VoterWire, BytesAreThoseOfTheProtocolDocument) {
  using test::hex;
  const auto frame = [&](const voter::Frame& one) {
    std::string bytes;
    voter::append(&bytes, one);
    return hex(bytes);
  };
  EXPECT_EQ(frame(voter::Greeting{.job_id = "j"}), "0b000000010101000100010000006a");
  EXPECT_EQ(frame(voter::Refused{"no"}), "080000000201020000006e6f");
  EXPECT_EQ(frame(voter::Payload{"x"}), "0700000003010100000078");
  EXPECT_EQ(hex(voter::payload_head(1) + "x"), frame(voter::Payload{"x"}));
  const std::string from_and_to =
      "01000000000000000200000000000000"
      "03000000000000000400000000000000";
  EXPECT_EQ(hex(encode_frame({"j", {1, 2}, {3, 4}, Query{5}})),
            "020004010000006a" + from_and_to + "0500000000000000");
  const reg::Message message = {{7, 8}, {1, 2}, {3, 4}, reg::Accepted{{3, 12}, true, false, 3}};
  EXPECT_EQ(hex(encode_frame({"j", {1, 2}, {3, 4}, message})),
            "020000010000006a" + from_and_to +
                "4d000000"
                "010005"
                "07000000000000000800000000000000" +
                from_and_to +
                "03000000000000000c000000000000000100"
                "0300000000000000");
}

// Voters accept every record that a coordinator may propose.
TEST(VoterWire, TheLargestRecordFitsIntoAFrameOfItsConnection) {
  reg::Record record;
  record.lineage = {7, 8};
  record.newness = {3, 12};
  record.proposer = {{1, 1}, std::string(reg::kAddressBytesMax, 'a')};
  for (std::uint64_t i = 1; i <= reg::kVotersMax; ++i) {
    record.voters.push_back({{1, i}, std::string(reg::kAddressBytesMax, 'a')});
    record.previous_voters.push_back({{2, i}, std::string(reg::kAddressBytesMax, 'a')});
  }
  record.content.bytes = std::string(reg::kContentBytesMax, 'x');
  ASSERT_EQ(check_record_size(record.content.bytes.size()), "");
  const reg::Message message = {
      {7, 8}, {1, 2}, {3, 4}, reg::Fetched{reg::KnownRecord{record, false}}};
  const VoterFrame frame{std::string(kJobIdBytesMax, 'j'), {1, 2}, {3, 4}, message};
  const std::string bytes = encode_frame(frame);
  EXPECT_LE(bytes.size(), kVoterFrameBytesMax);
  EXPECT_LT(kVoterFrameBytesMax, voter::kFrameBytesMax);
  const auto decoded = decode_frame(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(*decoded, frame);
}

TEST(VoterWire, EveryTruncationAndEveryAdditionIsAnError) {
  for (const VoterFrame& frame : every_frame()) {
    const std::string bytes = encode_frame(frame);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      const auto decoded = decode_frame(std::string_view(bytes).substr(0, size));
      ASSERT_FALSE(decoded.ok()) << frame.body.index() << " at " << size;
      EXPECT_EQ(decoded.status().code(), StatusCode::kPeerViolation);
    }
    EXPECT_FALSE(decode_frame(bytes + '\0').ok()) << frame.body.index();
  }
}

TEST(VoterWire, ADamagedFrameIsAnErrorOrAnotherFrame) {
  Rng rng(1);
  int accepted = 0;
  for (const VoterFrame& frame : every_frame()) {
    const std::string bytes = encode_frame(frame);
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      for (int turn = 0; turn < 8; ++turn) {
        std::string damaged = bytes;
        damaged[at] = static_cast<char>(rng.next());
        const auto decoded = decode_frame(damaged);
        if (!decoded.ok()) continue;
        ++accepted;
        EXPECT_EQ(encode_frame(*decoded), damaged) << "no two encodings mean the same";
      }
    }
  }
  EXPECT_GT(accepted, 0);
}

TEST(VoterWire, AJobIdThatIsNotPrintableIsRefusedWithTheReason) {
  const auto frame = decode_frame(encode_frame({"job\x1B[2J", {1, 2}, {3, 4}, Query{5}}));
  ASSERT_FALSE(frame.ok());
  EXPECT_EQ(frame.status().message(),
            "this is not a frame of a voter: a name or text in it is not printable UTF-8");

  std::string bytes;
  voter::append(&bytes, voter::Frame(voter::Greeting{.job_id = "job\xFF"}));
  voter::Frame greeting;
  const auto result = voter::decode(bytes, voter::kGreetingBytesMax, &greeting);
  EXPECT_EQ(result.status, voter::DecodeStatus::kViolation);
  EXPECT_EQ(result.error.message(),
            "a voter message of kind 1 is malformed: a name or text in it is not printable UTF-8");
}

TEST(VoterWire, ANewerVersionIsNamed) {
  std::string bytes = encode_frame(every_frame().front());
  bytes[0] = static_cast<char>(kVoterWireVersion + 1);
  EXPECT_EQ(decode_frame(bytes).status().code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace elastic::succession
