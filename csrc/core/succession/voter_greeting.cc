#include "core/succession/voter_greeting.h"

#include "core/succession/succession_types.h"

namespace elastic::voter {
namespace {

using core::FieldReader;
using core::FieldWriter;
using succession::kJobIdBytesMax;

constexpr std::string_view kProtocol = "voter";
constexpr std::size_t kReasonBytesMax = 1024;

template <typename Visitor>
void fields(Visitor& v, Greeting& greeting) {
  v.number(greeting.version);
  v.number(greeting.oldest_version);
  v.exact_name(greeting.job_id, kJobIdBytesMax);
  v.check(greeting.oldest_version <= greeting.version);
  v.ignore_rest();
}

template <typename Visitor>
void fields(Visitor& v, Refused& refused) {
  v.text(refused.reason, kReasonBytesMax);
}

template <typename Visitor>
void fields(Visitor& v, Payload& payload) {
  v.bytes(payload.bytes, kFrameBytesMax);
}

}  // namespace

void append(std::string* out, const Frame& frame) {
  core::append_message(out, Frames{}, frame,
                       [](FieldWriter& writer, auto& message) { fields(writer, message); });
}

std::string payload_head(std::size_t bytes) {
  std::string head;
  append(&head, Payload{});
  core::store_integer(&head, 0,
                      static_cast<std::uint32_t>(head.size() - core::kFrameHeaderBytes + bytes));
  core::store_integer(&head, head.size() - sizeof(std::uint32_t),
                      static_cast<std::uint32_t>(bytes));
  return head;
}

DecodeResult decode(std::string_view bytes, std::size_t bytes_max, Frame* frame) {
  const core::Protocol protocol{kProtocol, bytes_max};
  return core::decode_message(
      bytes, protocol, Frames{}, frame,
      [&](FieldReader& reader, std::uint8_t kind, auto& message) {
        fields(reader, message);
        return reader.ok() ? Status() : core::malformed(protocol, kind, reader);
      },
      [](std::uint8_t kind) {
        return Status(StatusCode::kPeerViolation,
                      "a voter message of the unknown kind " + std::to_string(kind));
      });
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
