#include "core/store/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace elastic::wire {
namespace {

using testing::ElementsAre;

// A request as text, so that requests can be compared and printed.
std::string describe(const Request& request) {
  std::string text = "op " + std::to_string(static_cast<int>(request.opcode));
  const auto add = [&text](std::string_view part) { text.append(" '").append(part).append("'"); };
  switch (request.opcode) {
    case Opcode::kValidate:
    case Opcode::kNumKeys:
    case Opcode::kListKeys:
    case Opcode::kCancelWait: break;
    case Opcode::kPing: add(std::to_string(request.nonce)); break;
    case Opcode::kSet:
    case Opcode::kAppend:
    case Opcode::kQueuePush:
      add(request.key);
      add(request.value);
      break;
    case Opcode::kCompareSet:
      add(request.key);
      add(request.expected);
      add(request.value);
      break;
    case Opcode::kGet:
    case Opcode::kDeleteKey:
    case Opcode::kQueuePop:
    case Opcode::kQueueLen: add(request.key); break;
    case Opcode::kAdd:
    case Opcode::kBarrier:
      add(request.key);
      add(std::to_string(request.number));
      break;
    case Opcode::kCheck:
    case Opcode::kWait:
    case Opcode::kMultiGet:
    case Opcode::kMultiSet: {
      auto cursor = request.items.begin();
      for (std::size_t i = 0; i < request.items.size(); ++i) add(cursor.next());
    }
  }
  return text;
}

struct Decoded {
  std::vector<std::string> requests;
  std::string violation;
  std::size_t left = 0;  // bytes of an incomplete frame
};

// Decodes a stream that arrives in pieces of `step` bytes.
Decoded decode_stream(std::string_view stream, std::size_t step, const StoreLimits& limits = {}) {
  Decoded decoded;
  RequestDecoder decoder(limits);
  std::string buffer;
  for (std::size_t at = 0; at < stream.size(); at += step) {
    buffer.append(stream.substr(at, step));
    while (!buffer.empty()) {
      // An allocation of exactly these bytes, so that a sanitizer detects a read past the end.
      const std::vector<char> exact(buffer.begin(), buffer.end());
      Request request;
      const DecodeResult result = decoder.decode({exact.data(), exact.size()}, &request);
      if (result.status == DecodeStatus::kViolation) {
        decoded.violation = result.violation;
        return decoded;
      }
      if (result.status == DecodeStatus::kNeedMore) {
        EXPECT_GT(result.bytes, buffer.size());
        break;
      }
      decoded.requests.push_back(describe(request));
      buffer.erase(0, result.bytes);
    }
  }
  decoded.left = buffer.size();
  return decoded;
}

std::string one_of_each() {
  std::string out;
  append_validate(&out);
  append_ping(&out, 0x01020304);
  append_key_value_request(&out, Opcode::kSet, "/k", std::string_view("\0\xff\n", 3));
  append_compare_set(&out, "/cs", "", "new");
  append_key_request(&out, Opcode::kGet, "");
  append_number_request(&out, Opcode::kAdd, "/c", -7);
  for (const Opcode opcode : {Opcode::kCheck, Opcode::kWait, Opcode::kMultiGet}) {
    append_list_header(&out, opcode, 3);
    for (const char* key : {"/a", "", "/ccc"}) append_bytes(&out, key);
  }
  append_list_header(&out, Opcode::kCheck, 0);
  append_bare_request(&out, Opcode::kNumKeys);
  append_key_request(&out, Opcode::kDeleteKey, "/k");
  append_key_value_request(&out, Opcode::kAppend, "/k", "");
  append_list_header(&out, Opcode::kMultiSet, 2);
  for (const char* item : {"/m1", "x", "/m2", ""}) append_bytes(&out, item);
  append_bare_request(&out, Opcode::kCancelWait);
  append_key_value_request(&out, Opcode::kQueuePush, "/q", "v");
  append_key_request(&out, Opcode::kQueuePop, "/q");
  append_key_request(&out, Opcode::kQueueLen, "/q");
  append_bare_request(&out, Opcode::kListKeys);
  append_number_request(&out, Opcode::kBarrier, "/b", 16);
  return out;
}

TEST(RequestDecoder, DecodesEveryEncodedRequest) {
  const std::string stream = one_of_each();
  const Decoded decoded = decode_stream(stream, stream.size());
  EXPECT_EQ(decoded.violation, "");
  EXPECT_THAT(
      decoded.requests,
      ElementsAre("op 0", "op 13 '16909060'", std::string("op 1 '/k' '\0\xff\n'", 15),
                  "op 2 '/cs' '' 'new'", "op 3 ''", "op 4 '/c' '-7'", "op 5 '/a' '' '/ccc'",
                  "op 6 '/a' '' '/ccc'", "op 10 '/a' '' '/ccc'", "op 5", "op 7", "op 8 '/k'",
                  "op 9 '/k' ''", "op 11 '/m1' 'x' '/m2' ''", "op 12", "op 14 '/q' 'v'",
                  "op 15 '/q'", "op 16 '/q'", "op 17", "op 18 '/b' '16'"));
}

TEST(RequestDecoder, SplitsOfAStreamDoNotMatter) {
  const std::string stream = one_of_each();
  const Decoded whole = decode_stream(stream, stream.size());
  for (std::size_t step = 1; step < stream.size(); ++step) {
    const Decoded split = decode_stream(stream, step);
    EXPECT_EQ(split.requests, whole.requests) << "in pieces of " << step;
    EXPECT_EQ(split.violation, "");
    EXPECT_EQ(split.left, 0u);
  }
}

TEST(RequestDecoder, FrameFromTheProtocolDocumentIsDecoded) {
  const unsigned char bytes[] = {0x00, 0xce, 0xf7, 0x85, 0x3c,  //
                                 0x04, 0x05, 0,    0,    0,    0,   0, 0,
                                 0,    'i',  'n',  'i',  't',  '/',  //
                                 0x01, 0,    0,    0,    0,    0,   0, 0};
  const std::string_view stream(reinterpret_cast<const char*>(bytes), sizeof bytes);
  EXPECT_THAT(decode_stream(stream, 1).requests, ElementsAre("op 0", "op 4 'init/' '1'"));
}

std::string with_length(std::string prefix, std::uint64_t length) {
  append_integer(&prefix, length);
  return prefix;
}

constexpr StoreLimits kSmall = {
    .key_bytes_max = 8, .value_bytes_max = 32, .item_count_max = 4, .frame_bytes_max = 64};
const char* const kLongKey = "a key is longer than key_bytes_max";
const char* const kLongValue = "a value is longer than value_bytes_max";
const char* const kLongList = "a list is longer than item_count_max";
const char* const kLongFrame = "a request is longer than frame_bytes_max";

struct Violation {
  const char* name;
  std::string bytes;
  const char* violation;
};

std::vector<Violation> violations() {
  const std::string set_k = with_length("\x01", 1) + "k";
  const std::string one_of_two_values =
      with_length(with_length("\x02", 1) + "k", 20) + std::string(20, 'v');
  std::string two_of_three_pairs = with_length("\x0b", 3);
  for (int i = 0; i < 2; ++i) {
    append_bytes(&two_of_three_pairs, "k");
    append_bytes(&two_of_three_pairs, "vvv");
  }
  return {
      {"opcode 19", "\x13", "unknown opcode"},
      {"opcode 255", "\xff", "unknown opcode"},
      {"second VALIDATE", std::string(1, '\0'), "a second VALIDATE"},
      {"key of one byte too many", with_length("\x03", 9), kLongKey},
      {"key of 2^63", with_length("\x01", 1ull << 63), kLongKey},
      {"value of one byte too many", with_length(set_k, 33), kLongValue},
      {"value of 2^62", with_length(set_k, 1ull << 62), kLongValue},
      {"frame of two values", with_length(one_of_two_values, 32), kLongFrame},
      {"list of one too many", with_length("\x05", 5), kLongList},
      {"list of 2^64-1", with_length("\x06", ~0ull), kLongList},
      {"frame of many pairs", with_length(two_of_three_pairs, 8), kLongFrame},
  };
}

TEST(RequestDecoder, ViolationIsReportedAtTheFirstOffendingByte) {
  for (const Violation& row : violations()) {
    SCOPED_TRACE(row.name);
    std::string stream;
    append_validate(&stream);
    stream += row.bytes;
    EXPECT_EQ(decode_stream(stream, stream.size(), kSmall).violation, row.violation);
    EXPECT_EQ(decode_stream(stream, 1, kSmall).violation, row.violation);
    const std::string_view without_last(stream.data(), stream.size() - 1);
    EXPECT_EQ(decode_stream(without_last, 1, kSmall).violation, "");
  }
}

TEST(RequestDecoder, FirstFrameMustBeValidateWithTheRightMagic) {
  EXPECT_EQ(decode_stream("\x07", 1).violation, "the first request is not VALIDATE");
  EXPECT_EQ(decode_stream("GET / HTTP/1.1\r\n\r\n", 1).violation, "unknown opcode");
  const std::string_view wrong("\0\xef\xbe\xad\xde", 5);
  EXPECT_EQ(decode_stream(wrong, 1).violation, "wrong magic number");
  EXPECT_EQ(decode_stream(wrong.substr(0, 4), 1).violation, "");
}

TEST(RequestDecoder, LimitsAreInclusive) {
  std::string stream;
  append_validate(&stream);
  append_key_value_request(&stream, Opcode::kSet, std::string(8, 'k'), std::string(32, 'v'));
  append_list_header(&stream, Opcode::kCheck, 4);
  for (int i = 0; i < 4; ++i) append_bytes(&stream, "kkk");
  const Decoded decoded = decode_stream(stream, 1, kSmall);
  EXPECT_EQ(decoded.violation, "");
  EXPECT_EQ(decoded.requests.size(), 3u);
}

TEST(RequestDecoder, MaximalLimitsDoNotOverflow) {
  constexpr std::size_t kHuge = std::numeric_limits<std::size_t>::max();
  constexpr StoreLimits kNone = {.key_bytes_max = kHuge,
                                 .value_bytes_max = kHuge,
                                 .item_count_max = kHuge,
                                 .frame_bytes_max = kHuge};
  for (const char opcode : {'\x01', '\x03', '\x05', '\x0b'}) {
    std::string stream;
    append_validate(&stream);
    stream += with_length(std::string(1, opcode), kHuge);
    EXPECT_EQ(decode_stream(stream, 1, kNone).violation, kLongFrame);
  }
}

TEST(RequestDecoder, LongListThatArrivesByteByByteIsWalkedOnce) {
  // 300000 pieces: walking the list again for each would take minutes, not milliseconds.
  std::string list;
  append_list_header(&list, Opcode::kCheck, 20000);
  for (int i = 0; i < 20000; ++i) append_bytes(&list, "/key-01");
  std::string validate;
  append_validate(&validate);
  const StoreLimits limits;
  RequestDecoder decoder(limits);
  Request request;
  ASSERT_EQ(decoder.decode(validate, &request).status, DecodeStatus::kRequest);
  const std::string_view whole = list;
  for (std::size_t size = 1; size < whole.size(); ++size) {
    ASSERT_EQ(decoder.decode(whole.substr(0, size), &request).status, DecodeStatus::kNeedMore);
  }
  const DecodeResult result = decoder.decode(whole, &request);
  EXPECT_EQ(result.status, DecodeStatus::kRequest);
  EXPECT_EQ(result.bytes, whole.size());
  EXPECT_EQ(request.items.size(), 20000u);
}

}  // namespace
}  // namespace elastic::wire
