#pragma once

// The session protocol: the messages between an agent and its coordinator.
//
// The port of a coordinator also serves TCPStore's protocol (core/store/wire.h), and a session
// begins with requests in it. The client sends VALIDATE and PING, like every client of a TCPStore,
// and CHECK of kReservedKey. A coordinator replies that the key is ready, although no client can
// set it; a plain store replies that it is not; any other server sends a different reply, or none.
// Only after "ready" the client sends kMagic. From then on both sides send frames, each a hello
// first. A client with a token (docs/security.md) also sends CHECK of kTokenKey, whose answer tells
// whether the coordinator has one. If it is ready too, the client begins a TLS handshake instead,
// and kMagic and the frames are encrypted. The client's hello must be its first frame, and further
// frames may follow it at once.
//
// A frame has the fields of one message (core/base/frame.h), then extensions. A server that
// rejects the client sends a Refused frame instead of its hello. docs/protocol.md has the grammar.
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

#include "core/base/frame.h"
#include "core/drain/drain_types.h"
#include "core/gate/finding.h"
#include "core/gate/probe_messages.h"
#include "core/hang/hang_types.h"
#include "core/register/register_types.h"
#include "core/rendezvous/rendezvous_events.h"
#include "core/succession/succession_types.h"
#include "elastic/observer.h"

namespace elastic::session {

// Cannot be a user's key: clients of a TCPStore prefix those with '/'.
inline constexpr std::string_view kReservedKey = "elastic/coordinator";
// Likewise. A coordinator replies that it is ready if its sessions need a token.
inline constexpr std::string_view kTokenKey = "elastic/coordinator/token";
// The first byte is not an opcode of a store.
inline constexpr std::string_view kMagic =
    "\xE5"
    "elastic";

// The first byte of a TLS connection, which is no opcode either.
inline constexpr char kTlsFirstByte = '\x16';

// The current version of the protocol, and the oldest supported one.
inline constexpr std::uint16_t kVersion = 3;
inline constexpr std::uint16_t kOldestVersion = 3;

// The limit of the length; a join with the longest valid settings fits.
inline constexpr std::size_t kFrameBytesMax = std::size_t{1} << 20;
using succession::kJobIdBytesMax;
inline constexpr std::size_t kEndpointsMax = 64;
// The list of nodes is sent to observers in pages.
inline constexpr std::size_t kNodesPerPage = 256;
// The rounds, and the ranks that lag, which an observer sees.
inline constexpr std::size_t kRoundsObserved = 64;
inline constexpr std::size_t kStragglersObserved = 64;
inline constexpr std::size_t kExcludedObserved = 256;
inline constexpr std::size_t kFindingsObserved = 64;
inline constexpr std::size_t kStoreClientsMax = 2048;  // in one message
// ClientHello.capabilities: the node replies to OpenPorts. 1 is an earlier version's.
inline constexpr std::uint64_t kOpensPorts = 2;

// ---- Client to server. Messages of rdzv refer to the session's node: the ids in Failed, Gone,
// Done, Leave and Close are not sent, and are zero after decoding.

struct NodeSecret {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  bool operator==(const NodeSecret&) const = default;
};

// What a node that takes part in the succession of its coordinator sends with each hello.
struct SuccessionHello {
  std::string voter_address = {};  // host:port of its voter port; an empty host: this connection's
  reg::LineageId lineage = {};     // of its job, as far as it knows; zero: none
  bool is_replicated = false;      // the lineage has several voters: only they name a coordinator

  bool operator==(const SuccessionHello&) const = default;
};

// The client is an observer, not a node: the fields about the node are ignored.
struct ObserverRequest {
  bool workers = false;  // with the state of each worker

  bool operator==(const ObserverRequest&) const = default;
};

struct ClientHello {
  std::uint16_t version = kVersion;
  std::uint16_t oldest_version = kOldestVersion;
  std::uint64_t capabilities = 0;  // unknown bits are ignored
  std::uint64_t term = 0;          // the highest that the client received
  std::string job_id = {};
  NodeId node = {};
  // Random, the same in all hellos of one node, and never published. Only a hello that repeats it
  // can replace the node's session, since the node's id is public.
  NodeSecret secret = {};
  // Counts this node's hellos. A hello that arrives after a later one is rejected.
  std::uint64_t attempt = 0;
  std::optional<SuccessionHello> succession = {};  // extension 1
  // The job's witness, as this node has resolved it: host:port. Extension 2.
  std::optional<std::string> witness = {};
  // Where this node looks for the job, if at several endpoints. Extension 3.
  std::optional<std::vector<std::string>> endpoints = {};
  // A port at which this node's agent and its guardian listen until both have ended. Extension 4.
  std::optional<std::uint16_t> liveness_port = {};
  // Extension 128. A coordinator that does not know observers refuses the session.
  std::optional<ObserverRequest> observer = {};
  // The client is an elected coordinator, which announces itself at the job's endpoint;
  // the fields about a node are ignored. Incumbent is the reply. Extension 129, as 128.
  std::optional<succession::Incumbent> announced = {};

  bool operator==(const ClientHello&) const = default;
};

// The coordinator replies at once, so that the client can estimate the offset of its clock.
struct Heartbeat {
  Instant sent;  // on the client's clock

  bool operator==(const Heartbeat&) const = default;
};

// The workers of a node changed, and the coordinator has requested such reports.
struct Workers {
  WorkerReport report;
};

// The observer has processed the last NodePage or Beats, and accepts the next one.
struct ObserverReady {};

// An observer requests the stacks of all workers of the job.
struct RequestStacks {};

// An observer requests that all ranks stop at one step, or that a node leaves at one. Needs the
// token of the job, if there is one: an observer's token only allows reading.
struct RequestDrain {
  drain::Notice notice;                  // without a departure
  std::optional<std::string> node = {};  // that leaves: its name, its host or its address
};

// An observer excludes a host from the job, or readmits it. Needs the token of the job, as
// RequestDrain.
struct RequestHost {
  std::string host;  // its name or address, or the name of one of its nodes
  std::string reason;
  bool is_readmission = false;
};

// The reply to OpenPorts.
struct OpenedPorts {
  std::string address = {};  // as SuccessionHello.voter_address; "": a port is not open
  std::string error = {};    // why not

  bool operator==(const OpenedPorts&) const = default;
};

// ---- Server to client. The `to` of rdzv's actions is the session's node, and is not sent either.

struct ServerHello {
  std::uint16_t version = kVersion;
  std::uint16_t oldest_version = kOldestVersion;
  std::uint64_t capabilities = 0;
  std::uint64_t term = 1;         // counts the job's coordinators
  std::uint64_t incarnation = 0;  // random: a change means that the coordinator was restarted
  Instant time = {};              // on the coordinator's clock
  // The job whose agent runs this coordinator. Extension 1.
  std::optional<std::string> host_job = {};

  bool operator==(const ServerHello&) const = default;
};

struct HeartbeatReply {
  Instant sent;  // from the heartbeat
  Instant time;  // on the coordinator's clock
  // For how long the coordinator has reached no majority of its voters. Extension 1.
  std::optional<Duration> alone = {};

  bool operator==(const HeartbeatReply&) const = default;
};

// Sent when it changes, and after the hello unless it is zero.
struct Counts {
  std::int32_t waiting_nodes = 0;  // nodes that a restart of the round would admit
  std::int32_t spare_nodes = 0;

  bool operator==(const Counts&) const = default;
};

// The job's timings, which its first node decides. Every node uses them instead of its own. Sent
// with the first reply to a join, and again when a new generation of the job has others.
struct Timings {
  JobSettings settings;  // only its timings are sent
};

// The coordinator ends before the job does. The client searches for a new one at the endpoint.
struct Leaving {
  std::string reason;

  bool operator==(const Leaving&) const = default;
};

// Who coordinates the job: sent after the hello and on each change, to nodes whose hello has a
// SuccessionHello. `is_elsewhere`: this process does not; the client closes the session and
// connects to the incumbent's address, or keeps searching if that is empty.
//
// As the reply to ClientHello.announced: the coordinator to which this process directs the nodes of
// the job (is_elsewhere), or which it runs.
struct Incumbent {
  succession::Incumbent incumbent;
  bool is_elsewhere = false;
  // The node's job has dissolved, because the incumbent coordinates a job of the same id: the node
  // stops its workers and joins that one. Why. Extension 1.
  std::optional<std::string> displaced = {};

  bool operator==(const Incumbent&) const = default;
};

// Whether the job's coordinator has sent the message, which shows that it lives; another process
// only directs to it. `Message`: a variant with Incumbent.
template <typename Message>
bool is_from_coordinator(const Message& message) {
  const auto* const incumbent = std::get_if<Incumbent>(&message);
  return incumbent == nullptr || !incumbent->is_elsewhere;
}

// The addresses from which the workers' store of the round accepts clients. A coordinator with a
// token sends them to the node of rank 0, before the Round; several messages if they are many.
struct StoreClients {
  std::uint64_t round = 0;
  std::vector<std::string> addresses;  // numeric

  bool operator==(const StoreClients&) const = default;
};

// The coordinator of a job with one voter ends before the job, and this node may succeed it: it
// opens a voter port, and a port for the coordinator.
struct OpenPorts {
  succession::Incumbent coordinator;

  bool operator==(const OpenPorts&) const = default;
};

// Requests Workers at once and after each change, or ends that.
struct WatchWorkers {
  bool is_on = false;
};

// ---- Server to observer.

// All facts but the nodes.
struct JobFacts {
  ObservedJob job;
};

// Nodes that are new or have changed, and nodes that are no longer there.
struct NodePage {
  bool is_last = false;  // the observer has received every change
  std::vector<ObservedNode> nodes;
  std::vector<NodeId> removed;
};

// The time since the last message of each node, in the order of their ids.
struct Beats {
  std::vector<std::uint32_t> silence_ms;
};

// The reply to RequestStacks: one screen.
struct StacksReport {
  std::string text;
};

// The reply to RequestDrain, once a step is agreed, or cannot be.
struct DrainReport {
  bool is_agreed = false;
  std::string text;
};

// The reply to RequestHost, when the job's record has it.
struct HostReport {
  bool is_done = false;
  std::string text;
};

// ---- The tables.

using core::Entry;
using core::MessageTable;
using core::Need;

// Kinds are unique over both directions.
using ClientMessages = MessageTable<
    Entry<1, ClientHello>,   //
    Entry<2, Heartbeat>,     //
    Entry<4, rdzv::Join>,    //
    Entry<5, rdzv::Resume>,  //
    Entry<6, rdzv::Failed>,  //
    Entry<7, rdzv::Gone>,    //
    Entry<8, rdzv::Done>,    //
    Entry<9, rdzv::Leave>,   //
    Entry<10, rdzv::Close>,  //
    Entry<16, Workers, Need::kOptional>, Entry<17, ObserverReady>,
    Entry<20, hang::NodeProgress, Need::kOptional>, Entry<21, hang::NodeStacks, Need::kOptional>,
    Entry<22, RequestStacks>, Entry<23, hang::RankFinished, Need::kOptional>,
    Entry<24, drain::Notice, Need::kOptional>,  //
    Entry<25, drain::Reply, Need::kOptional>,   //
    Entry<26, RequestDrain>, Entry<28, gate::Finding, Need::kOptional>,
    Entry<29, hang::NodeSignatures, Need::kOptional>,
    Entry<30, snapshot::CopyReport, Need::kOptional>, Entry<31, RequestHost>,
    Entry<32, gate::ProbeReport, Need::kOptional>, Entry<33, OpenedPorts, Need::kOptional>>;
using ServerMessages = MessageTable<
    Entry<65, ServerHello>,               //
    Entry<66, HeartbeatReply>,            //
    Entry<68, Counts, Need::kOptional>,   //
    Entry<69, rdzv::Round>,               //
    Entry<70, rdzv::Restart>,             //
    Entry<71, rdzv::Waiting>,             //
    Entry<72, rdzv::Resumed>,             //
    Entry<73, rdzv::Evicted>,             //
    Entry<75, rdzv::Refused>,             //
    Entry<76, rdzv::TimedOut>,            //
    Entry<77, rdzv::Closed>,              //
    Entry<78, rdzv::RoundOver>,           //
    Entry<79, Timings, Need::kOptional>,  //
    Entry<80, Leaving, Need::kOptional>,  //
    Entry<81, Incumbent, Need::kOptional>, Entry<88, StoreClients, Need::kOptional>,
    Entry<90, hang::StacksWanted, Need::kOptional>,  //
    Entry<91, hang::Verdict, Need::kOptional>,       //
    Entry<92, StacksReport>,                         //
    Entry<93, drain::Order, Need::kOptional>,        //
    Entry<94, drain::News, Need::kOptional>,         //
    Entry<95, DrainReport>,                          //
    Entry<96, WatchWorkers, Need::kOptional>,        //
    Entry<97, JobFacts>,                             //
    Entry<98, NodePage>,                             //
    Entry<99, Beats, Need::kOptional>, Entry<100, snapshot::CopyOrder, Need::kOptional>,
    Entry<101, HostReport>, Entry<102, gate::ProbeOrder, Need::kOptional>,
    Entry<103, gate::NetworkFinding, Need::kOptional>, Entry<104, OpenPorts, Need::kOptional>>;

using ClientMessage = ClientMessages::Message;
using ServerMessage = ServerMessages::Message;

// Of these, what is about the workers of the node, and not about its round.
using AboutWorkers =
    std::variant<StoreClients, WatchWorkers, hang::StacksWanted, hang::Verdict, drain::Order,
                 drain::News, snapshot::CopyOrder, gate::ProbeOrder, gate::NetworkFinding>;

// Appends one frame.
void append(std::string* out, const ClientMessage& message);
void append(std::string* out, const ServerMessage& message);

using core::DecodeResult;
using core::DecodeStatus;

// Decodes the frame at the beginning of `bytes`. No state is kept between calls: after kNeedMore
// call again with more bytes. `peer_version` is from the peer's hello, for error messages. A hello
// whose version range does not overlap ours is a violation whose error names both ranges.
DecodeResult decode(std::string_view bytes, ClientMessage* message,
                    std::uint16_t peer_version = kVersion);
DecodeResult decode(std::string_view bytes, ServerMessage* message,
                    std::uint16_t peer_version = kVersion);

}  // namespace elastic::session
