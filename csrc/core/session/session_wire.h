#pragma once

// What an agent and its coordinator say to each other: the session protocol.
//
// The port of a coordinator also speaks TCPStore's protocol (core/store/wire.h), and a session
// begins as a conversation in it. The client sends VALIDATE and PING, as every client of a TCPStore
// does, and CHECK of kReservedKey. A coordinator answers that the key is ready, though nobody can
// set it; a server that is only a store answers that it is not; whatever else listens answers
// something else, or nothing. Only after "ready" the client sends kMagic, and from there on both
// sides send frames, first a hello each. The server reads no frame before the client's hello, and
// the client may send further frames right behind its own.
//
// A frame is a u32 length and that many bytes: one for the kind of message, then its fields, as
// core/base/byte_io.h has them. A refusal before the server's hello is a Refused frame instead of
// it. docs/protocol.md has the grammar.
//
// Pure.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "elastic/rendezvous.h"

namespace elastic::session {

// No client of a TCPStore can have it for a key of its user's: those begin with '/'.
inline constexpr std::string_view kReservedKey = "elastic/coordinator";
// Its first byte is no opcode of a store's.
inline constexpr std::string_view kMagic =
    "\xE5"
    "elastic";

// The version that this code speaks, and the oldest one.
inline constexpr std::uint16_t kVersion = 1;
inline constexpr std::uint16_t kOldestVersion = 1;

inline constexpr std::size_t kFrameHeaderBytes = sizeof(std::uint32_t);
// What follows the length: a join with all the settings that are allowed fits.
inline constexpr std::size_t kFrameBytesMax = std::size_t{1} << 20;
inline constexpr std::size_t kJobIdBytesMax = 1024;
inline constexpr std::size_t kAuthenticationBytesMax = 64 << 10;
// The member list is told in pages.
inline constexpr std::size_t kMembersPerPage = 256;

// ---- Client to server. What a message of rdzv is about is the session's node: the ids in Failed,
// Gone, Done, Leave and Close are not sent, and are zero after decoding.

struct ClientHello {
  std::uint16_t version = kVersion;
  std::uint16_t oldest_version = kOldestVersion;
  std::uint64_t capabilities = 0;  // bits that the other side does not know mean nothing to it
  std::string job_id = {};
  std::string authentication = {};  // nothing yet
  NodeId node = {};

  bool operator==(const ClientHello&) const = default;
};

// Answered at once, so that the client learns how far the coordinator's clock is from its own.
struct Heartbeat {
  Instant sent;  // on the client's clock

  bool operator==(const Heartbeat&) const = default;
};

// Asks for a page of the current round's members, from this rank on.
struct FetchMembers {
  std::int32_t first = 0;

  bool operator==(const FetchMembers&) const = default;
};

// ---- Server to client. The `to` of rdzv's actions is the session's node, and not sent either.

struct ServerHello {
  std::uint16_t version = kVersion;
  std::uint16_t oldest_version = kOldestVersion;
  std::uint64_t capabilities = 0;
  std::uint64_t incarnation = 0;  // random: another one means that the coordinator was restarted
  Instant time = {};              // on the coordinator's clock

  bool operator==(const ServerHello&) const = default;
};

struct HeartbeatReply {
  Instant sent;  // as the heartbeat had it
  Instant time;  // on the coordinator's clock

  bool operator==(const HeartbeatReply&) const = default;
};

struct Members {
  std::uint64_t round = 0;
  std::int32_t total = 0;
  std::int32_t first = 0;  // rank of the first that follows
  std::vector<RoundMember> members;

  bool operator==(const Members&) const = default;
};

// Pushed when it changes, after the hello unless it is zero.
struct Counts {
  std::int32_t waiting_nodes = 0;  // for whom the running round could be restarted
  std::int32_t spare_nodes = 0;

  bool operator==(const Counts&) const = default;
};

using ClientMessage = std::variant<ClientHello, Heartbeat, FetchMembers, rdzv::Join, rdzv::Resume,
                                   rdzv::Failed, rdzv::Gone, rdzv::Done, rdzv::Leave, rdzv::Close>;
using ServerMessage =
    std::variant<ServerHello, HeartbeatReply, Members, Counts, rdzv::Round, rdzv::Restart,
                 rdzv::Waiting, rdzv::Resumed, rdzv::Evicted, rdzv::Superseded, rdzv::Refused,
                 rdzv::TimedOut, rdzv::Closed, rdzv::RoundOver>;

// Appends one frame.
void append(std::string* out, const ClientMessage& message);
void append(std::string* out, const ServerMessage& message);

enum class DecodeStatus : std::uint8_t { kMessage, kNeedMore, kViolation };

struct DecodeResult {
  DecodeStatus status = DecodeStatus::kNeedMore;
  // kMessage: of the frame. kNeedMore: how many bytes it takes to go on.
  std::size_t bytes = 0;
  Status error;  // kViolation: why this stream is of no more use
};

// Decodes the frame at the beginning of `bytes`. Nothing is kept between calls: after kNeedMore ask
// again when more is there. A hello whose versions and ours do not meet is a violation that names
// both.
DecodeResult decode(std::string_view bytes, ClientMessage* message);
DecodeResult decode(std::string_view bytes, ServerMessage* message);

}  // namespace elastic::session
