// One list of fields for each frame serves both directions, as in session_wire.cc.

#include "core/succession/voter_wire.h"

#include <utility>

#include "core/base/variant_index.h"
#include "core/succession/succession_fields.h"

namespace elastic::succession {
namespace {

using core::FieldReader;
using core::FieldWriter;

constexpr std::size_t kBodies = std::variant_size_v<VoterBody>;

Status not_a_frame(const std::string& reason = {}) {
  return {StatusCode::kPeerViolation, "this is not a frame of a voter" + reason};
}

void write(FieldWriter& v, reg::Message& message) {
  std::string bytes = reg::encode_message(message);
  v.bytes(bytes, kVoterFrameBytesMax);
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
  v.tail(message.incumbent.replaces, kReplacedMax, [&](Replaced& one) { visit(v, one); });
}
template <typename Visitor>
void fields(Visitor& v, Query& message) {
  v.number(message.term);
}
template <typename Visitor>
void fields(Visitor& v, Override& message) {
  v.number(message.nonce);
  v.flag(message.is_survey);
}
template <typename Visitor>
void fields(Visitor& v, OverrideReply& message) {
  v.number(message.nonce);
  v.flag(message.is_done);
  v.text(message.text, kMessageBytesMax);
}

template <typename Body>
void write(FieldWriter& v, Body& body) {
  fields(v, body);
}

template <typename Body>
Status read(FieldReader& v, Body& body) {
  fields(v, body);
  return {};
}

template <typename Visitor>
void visit_head(Visitor& v, VoterFrame& frame) {
  v.job_id(frame.job_id, kJobIdBytesMax);
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
  core::ByteWriter head(&bytes);
  head.integer(kVoterWireVersion);
  head.integer(static_cast<std::uint8_t>(frame.body.index()));
  FieldWriter v(&bytes);
  auto& fields = const_cast<VoterFrame&>(frame);  // the writer changes nothing of it
  visit_head(v, fields);
  std::visit([&](auto& body) { write(v, body); }, fields.body);
  return bytes;
}

Result<VoterFrame> decode_frame(std::string_view bytes) {
  core::ByteReader head(bytes);
  const auto version = head.integer<std::uint16_t>();
  const auto kind = head.integer<std::uint8_t>();
  if (head.ok() && version > kVoterWireVersion) {
    return Status(StatusCode::kFailedPrecondition,
                  "a voter sent a frame of a newer version (format " + std::to_string(version) +
                      ", this one reads up to " + std::to_string(kVoterWireVersion) + ")");
  }
  if (!head.ok() || version == 0 || kind >= kBodies) return not_a_frame();
  VoterFrame frame;
  frame.body = core::alternative_of<VoterBody>(kind);
  FieldReader v(bytes.substr(bytes.size() - head.left()));
  visit_head(v, frame);
  if (Status fault = std::visit([&](auto& body) { return read(v, body); }, frame.body);
      !fault.ok()) {
    return fault;
  }
  if (!v.ok()) return not_a_frame(v.reason());
  return frame;
}

}  // namespace elastic::succession
