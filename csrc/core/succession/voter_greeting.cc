#include "core/succession/voter_greeting.h"

#include <utility>

#include "core/base/byte_io.h"
#include "core/base/utf8.h"

namespace elastic::voter {
namespace {

enum class FrameKind : std::uint8_t { kGreeting = 1, kRefused = 2, kPayload = 3 };

constexpr std::size_t kJobIdBytesMax = 1024;
constexpr std::size_t kReasonBytesMax = 1024;
constexpr std::uint8_t kRequiredFlag = 1;  // other bits are ignored
constexpr std::size_t kHeadBytes = sizeof(std::uint32_t);
constexpr std::size_t kPrefixBytes = 2;  // kind and flags, within the length

template <typename Fields>
void append_frame(std::string* out, FrameKind kind, const Fields& fields) {
  const std::size_t begin = out->size();
  core::ByteWriter writer(out);
  writer.integer(std::uint32_t{0});
  writer.integer(kind);
  writer.integer(kRequiredFlag);
  fields(writer);
  core::store_integer(out, begin, static_cast<std::uint32_t>(out->size() - begin - kHeadBytes));
}

Greeting read_greeting(core::ByteReader& reader) {
  Greeting greeting;
  greeting.version = reader.integer<std::uint16_t>();
  greeting.oldest_version = reader.integer<std::uint16_t>();
  greeting.job_id = reader.text(kJobIdBytesMax);
  return greeting;
}

DecodeResult violation(std::string message) {
  return {DecodeResult::Kind::kViolation, 0,
          Status(StatusCode::kPeerViolation, std::move(message))};
}

}  // namespace

void append(std::string* out, const Frame& frame) {
  if (const auto* greeting = std::get_if<Greeting>(&frame)) {
    append_frame(out, FrameKind::kGreeting, [&](core::ByteWriter& writer) {
      writer.integer(greeting->version);
      writer.integer(greeting->oldest_version);
      writer.text(greeting->job_id);
    });
  } else if (const auto* refused = std::get_if<Refused>(&frame)) {
    append_frame(out, FrameKind::kRefused, [&](core::ByteWriter& writer) {
      writer.text(core::to_printable(refused->reason, core::Lines::kMany, kReasonBytesMax));
    });
  } else {
    const Payload& payload = std::get<Payload>(frame);
    *out += payload_head(payload.bytes.size()) + payload.bytes;
  }
}

std::string payload_head(std::size_t bytes) {
  std::string head;
  append_frame(&head, FrameKind::kPayload, [&](core::ByteWriter& writer) { writer.size(bytes); });
  core::store_integer(&head, 0, static_cast<std::uint32_t>(head.size() - kHeadBytes + bytes));
  return head;
}

DecodeResult decode(std::string_view bytes, std::size_t bytes_max, Frame* frame) {
  if (bytes.size() < kHeadBytes) return {};
  const auto length = core::load_integer<std::uint32_t>(bytes.data());
  if (length < kPrefixBytes || length > bytes_max) {
    return violation("a frame of " + std::to_string(length) + " bytes; " +
                     std::to_string(kPrefixBytes) + " to " + std::to_string(bytes_max) +
                     " are allowed");
  }
  const std::size_t whole = kHeadBytes + length;
  if (bytes.size() < whole) return {};
  core::ByteReader reader(bytes.substr(kHeadBytes, length));
  const auto kind = reader.integer<std::uint8_t>();
  const auto flags = reader.integer<std::uint8_t>();
  switch (static_cast<FrameKind>(kind)) {
    case FrameKind::kGreeting: {
      const Greeting& greeting = frame->emplace<Greeting>(read_greeting(reader));
      if (!core::is_printable(greeting.job_id, core::Lines::kOne)) {
        return violation("a malformed greeting: its job id is not printable UTF-8");
      }
      // A later version may append fields to its greeting.
      if (!reader.ok() || greeting.oldest_version > greeting.version) {
        return violation("a malformed greeting");
      }
      return {DecodeResult::Kind::kFrame, whole, {}};
    }
    case FrameKind::kRefused: {
      const Refused& refused = frame->emplace<Refused>(Refused{reader.text(kReasonBytesMax)});
      if (core::is_printable(refused.reason, core::Lines::kMany)) break;
      return violation("a malformed frame of kind " + std::to_string(kind) +
                       ": its reason is not printable UTF-8");
    }
    case FrameKind::kPayload: *frame = Payload{reader.text(bytes_max)}; break;
    default:
      if ((flags & kRequiredFlag) == 0) return {DecodeResult::Kind::kSkipped, whole, {}};
      return violation("a frame of the unknown kind " + std::to_string(kind));
  }
  if (!reader.ok() || !reader.at_end()) {
    return violation("a malformed frame of kind " + std::to_string(kind));
  }
  return {DecodeResult::Kind::kFrame, whole, {}};
}

Status check_greeting(const Greeting& received, const Greeting& own) {
  if (received.oldest_version > kVersion || received.version < kOldestVersion) {
    return {StatusCode::kFailedPrecondition,
            "one side uses version " + std::to_string(received.version) +
                " of the voter protocol, the other one version " + std::to_string(kVersion)};
  }
  if (received.job_id != own.job_id) {
    return {StatusCode::kFailedPrecondition, "this is a voter of another job"};
  }
  return {};
}

}  // namespace elastic::voter
