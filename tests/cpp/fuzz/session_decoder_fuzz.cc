// The invariant: a message that the session's decoder accepts can be encoded and decodes to the
// same message; the decoder requests more bytes only when that can help, and at most a frame's
// size.
//
// The first byte of the input chooses the direction. Run:
// session_decoder_fuzz tests/cpp/fuzz/session_corpus -max_total_time=60

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/check.h"
#include "core/session/session_wire.h"

namespace {

using elastic::session::DecodeStatus;

template <typename Message>
void run(std::string_view stream) {
  while (!stream.empty()) {
    // A copy of exactly these bytes, so that AddressSanitizer detects reads past the end.
    const std::unique_ptr<char[]> exact(new char[stream.size()]);
    std::copy(stream.begin(), stream.end(), exact.get());
    Message message;
    const auto result = elastic::session::decode({exact.get(), stream.size()}, &message);
    if (result.status == DecodeStatus::kViolation) {
      ELASTIC_CHECK(!result.error.ok());
      return;
    }
    ELASTIC_CHECK(result.bytes <=
                  elastic::session::kFrameBytesMax + elastic::core::kFrameHeaderBytes);
    if (result.status == DecodeStatus::kNeedMore) {
      ELASTIC_CHECK(result.bytes > stream.size());
      return;
    }
    ELASTIC_CHECK(result.bytes <= stream.size());
    if (result.status == DecodeStatus::kSkipped) {
      stream.remove_prefix(result.bytes);
      continue;
    }
    std::string once, twice;
    elastic::session::append(&once, message);
    Message again;
    ELASTIC_CHECK(elastic::session::decode(once, &again).status == DecodeStatus::kMessage);
    elastic::session::append(&twice, again);
    ELASTIC_CHECK(once == twice);
    stream.remove_prefix(result.bytes);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view stream(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) {
    run<elastic::session::ClientMessage>(stream);
  } else {
    run<elastic::session::ServerMessage>(stream);
  }
  return 0;
}
