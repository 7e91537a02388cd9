// The register's codec: what is encoded comes back, every truncation and every damaged byte is an
// error or another valid value, and nothing that the machine could not work with is accepted.

#include "core/register/register_codec.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/random.h"
#include "core/register/register_names.h"

namespace elastic::reg {
namespace {

constexpr LineageId kEncodedLineage = {7, 8};

KnownRecord known() {
  const Voter a = {{1, 2}, "10.0.0.1:9"};
  const Voter b = {{3, 4}, "10.0.0.2:9"};
  const Voter c = {{5, 6}, ""};
  return {{kEncodedLineage, {3, 12}, b, {a, b, c}, {a}, {2, 9, true, std::string("\0member", 7)}},
          true};
}

std::vector<Message> every_message() {
  const KnownRecord named = without_bytes(known());
  const std::vector<Body> bodies = {Ask{4, 5, named},
                                    AskReply{4, true, 6, named},
                                    Prepare{5, named, {1, 2}},
                                    Promise{5, true, 5, std::nullopt},
                                    Accept{known()},
                                    Accepted{{3, 12}, true, false, 3},
                                    InForce{{3, 12}},
                                    HandOver{4, known()},
                                    Fetch{{3, 12}},
                                    Fetched{known()}};
  std::vector<Message> messages;
  for (const Body& body : bodies) messages.push_back({kEncodedLineage, {1, 2}, {3, 4}, body});
  return messages;
}

TEST(RegisterCodec, MessagesComeBack) {
  const std::vector<Message> messages = every_message();
  ASSERT_EQ(messages.size(), kMessages);
  for (const Message& message : messages) {
    const Result<Message> decoded = decode_message(encode_message(message));
    ASSERT_TRUE(decoded.ok()) << kMessageNames[message.body.index()];
    EXPECT_EQ(*decoded, message) << kMessageNames[message.body.index()];
  }
}

TEST(RegisterCodec, EveryTruncationAndEveryAdditionIsAnError) {
  for (const Message& message : every_message()) {
    const std::string bytes = encode_message(message);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      const Result<Message> decoded = decode_message(std::string_view(bytes).substr(0, size));
      ASSERT_FALSE(decoded.ok()) << kMessageNames[message.body.index()] << " at " << size;
      EXPECT_EQ(decoded.status().code(), StatusCode::kPeerViolation);
    }
    EXPECT_FALSE(decode_message(bytes + '\0').ok());
  }
}

// Whatever is accepted is encoded to the same bytes: no two encodings mean the same.
TEST(RegisterCodec, ADamagedMessageIsAnErrorOrAnotherMessage) {
  Rng rng(1);
  int accepted = 0;
  for (const Message& message : every_message()) {
    const std::string bytes = encode_message(message);
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      for (int turn = 0; turn < 8; ++turn) {
        std::string damaged = bytes;
        damaged[at] = static_cast<char>(rng.next());
        const Result<Message> decoded = decode_message(damaged);
        if (!decoded.ok()) continue;
        ++accepted;
        EXPECT_EQ(encode_message(*decoded), damaged);
      }
    }
  }
  EXPECT_GT(accepted, 0);
}

TEST(RegisterCodec, GarbageIsAnError) {
  Rng rng(2);
  for (int turn = 0; turn < 20'000; ++turn) {
    std::string bytes(rng.next() % 300, '\0');
    for (char& byte : bytes) byte = static_cast<char>(rng.next());
    if (bytes.size() > 2) {
      bytes[0] = 1;  // the version, so that the fields are read
      bytes[1] = 0;
      bytes[2] = static_cast<char>(rng.next() % kMessages);
    }
    const Result<Message> decoded = decode_message(bytes);
    if (decoded.ok()) {
      EXPECT_EQ(encode_message(*decoded), bytes);
    }
  }
}

TEST(RegisterCodec, RecordsThatTheMachineCouldNotUseAreErrors) {
  auto is_accepted = [](const KnownRecord& record) {
    return decode_message(encode_message({kEncodedLineage, {1, 2}, {3, 4}, Accept{record}})).ok();
  };
  ASSERT_TRUE(is_accepted(known()));
  KnownRecord record = known();
  record.record.voters.clear();
  EXPECT_FALSE(is_accepted(record)) << "no voters";
  record = known();
  record.record.voters[1].node = record.record.voters[0].node;
  EXPECT_FALSE(is_accepted(record)) << "one voter twice";
  record = known();
  record.record.voters.resize(kVotersMax + 1);
  for (std::size_t i = 0; i <= kVotersMax; ++i) record.record.voters[i].node = {9, i};
  EXPECT_FALSE(is_accepted(record)) << "too many voters";
  record = known();
  record.record.newness.term = 0;
  EXPECT_FALSE(is_accepted(record)) << "no term";
  record = known();
  record.record.newness.term = kNumberMax + 1;
  EXPECT_FALSE(is_accepted(record)) << "a term near its end";
  record = known();
  record.record.voters[0].address = std::string(kAddressBytesMax + 1, 'a');
  EXPECT_FALSE(is_accepted(record)) << "a long address";
  record = known();
  record.record.content.bytes = std::string(kContentBytesMax + 1, 'm');
  EXPECT_FALSE(is_accepted(record)) << "a long content";
}

TEST(RegisterCodec, ANewerVersionIsNamed) {
  std::string message = encode_message(every_message().front());
  message[0] = static_cast<char>(kFormatVersion + 1);
  EXPECT_EQ(decode_message(message).status().code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace elastic::reg
