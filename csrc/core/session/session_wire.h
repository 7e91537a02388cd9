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
// A frame is a u32 length and that many bytes: the kind of message, flags, its fields as
// core/base/byte_io.h has them, then extensions. A refusal before the server's hello is a Refused
// frame instead of it. docs/protocol.md has the grammar.
//
// Growth. A new message gets a line in one of the two tables below, and its fields in
// session_wire.cc. A receiver that does not know a message skips it if its sender has marked it as
// optional; a required one ends the session with both versions named. A new field of an existing
// message is an extension, which is optional or required in the same way.
//
// Pure.

#include <cstddef>
#include <cstdint>
#include <optional>
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

struct NodeSecret {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  bool operator==(const NodeSecret&) const = default;
};

struct ClientHello {
  std::uint16_t version = kVersion;
  std::uint16_t oldest_version = kOldestVersion;
  std::uint64_t capabilities = 0;  // bits that the other side does not know mean nothing to it
  std::uint64_t term = 0;          // the highest that the client knows of
  std::string job_id = {};
  std::string authentication = {};  // nothing yet
  NodeId node = {};
  // Random, the same in all hellos of one node, and known to nobody else. Only a hello that repeats
  // it can take the place of the node's session: the node's id is published.
  NodeSecret secret = {};
  // Counts this node's hellos. One that arrives after its successor is refused.
  std::uint64_t attempt = 0;

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
  std::uint64_t term = 1;         // which of the job's coordinators this is, one after the other
  std::uint64_t incarnation = 0;  // random: another one means that the coordinator was restarted
  Instant time = {};              // on the coordinator's clock
  // The job whose agent this coordinator lives in, and ends with. Extension 1.
  std::optional<std::string> host_job = {};

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

// The job's timings: those of its first node. Every node uses them instead of its own. Sent with
// the first answer to a join, and again when a new generation of the job has others.
struct Timings {
  JobSettings settings;  // nothing else of it is sent
};

// The coordinator ends before the job does. The client looks for another one at the endpoint.
struct Leaving {
  std::string reason;

  bool operator==(const Leaving&) const = default;
};

// ---- The tables.

// A receiver that does not know a required message cannot go on.
enum class Need : std::uint8_t { kOptional, kRequired };

template <std::uint8_t kKindOf, typename M, Need kNeedOf = Need::kRequired>
struct Entry {
  using Message = M;
  static constexpr std::uint8_t kKind = kKindOf;  // never changes its meaning
  static constexpr Need kNeed = kNeedOf;
};

template <typename... Entries>
struct MessageTable {
  using Message = std::variant<typename Entries::Message...>;
};

// The two directions share no kind.
using ClientMessages = MessageTable<Entry<1, ClientHello>,   //
                                    Entry<2, Heartbeat>,     //
                                    Entry<3, FetchMembers>,  //
                                    Entry<4, rdzv::Join>,    //
                                    Entry<5, rdzv::Resume>,  //
                                    Entry<6, rdzv::Failed>,  //
                                    Entry<7, rdzv::Gone>,    //
                                    Entry<8, rdzv::Done>,    //
                                    Entry<9, rdzv::Leave>,   //
                                    Entry<10, rdzv::Close>>;
using ServerMessages = MessageTable<Entry<65, ServerHello>,               //
                                    Entry<66, HeartbeatReply>,            //
                                    Entry<67, Members>,                   //
                                    Entry<68, Counts, Need::kOptional>,   //
                                    Entry<69, rdzv::Round>,               //
                                    Entry<70, rdzv::Restart>,             //
                                    Entry<71, rdzv::Waiting>,             //
                                    Entry<72, rdzv::Resumed>,             //
                                    Entry<73, rdzv::Evicted>,             //
                                    Entry<74, rdzv::Superseded>,          //
                                    Entry<75, rdzv::Refused>,             //
                                    Entry<76, rdzv::TimedOut>,            //
                                    Entry<77, rdzv::Closed>,              //
                                    Entry<78, rdzv::RoundOver>,           //
                                    Entry<79, Timings, Need::kOptional>,  //
                                    Entry<80, Leaving, Need::kOptional>>;

using ClientMessage = ClientMessages::Message;
using ServerMessage = ServerMessages::Message;

// Appends one frame.
void append(std::string* out, const ClientMessage& message);
void append(std::string* out, const ServerMessage& message);

enum class DecodeStatus : std::uint8_t {
  kMessage,
  kSkipped,  // a whole frame with an optional message of a newer version
  kNeedMore,
  kViolation,
};

struct DecodeResult {
  DecodeStatus status = DecodeStatus::kNeedMore;
  // kMessage, kSkipped: of the frame. kNeedMore: how many bytes it takes to go on.
  std::size_t bytes = 0;
  Status error;  // kViolation: why this stream is of no more use
};

// Decodes the frame at the beginning of `bytes`. Nothing is kept between calls: after kNeedMore ask
// again when more is there. `peer_version` is what the peer's hello said: an error names it. A
// hello whose versions and ours do not meet is a violation that names both, too.
DecodeResult decode(std::string_view bytes, ClientMessage* message,
                    std::uint16_t peer_version = kVersion);
DecodeResult decode(std::string_view bytes, ServerMessage* message,
                    std::uint16_t peer_version = kVersion);

}  // namespace elastic::session
