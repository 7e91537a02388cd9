#include "core/session/session_wire.h"

#include <type_traits>
#include <utility>

#include "core/session/session_fields.h"

namespace elastic::session {
namespace {

using core::FieldReader;
using core::FieldWriter;

constexpr core::Protocol kSessions = {"session", kFrameBytesMax};

std::string range_text(std::uint16_t oldest, std::uint16_t newest) {
  if (oldest == newest) return std::to_string(newest);
  return std::to_string(oldest) + " to " + std::to_string(newest);
}

std::string known_versions(std::uint16_t peer_version) {
  return "the peer uses version " + std::to_string(peer_version) +
         " of the session protocol, this process version " + range_text(kOldestVersion, kVersion);
}

// Extensions of newer versions are skipped or rejected; all other bytes must be fields.
Status check(FieldReader* reader, std::uint8_t kind, std::uint16_t peer_version) {
  const auto unknown = reader->skip_extensions();
  if (!reader->ok()) return core::malformed(kSessions, kind, *reader);
  if (!unknown) return {};
  return Status(StatusCode::kFailedPrecondition,
                "a session message of kind " + std::to_string(kind) + " needs extension " +
                    std::to_string(*unknown) +
                    ", which is unknown here: " + known_versions(peer_version));
}

Status unknown_message(std::uint8_t kind, std::uint16_t peer_version) {
  return {StatusCode::kFailedPrecondition, "a session message of kind " + std::to_string(kind) +
                                               " is unknown here: " + known_versions(peer_version)};
}

Status check_versions(std::uint16_t oldest, std::uint16_t newest) {
  if (oldest > newest) {
    return {StatusCode::kPeerViolation, "the hello of a session is malformed"};
  }
  if (oldest > kVersion || newest < kOldestVersion) {
    return Status(StatusCode::kFailedPrecondition, "the peer uses version " +
                                                       range_text(oldest, newest) +
                                                       " of the session protocol, this process " +
                                                       range_text(kOldestVersion, kVersion));
  }
  return {};
}

template <typename Message>
Status read_message(FieldReader* reader, std::uint8_t kind, std::uint16_t peer_version,
                    Message* message) {
  fields(*reader, *message);
  if constexpr (std::is_same_v<Message, ClientHello> || std::is_same_v<Message, ServerHello>) {
    const Status fault = check(reader, kind, message->version);
    return fault.ok() ? check_versions(message->oldest_version, message->version) : fault;
  } else {
    return check(reader, kind, peer_version);
  }
}

constexpr auto kFields = [](FieldWriter& writer, auto& message) { fields(writer, message); };

template <typename Table>
DecodeResult decode_any(std::string_view bytes, Table table, typename Table::Message* message,
                        std::uint16_t peer_version) {
  return core::decode_message(
      bytes, kSessions, table, message,
      [&](FieldReader& reader, std::uint8_t kind, auto& one) {
        return read_message(&reader, kind, peer_version, &one);
      },
      [&](std::uint8_t kind) { return unknown_message(kind, peer_version); });
}

}  // namespace

void append(std::string* out, const ClientMessage& message) {
  core::append_message(out, ClientMessages{}, message, kFields);
}
void append(std::string* out, const ServerMessage& message) {
  core::append_message(out, ServerMessages{}, message, kFields);
}
DecodeResult decode(std::string_view bytes, ClientMessage* message, std::uint16_t peer_version) {
  return decode_any(bytes, ClientMessages{}, message, peer_version);
}
DecodeResult decode(std::string_view bytes, ServerMessage* message, std::uint16_t peer_version) {
  return decode_any(bytes, ServerMessages{}, message, peer_version);
}

}  // namespace elastic::session
