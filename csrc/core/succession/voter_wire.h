#pragma once

// The protocol between two voters, and between a coordinator and a voter: how a connection begins
// and how its messages are delimited (elastic::voter), and what the machines at its ends send
// (elastic::succession). docs/protocol.md has the grammar. Pure.
//
// The side that connects sends kMagic. Then both sides send frames, each a greeting first, which
// names the job. A side that rejects the other one sends Refused instead and closes. Messages prove
// by themselves which node has sent them.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "core/base/frame.h"
#include "core/register/register_codec.h"
#include "core/register/register_types.h"
#include "core/succession/job_record.h"
#include "core/succession/succession_types.h"
#include "elastic/status.h"

namespace elastic::voter {

inline constexpr std::string_view kMagic =
    "\xE5"
    "evoter\n";
inline constexpr std::uint16_t kVersion = 1;
inline constexpr std::uint16_t kOldestVersion = 1;
// Until the greeting was received: the longest valid greeting fits.
inline constexpr std::size_t kGreetingBytesMax = 4096;
// A message of the machines above, with the largest record.
inline constexpr std::size_t kFrameBytesMax = reg::kContentBytesMax + (std::size_t{1} << 20);

struct Greeting {
  std::uint16_t version = kVersion;
  std::uint16_t oldest_version = kOldestVersion;
  std::string job_id = {};

  bool operator==(const Greeting&) const = default;
};

struct Refused {
  std::string reason;

  bool operator==(const Refused&) const = default;
};

// A message of the machines above this protocol.
struct Payload {
  std::string bytes;

  bool operator==(const Payload&) const = default;
};

using Frames =
    core::MessageTable<core::Entry<1, Greeting>, core::Entry<2, Refused>, core::Entry<3, Payload>>;
using Frame = Frames::Message;

void append(std::string* out, const Frame& frame);
// What a frame with a payload of this size begins with; the payload follows.
std::string payload_head(std::size_t bytes);

using core::DecodeResult;
using core::DecodeStatus;

// Decodes the frame at the beginning of `bytes`, of at most `bytes_max`.
DecodeResult decode(std::string_view bytes, std::size_t bytes_max, Frame* frame);

// Why a node does not accept the greeting of another node; ok: it does. `own`: what it sends
// itself.
Status check_greeting(const Greeting& received, const Greeting& own);

}  // namespace elastic::voter

namespace elastic::succession {

// ---- What the machines send: the payload of a frame above.
//
// It is self-contained: it names the job, the sender and, where the sender knows it, the receiver.
// The transport does not read it. A receiver ignores what names another job or another receiver:
// the port may have been reused by another process.

inline constexpr std::uint16_t kVoterWireVersion = 2;
// A record of the largest job, and what surrounds it.
inline constexpr std::size_t kVoterFrameBytesMax = reg::kContentBytesMax + (std::size_t{64} << 10);

// Asks whether a process answers here that can vote in this lineage. The reply proves the
// incarnation, not only the port. A process that belongs to another lineage does not reply.
struct Probe {
  reg::LineageId lineage;

  bool operator==(const Probe&) const = default;
};
struct ProbeReply {
  reg::LineageId lineage;  // of the probe
  // What the process can read: it votes if that is the format of the coordinator.
  std::uint32_t record_format = succession::record_format();

  bool operator==(const ProbeReply&) const = default;
};
// Names the coordinator: a new coordinator sends it to every node of the record until the node has
// resumed, and a voter replies to Query with it.
struct Announce {
  Incumbent incumbent;

  bool operator==(const Announce&) const = default;
};
// Asks for the coordinator; sent by a node that has lost it, to the voters that it knows.
struct Query {
  std::uint64_t term = 0;  // the highest that the sender knows

  bool operator==(const Query&) const = default;
};

using VoterBody = std::variant<reg::Message, Probe, ProbeReply, Announce, Query>;

struct VoterFrame {
  std::string job_id;
  NodeId from;
  NodeId to;  // zero: any process at the address
  VoterBody body;

  bool operator==(const VoterFrame&) const = default;
};

// The lineage whose voter the frame is for; nullopt: it is for any.
std::optional<reg::LineageId> lineage_of(const VoterFrame& frame);

std::string encode_frame(const VoterFrame& frame);
// kPeerViolation: not a frame; kFailedPrecondition: of a newer version. The transport closes the
// connection after either.
Result<VoterFrame> decode_frame(std::string_view bytes);

// The connections of a voter port: on which one a node's last frame arrived, and its reply goes
// back.
class VoterConnections {
 public:
  // A frame of the node arrived. A connection is that of one process: what it sends under another
  // id replaces the first one, so that both maps are limited by the number of connections.
  void note(const NodeId& node, ConnectionId connection) {
    if (connection == 0) return;
    const auto [sender, is_new] = sender_of_.try_emplace(connection, node);
    if (!is_new && sender->second != node) {
      forget(sender->second, connection);
      sender->second = node;
    }
    last_of_[node] = connection;
  }
  // The node that has lost its last one; nullopt: none has.
  std::optional<NodeId> end(ConnectionId connection) {
    const auto sender = sender_of_.find(connection);
    if (sender == sender_of_.end()) return std::nullopt;
    const NodeId node = sender->second;
    sender_of_.erase(sender);
    if (!forget(node, connection)) return std::nullopt;
    return node;
  }
  // 0: the node has none.
  ConnectionId last_of(const NodeId& node) const {
    const auto found = last_of_.find(node);
    return found == last_of_.end() ? 0 : found->second;
  }

 private:
  // False: the node has a later one.
  bool forget(const NodeId& node, ConnectionId connection) {
    const auto found = last_of_.find(node);
    if (found == last_of_.end() || found->second != connection) return false;
    last_of_.erase(found);
    return true;
  }

  std::map<NodeId, ConnectionId> last_of_;
  std::map<ConnectionId, NodeId> sender_of_;  // the last one, of each open connection
};

}  // namespace elastic::succession
