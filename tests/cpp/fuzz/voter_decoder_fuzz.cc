// The invariant: a frame between voters, or a record in a store, that a decoder accepts can be
// encoded and decodes to the same. The transport's decoder requests more bytes only when that can
// help.
//
// The first byte of the input chooses the decoder. Run:
// voter_decoder_fuzz tests/cpp/fuzz/voter_corpus -max_total_time=60

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/check.h"
#include "core/register/register_codec.h"
#include "core/succession/job_record.h"
#include "core/succession/voter_wire.h"

namespace {

using namespace elastic;

void run_transport(std::string_view stream) {
  using voter::DecodeStatus;
  while (!stream.empty()) {
    voter::Frame frame;
    const auto result = voter::decode(stream, voter::kGreetingBytesMax, &frame);
    if (result.status == DecodeStatus::kViolation) {
      ELASTIC_CHECK(!result.error.ok());
      return;
    }
    if (result.status == DecodeStatus::kNeedMore) return;
    ELASTIC_CHECK(result.bytes > 0 && result.bytes <= stream.size());
    stream.remove_prefix(result.bytes);
    if (result.status == DecodeStatus::kSkipped) continue;
    std::string bytes;
    voter::append(&bytes, frame);
    voter::Frame again;
    ELASTIC_CHECK(voter::decode(bytes, voter::kFrameBytesMax, &again).status ==
                  DecodeStatus::kMessage);
    ELASTIC_CHECK(frame == again);
  }
}

template <typename Decode, typename Encode>
void run(std::string_view bytes, Decode decode, Encode encode) {
  const auto decoded = decode(bytes);
  if (!decoded.ok()) return;
  const std::string once = encode(*decoded);
  const auto again = decode(once);
  ELASTIC_CHECK(again.ok());
  ELASTIC_CHECK(encode(*again) == once);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  // A copy of exactly these bytes, so that AddressSanitizer detects reads past the end.
  const std::unique_ptr<char[]> exact(new char[size - 1]);
  std::copy(data + 1, data + size, exact.get());
  const std::string_view bytes(exact.get(), size - 1);
  switch (data[0] % 4) {
    case 0: run(bytes, succession::decode_frame, succession::encode_frame); break;
    case 1: run(bytes, reg::decode_message, reg::encode_message); break;
    case 2: run_transport(bytes); break;
    default: run(bytes, succession::decode_kept, succession::encode_kept);
  }
  return 0;
}
