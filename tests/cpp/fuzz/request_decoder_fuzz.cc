// The invariant: however a byte stream is split, the decoder returns the same requests and the same
// violation, reads no byte out of bounds, requests more bytes only when that can help, and returns
// no frame longer than its limit.
//
// The first byte of the input chooses how the rest is split; corpus/ has the requests of the
// recorded sessions. Run: request_decoder_fuzz tests/cpp/fuzz/request_corpus -max_total_time=60

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/check.h"
#include "core/store/wire.h"

namespace {

using elastic::StoreLimits;
using elastic::wire::DecodeStatus;
using elastic::wire::Opcode;
using elastic::wire::Request;
using elastic::wire::RequestDecoder;

// Small, so that the fuzzer reaches every limit.
constexpr StoreLimits kLimits = {
    .key_bytes_max = 64, .value_bytes_max = 256, .item_count_max = 16, .frame_bytes_max = 512};

// All fields of a decoded request as text; reads each byte of its views.
void describe(const Request& request, std::string* out) {
  const auto add = [out](std::string_view part) { out->append(part).push_back('|'); };
  add(std::to_string(static_cast<int>(request.opcode)));
  add(std::to_string(request.nonce));
  add(std::to_string(request.number));
  add(request.key);
  add(request.value);
  add(request.expected);
  auto cursor = request.items.begin();
  for (std::size_t i = 0; i < request.items.size(); ++i) add(cursor.next());
}

// Decodes `stream` in pieces whose sizes follow from `cut`; 0: in one piece.
std::string decode(std::string_view stream, std::uint32_t cut) {
  RequestDecoder decoder(kLimits);
  std::string log;
  std::string buffer;
  while (!stream.empty()) {
    cut = cut * 1664525u + (cut == 0 ? 0u : 1013904223u);
    const std::size_t piece = cut == 0 ? stream.size() : 1 + (cut >> 16) % 40;
    buffer.append(stream.substr(0, piece));
    stream.remove_prefix(std::min(piece, stream.size()));
    while (!buffer.empty()) {
      // A copy of exactly these bytes, so that AddressSanitizer detects reads past the end.
      const std::unique_ptr<char[]> exact(new char[buffer.size()]);
      std::copy(buffer.begin(), buffer.end(), exact.get());
      Request request;
      const auto result = decoder.decode({exact.get(), buffer.size()}, &request);
      if (result.status == DecodeStatus::kViolation) return log + result.violation;
      ELASTIC_CHECK(result.bytes <= kLimits.frame_bytes_max + sizeof(std::uint64_t));
      if (result.status == DecodeStatus::kNeedMore) {
        ELASTIC_CHECK(result.bytes > buffer.size());
        break;
      }
      ELASTIC_CHECK(result.bytes <= buffer.size());
      describe(request, &log);
      buffer.erase(0, result.bytes);
    }
  }
  return log;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view stream(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string whole = decode(stream, 0);
  ELASTIC_CHECK(decode(stream, 1) == whole);
  ELASTIC_CHECK(decode(stream, 2 + data[0]) == whole);
  return 0;
}
