// One list of fields for each message serves both directions, as in rendezvous_codec.cc; the kinds
// below are the protocol's and never change their meaning.

#include "core/session/session_wire.h"

#include <cstring>
#include <utility>

#include "core/rendezvous/rendezvous_fields.h"

namespace elastic::session {
namespace {

using core::FieldReader;
using core::FieldWriter;
using core::kMessageBytesMax;

// The kind of each message. The two directions share no number.
template <typename Message>
inline constexpr std::uint8_t kKind = 0;
template <>
inline constexpr std::uint8_t kKind<ClientHello> = 1;
template <>
inline constexpr std::uint8_t kKind<Heartbeat> = 2;
template <>
inline constexpr std::uint8_t kKind<FetchMembers> = 3;
template <>
inline constexpr std::uint8_t kKind<rdzv::Join> = 4;
template <>
inline constexpr std::uint8_t kKind<rdzv::Resume> = 5;
template <>
inline constexpr std::uint8_t kKind<rdzv::Failed> = 6;
template <>
inline constexpr std::uint8_t kKind<rdzv::Gone> = 7;
template <>
inline constexpr std::uint8_t kKind<rdzv::Done> = 8;
template <>
inline constexpr std::uint8_t kKind<rdzv::Leave> = 9;
template <>
inline constexpr std::uint8_t kKind<rdzv::Close> = 10;
template <>
inline constexpr std::uint8_t kKind<ServerHello> = 65;
template <>
inline constexpr std::uint8_t kKind<HeartbeatReply> = 66;
template <>
inline constexpr std::uint8_t kKind<Members> = 67;
template <>
inline constexpr std::uint8_t kKind<Counts> = 68;
template <>
inline constexpr std::uint8_t kKind<rdzv::Round> = 69;
template <>
inline constexpr std::uint8_t kKind<rdzv::Restart> = 70;
template <>
inline constexpr std::uint8_t kKind<rdzv::Waiting> = 71;
template <>
inline constexpr std::uint8_t kKind<rdzv::Resumed> = 72;
template <>
inline constexpr std::uint8_t kKind<rdzv::Evicted> = 73;
template <>
inline constexpr std::uint8_t kKind<rdzv::Superseded> = 74;
template <>
inline constexpr std::uint8_t kKind<rdzv::Refused> = 75;
template <>
inline constexpr std::uint8_t kKind<rdzv::TimedOut> = 76;
template <>
inline constexpr std::uint8_t kKind<rdzv::Closed> = 77;
template <>
inline constexpr std::uint8_t kKind<rdzv::RoundOver> = 78;

template <typename Visitor>
void visit_report(Visitor& v, FailureReport& failure) {
  visit(v, failure);
  v.instant(failure.at);
}

template <typename Visitor>
void visit_settings(Visitor& v, JobSettings& settings) {
  visit(v, settings);
  visit_timings(v, settings);
}

template <typename Visitor>
void fields(Visitor& v, ClientHello& hello) {
  v.number(hello.version);
  v.number(hello.oldest_version);
  v.number(hello.capabilities);
  v.text(hello.job_id, kJobIdBytesMax);
  v.text(hello.authentication, kAuthenticationBytesMax);
  visit(v, hello.node);
}

template <typename Visitor>
void fields(Visitor& v, ServerHello& hello) {
  v.number(hello.version);
  v.number(hello.oldest_version);
  v.number(hello.capabilities);
  v.number(hello.incarnation);
  v.instant(hello.time);
}

template <typename Visitor>
void fields(Visitor& v, Heartbeat& beat) {
  v.instant(beat.sent);
}

template <typename Visitor>
void fields(Visitor& v, HeartbeatReply& reply) {
  v.instant(reply.sent);
  v.instant(reply.time);
}

template <typename Visitor>
void fields(Visitor& v, FetchMembers& request) {
  v.number(request.first);
}

template <typename Visitor>
void fields(Visitor& v, Members& page) {
  v.number(page.round);
  v.number(page.total);
  v.number(page.first);
  v.list(page.members, kMembersPerPage, [&](RoundMember& member) { visit(v, member); });
}

template <typename Visitor>
void fields(Visitor& v, Counts& counts) {
  v.number(counts.waiting_nodes);
  v.number(counts.spare_nodes);
}

template <typename Visitor>
void fields(Visitor& v, rdzv::Join& join) {
  visit(v, join.node);
  visit_settings(v, join.settings);
}

template <typename Visitor>
void fields(Visitor& v, rdzv::Resume& resume) {
  visit(v, resume.node);
  visit_settings(v, resume.settings);
  v.choice(resume.phase, rdzv::NodePhase::kDone);
  v.optional(resume.last, [&](HeldRound& held) { visit(v, held); });
  v.optional(resume.failure, [&](FailureReport& failure) { visit_report(v, failure); });
}

template <typename Visitor>
void fields(Visitor& v, rdzv::Failed& failed) {
  v.number(failed.round);
  visit_report(v, failed.failure);
}

template <typename Visitor>
void fields(Visitor& v, rdzv::Gone& gone) {
  v.number(gone.round);
}

template <typename Visitor>
void fields(Visitor& v, rdzv::Done& done) {
  v.number(done.round);
}

template <typename Visitor>
void fields(Visitor& v, rdzv::Leave& leave) {
  v.text(leave.reason, kMessageBytesMax);
}

template <typename Visitor>
void fields(Visitor& v, rdzv::Close& close) {
  visit(v, close.result);
}

template <typename Visitor>
void fields(Visitor& v, rdzv::Round& round) {
  v.shared(round.record, [&](RoundRecord& record) { visit(v, record); });
  visit(v, round.own);
}

template <typename Visitor>
void fields(Visitor& v, rdzv::Restart& restart) {
  v.number(restart.round);
  v.choice(restart.cause, rdzv::RestartCause::kRejoin);
  v.text(restart.reason, kMessageBytesMax);
  v.duration(restart.grace);
}

template <typename Visitor>
void fields(Visitor& v, rdzv::Waiting& waiting) {
  v.text(waiting.sentence, kMessageBytesMax);
}

template <typename Visitor>
void fields(Visitor& v, rdzv::Resumed& resumed) {
  v.number(resumed.round);
}

template <typename Visitor>
void fields(Visitor& v, rdzv::Evicted& evicted) {
  v.number(evicted.round);
  v.text(evicted.reason, kMessageBytesMax);
}

template <typename Visitor>
void fields(Visitor& v, rdzv::Superseded& superseded) {
  v.number(superseded.round);
}

void fields(FieldWriter& v, rdzv::Refused& refused) {
  StatusCode code = refused.error.code();
  std::string message(refused.error.message());
  v.choice(code, StatusCode::kInternal);
  v.text(message, kMessageBytesMax);
}

void fields(FieldReader& v, rdzv::Refused& refused) {
  StatusCode code{};
  std::string message;
  v.choice(code, StatusCode::kInternal);
  v.text(message, kMessageBytesMax);
  if (code == StatusCode::kOk) v.fail();  // success refuses nothing
  refused.error = Status(code, std::move(message));
}

template <typename Visitor>
void fields(Visitor& v, rdzv::TimedOut& timed_out) {
  v.text(timed_out.sentence, kMessageBytesMax);
}

template <typename Visitor>
void fields(Visitor& v, rdzv::Closed& closed) {
  v.shared(closed.result, [&](JobResult& result) { visit(v, result); });
}

template <typename Visitor>
void fields(Visitor& v, rdzv::RoundOver& over) {
  v.number(over.round);
}

template <typename Message>
void append_frame(std::string* out, const Message& message) {
  static_assert(kKind<Message> != 0);
  const std::size_t begin = out->size();
  out->append(kFrameHeaderBytes, '\0');
  out->push_back(static_cast<char>(kKind<Message>));
  FieldWriter writer(out);
  fields(writer, const_cast<Message&>(message));  // a writer changes nothing
  const auto length = static_cast<std::uint32_t>(out->size() - begin - kFrameHeaderBytes);
  std::memcpy(out->data() + begin, &length, sizeof length);
}

Status violation(std::string message) {
  return Status(StatusCode::kPeerViolation, std::move(message));
}

std::string range_text(std::uint16_t oldest, std::uint16_t newest) {
  if (oldest == newest) return std::to_string(newest);
  return std::to_string(oldest) + " to " + std::to_string(newest);
}

// Nothing to agree on in a message that is no hello.
template <typename Message>
Status check(const Message&, const FieldReader& reader, std::uint8_t kind) {
  if (reader.ok()) return {};
  return violation("a session message of kind " + std::to_string(kind) + " is malformed");
}

template <typename Hello>
Status check_hello(const Hello& hello, const FieldReader& reader) {
  const bool has_more = hello.version > kVersion;  // what newer versions have put behind it
  if (!(has_more ? reader.ok_so_far() : reader.ok()) || hello.oldest_version > hello.version) {
    return violation("the hello of a session is malformed");
  }
  if (hello.oldest_version > kVersion || hello.version < kOldestVersion) {
    return Status(StatusCode::kFailedPrecondition,
                  "the other side speaks version " +
                      range_text(hello.oldest_version, hello.version) +
                      " of the session protocol, this one " + range_text(kOldestVersion, kVersion));
  }
  return {};
}
Status check(const ClientHello& hello, const FieldReader& reader, std::uint8_t) {
  return check_hello(hello, reader);
}
Status check(const ServerHello& hello, const FieldReader& reader, std::uint8_t) {
  return check_hello(hello, reader);
}

// Reads the body if it is of this kind; then says so.
template <typename Message, typename Variant>
bool read_as(std::uint8_t kind, std::string_view body, Variant* message, Status* error) {
  if (kind != kKind<Message>) return false;
  FieldReader reader(body);
  auto& read = message->template emplace<Message>();
  fields(reader, read);
  *error = check(read, reader, kind);
  return true;
}

template <typename... Messages>
DecodeResult decode_frame(std::string_view bytes, std::variant<Messages...>* message) {
  if (bytes.size() < kFrameHeaderBytes) return {DecodeStatus::kNeedMore, kFrameHeaderBytes, {}};
  std::uint32_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length == 0 || length > kFrameBytesMax) {
    return {DecodeStatus::kViolation, 0,
            violation("a session frame of " + std::to_string(length) + " bytes; 1 to " +
                      std::to_string(kFrameBytesMax) + " are allowed")};
  }
  const std::size_t whole = kFrameHeaderBytes + length;
  if (bytes.size() < whole) return {DecodeStatus::kNeedMore, whole, {}};
  const auto kind = static_cast<std::uint8_t>(bytes[kFrameHeaderBytes]);
  const std::string_view body = bytes.substr(kFrameHeaderBytes + 1, length - 1);
  Status error;
  if (!(read_as<Messages>(kind, body, message, &error) || ...)) {
    error = violation("a session message of kind " + std::to_string(kind) +
                      ", which is not known here");
  }
  if (!error.ok()) return {DecodeStatus::kViolation, 0, std::move(error)};
  return {DecodeStatus::kMessage, whole, {}};
}

}  // namespace

void append(std::string* out, const ClientMessage& message) {
  std::visit([out](const auto& one) { append_frame(out, one); }, message);
}
void append(std::string* out, const ServerMessage& message) {
  std::visit([out](const auto& one) { append_frame(out, one); }, message);
}
DecodeResult decode(std::string_view bytes, ClientMessage* message) {
  return decode_frame(bytes, message);
}
DecodeResult decode(std::string_view bytes, ServerMessage* message) {
  return decode_frame(bytes, message);
}

}  // namespace elastic::session
