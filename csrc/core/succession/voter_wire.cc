// One list of fields for each message serves both directions, as in session_wire.cc.

#include "core/succession/voter_wire.h"

#include <utility>

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

namespace elastic::succession {
namespace {

using core::FieldReader;
using core::FieldWriter;

Status not_a_frame(const std::string& reason = {}) {
  return {StatusCode::kPeerViolation, "this is not a frame of a voter" + reason};
}

// Room for the rest of a frame beside its record.
constexpr std::size_t kFrameReserve = 4096;

// The size of the record that the frame carries; 0: it carries none.
std::size_t record_bytes(const VoterFrame& frame) {
  const auto* message = std::get_if<reg::Message>(&frame.body);
  if (message == nullptr) return 0;
  const auto size = [](const reg::KnownRecord& known) { return known.record.content.bytes.size(); };
  if (const auto* one = std::get_if<reg::Accept>(&message->body)) return size(one->proposal);
  if (const auto* one = std::get_if<reg::HandOver>(&message->body)) return size(one->known);
  if (const auto* one = std::get_if<reg::Fetched>(&message->body)) return size(one->accepted);
  return 0;
}

// Into the frame itself: a record is megabytes.
void write(std::string* out, reg::Message& message) {
  const core::FrameWriter frame(out);
  reg::append_message(out, message);
}

Status read(FieldReader& v, reg::Message& message) {
  std::string bytes;
  v.bytes(bytes, kVoterFrameBytesMax);
  auto decoded = reg::decode_message(bytes);
  if (!decoded.ok()) return decoded.status();
  message = *std::move(decoded);
  return {};
}

template <typename Visitor>
void fields(Visitor& v, Probe& message) {
  visit(v, message.lineage);
}
template <typename Visitor>
void fields(Visitor& v, ProbeReply& message) {
  visit(v, message.lineage);
  v.number(message.record_format);
}
template <typename Visitor>
void fields(Visitor& v, Announce& message) {
  visit(v, message.incumbent);
}
template <typename Visitor>
void fields(Visitor& v, Query& message) {
  v.number(message.term);
}
template <typename Body>
void write(std::string* out, Body& body) {
  FieldWriter v(out);
  fields(v, body);
}

template <typename Body>
Status read(FieldReader& v, Body& body) {
  fields(v, body);
  return {};
}

template <typename Visitor>
void visit_head(Visitor& v, VoterFrame& frame) {
  v.exact_name(frame.job_id, kJobIdBytesMax);
  visit(v, frame.from);
  visit(v, frame.to);
}

}  // namespace

std::optional<reg::LineageId> lineage_of(const VoterFrame& frame) {
  if (const auto* message = std::get_if<reg::Message>(&frame.body)) return message->lineage;
  if (const auto* probe = std::get_if<Probe>(&frame.body)) return probe->lineage;
  if (const auto* reply = std::get_if<ProbeReply>(&frame.body)) return reply->lineage;
  return std::nullopt;
}

std::string encode_frame(const VoterFrame& frame) {
  std::string bytes;
  if (const std::size_t size = record_bytes(frame); size > 0) bytes.reserve(size + kFrameReserve);
  FieldWriter v(&bytes);
  auto& fields = const_cast<VoterFrame&>(frame);  // the writer changes nothing of it
  v.number(kVoterWireVersion);
  v.alternative(fields.body);
  visit_head(v, fields);
  std::visit([&](auto& body) { write(&bytes, body); }, fields.body);
  return bytes;
}

Result<VoterFrame> decode_frame(std::string_view bytes) {
  FieldReader v(bytes);
  std::uint16_t version = 0;
  v.number(version);
  if (version > kVoterWireVersion) {
    return core::newer_version("a voter sent a frame of", version, kVoterWireVersion);
  }
  VoterFrame frame;
  v.check(version > 0);
  v.alternative(frame.body);
  visit_head(v, frame);
  const Status fault = std::visit([&](auto& body) { return read(v, body); }, frame.body);
  if (!v.ok()) return not_a_frame(v.reason());
  if (!fault.ok()) return fault;
  return frame;
}

}  // namespace elastic::succession
