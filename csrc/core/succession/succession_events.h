#pragma once

// The events of the succession machine, and the actions of its owner (succession_machine.h).

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/register/register_types.h"
#include "core/succession/job_record.h"
#include "core/succession/succession_types.h"
#include "elastic/rendezvous_types.h"
#include "elastic/time.h"

namespace elastic::succession {

// ---- Events.

// The session received session::Incumbent from the coordinator itself (not is_elsewhere).
struct Informed {
  Incumbent incumbent;
};
// This node's own session has lost the coordinator: it was closed and not resumed within
// reconnect_grace (or the time of six round trips), or was silent for node_timeout. Fed once for
// each loss. With the coordinator in this process: not fed.
struct IncumbentLost {};
// A session with the same coordinator is open again. Informed also ends the loss.
struct IncumbentReturned {};
// A frame arrived on the voter port, or on a connection that Send has opened.
struct Received {
  ConnectionId connection = 0;
  std::string frame;
  std::string address = {};  // to which Send has opened the connection; "": it was accepted
};
// A connection to or from another voter has ended.
struct ConnectionEnded {
  ConnectionId connection = 0;
};
// The timings of the job, which its first node decides; the settings' timings until then.
struct Timings {
  Duration node_timeout{};
  Duration store_grace{};
};
// The voter ports of the job's witnesses, as its nodes know them.
struct Witnesses {
  std::vector<std::string> addresses;
};
// No connection to the address could be opened, or the one that was open has ended. is_refused: the
// peer answered that it does not coordinate the job, or nothing listens there. was_closed: our
// session with it had been closed before.
struct Unreachable {
  std::string address;
  bool is_refused = false;
  bool was_closed = false;
};
// The coordinator of this process accepts sessions at `address`. is_first: it was not elected.
struct CoordinatorStarted {
  std::string address;
  bool is_first = false;
};
// It could not be started: the authority is given up, and another voter stands.
struct CoordinatorFailed {
  std::string reason;
};
// All nodes of the coordinator in this process, whenever they or their connections change. This
// agent's own node included, and those that have left until their leave is acknowledged.
struct Nodes {
  std::vector<KnownNode> nodes;
};
// What the gate of the coordinator in this process proposes: one at a time.
struct Propose {
  std::uint64_t number = 0;
  reg::Content content;
  std::uint64_t term = 0;  // of that coordinator
};
// A client of the coordinator in this process knows a later term of its lineage: the authority has
// moved on (ClientHello).
struct LaterTermSeen {
  std::uint64_t term = 0;
};
// The coordinator in this process ends in order (SIGTERM, its agent is done): a node that answers
// succeeds it. StopCoordinator follows when that is settled, or at once if no node can.
// `awaits_nodes`: others may follow in Nodes, since a session was closed, or since a voter port is
// about to be opened; they have some seconds. Fed again when that changes.
struct Resign {
  bool awaits_nodes = false;
};
// An announcement met another coordinator of the job id: at the endpoint where this one announced
// itself, or one that announced itself here.
struct Met {
  Incumbent incumbent;
};
// Every endpoint of the job leads to the coordinator of this process.
struct EndpointsAreHere {};
struct Tick {};
using Event = std::variant<Informed, IncumbentLost, IncumbentReturned, Received, ConnectionEnded,
                           Unreachable, CoordinatorStarted, CoordinatorFailed, Nodes, Timings,
                           Witnesses, Propose, LaterTermSeen, Resign, Met, EndpointsAreHere, Tick>;

// ---- Actions.

// Send one frame. `connection` != 0: reply on that connection; if it has ended, use the address;
// without an address drop the frame. Otherwise: on an open connection to the address, or open one,
// and keep it for further frames. Frames to an address stay in order, or are lost together; a
// failure is reported as Unreachable.
struct Send {
  ConnectionId connection = 0;
  std::string address;
  std::string frame;
};
// The job has candidates for several voters: they keep its record from now on (RoundGate::keep_at).
// Feed its first proposal. Emitted once, and again if all nodes have left before a proposal.
struct BeginRecord {};
// Open a coordinator service in this process, restore `record` with term `term`
// (RendezvousMachine::succeed with lost_incumbent, RoundGate::restored, with the record's voter
// addresses), and feed CoordinatorStarted or CoordinatorFailed.
struct StartCoordinator {
  reg::LineageId lineage;
  std::uint64_t term = 0;
  JobRecord record;
  // The node whose process ran the former coordinator, which cannot resume; zero: it handed over.
  NodeId lost_incumbent = {};
  // A store keeps the record, from the job's first node on. Without a state nothing was decided
  // yet.
  bool is_kept = false;
};
// The coordinator in this process has lost its authority: it sends `successor` to its sessions
// where it is known (session::Incumbent with is_elsewhere), ends them (session::Leaving with
// `reason`), and directs later clients of the job to the successor.
struct StopCoordinator {
  std::string reason;
  std::optional<Incumbent> successor;
};
// This proposal is in force: RoundGate::in_force.
struct InForce {
  std::uint64_t number = 0;
};
// Tell the sessions of the coordinator in this process (session::Incumbent): now, and each further
// one after its hello.
struct Inform {
  Incumbent incumbent;
};
// This process's own session connects to this coordinator (SessionMachine::CoordinatorMoved).
struct Follow {
  Incumbent incumbent;
};
// The coordinator in this process reaches no majority of its voters, or does again. Decisions are
// held meanwhile; the sessions are served.
struct MajorityLost {
  std::vector<reg::Voter> unreachable;
};
struct MajorityRegained {};
// Announce the elected coordinator of this process at the job's endpoints
// (session::ClientHello.announced), and feed Met with what answers.
struct AnnounceAtEndpoints {
  Incumbent incumbent;
};
// The job of the coordinator in this process dissolves: `by` coordinates a job of the same id that
// continues. The sessions are directed there (session::Incumbent with displaced), and the machine,
// which ignores every later event, is replaced by a new one.
struct Displaced {
  Incumbent by;
};
// No majority for store_grace: the nodes stop their workers and end with exit code 77 and this
// reason. Follows StopCoordinator.
struct Expired {
  std::string reason;
};
struct Log {
  std::string message;
};
// The store that keeps the record cannot be used: the node ends with this exit code (StoreKeeper).
struct KeeperFault {
  int exit_code = 0;
  std::string message;
};
using Action = std::variant<Send, BeginRecord, StartCoordinator, StopCoordinator, InForce, Inform,
                            Follow, MajorityLost, MajorityRegained, AnnounceAtEndpoints, Displaced,
                            Expired, Log, KeeperFault>;

}  // namespace elastic::succession
