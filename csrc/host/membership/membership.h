#pragma once

// A node's membership of its job: what it sends to the rendezvous, and what it receives.
//
// The agent does not know where the rendezvous runs. With one node the machine runs in the same
// process (LocalMembership); otherwise it is reached through a session with a coordinator
// (Session).
//
// A statement is sent once: an implementation repeats it after a broken connection or a lost write
// until the rendezvous has it, and handles heartbeats, resumes and clocks. Loop thread only; events
// come from the loop, never from inside a call of the agent.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/drain/drain_types.h"
#include "core/hang/hang_types.h"
#include "core/rendezvous/rendezvous_events.h"
#include "core/session/node_reports.h"
#include "elastic/coordinator.h"
#include "elastic/observer.h"
#include "elastic/rendezvous_options.h"
#include "elastic/status.h"
#include "os/loop/registration.h"

namespace elastic::host {

// The rendezvous was reached, so the address at which other nodes reach this one is known.
// Delivered once, as the first event; the agent binds its store and joins.
struct MembershipReady {
  std::string address;  // numeric; a loopback address only while all nodes are on this host
  bool hosts_coordinator = false;  // the coordinator runs in this process
};

// To be logged: what the node is waiting for, or that the coordinator cannot be reached.
struct MembershipProgress {
  std::string message;
  std::optional<Instant> deadline = {};  // the time of what the message ends with: ", gives up"
};

// What the coordinator in this process logged: joins, evictions, protocol faults of clients.
struct MembershipCoordinatorLog {
  std::string line;
};

// Who coordinates the job, and that it moved; delivered when either changes.
struct MembershipCoordinator {
  std::shared_ptr<const CoordinatorInfo> coordinator;
  bool is_here = false;                       // in this process
  std::optional<CoordinatorMove> moved = {};  // to where it is now
  std::string message = {};                   // one sentence about the move
};

// Clients at these addresses may use the workers' store of this round, which has not begun yet.
struct MembershipStoreClients {
  std::uint64_t round = 0;
  std::vector<std::string> addresses;
};

// The rendezvous can no longer be reached: the agent stops its workers and ends with `exit_code`.
struct MembershipLost {
  int exit_code = 0;
  std::string message;
};

// The job has an observer: the agent reports its workers now and after each change, until `is_on`
// is false.
struct MembershipWatch {
  bool is_on = false;
};

// Also delivered: hang::StacksWanted and drain::Order, to which the agent replies with report(),
// hang::Verdict, drain::News, snapshot::CopyOrder, gate::ProbeOrder and gate::NetworkFinding.
using MembershipEvent =
    std::variant<MembershipReady, MembershipProgress, MembershipCoordinatorLog,
                 MembershipCoordinator, MembershipLost, MembershipStoreClients, MembershipWatch,
                 rdzv::Round, rdzv::Restart, rdzv::Waiting, rdzv::Evicted, rdzv::Refused,
                 rdzv::TimedOut, rdzv::Closed, rdzv::RoundOver, hang::StacksWanted, hang::Verdict,
                 drain::Order, drain::News, snapshot::CopyOrder, gate::ProbeOrder,
                 gate::NetworkFinding>;

class Membership {
 public:
  // Must not destroy its caller, and so not the membership.
  using Sink = std::function<void(const MembershipEvent&)>;

  // Without a Leave or a result before it, the node counts as crashed.
  virtual ~Membership() = default;
  // FailureReport.at is on this process's clock; an implementation converts it to the clock of the
  // process that runs the machine.
  virtual void send(const core::NodeStatement& statement) = 0;
  // The node joins later; if the job ends before, it receives the result.
  virtual void introduce(const core::NodeInfo& /*node*/) {}
  // The node does not join. What it has reported is sent, and Refused follows.
  virtual void report_only(const NodeId& /*node*/) {}
  // For observers; lost if the connection breaks.
  virtual void send_workers(const WorkerReport& report) = 0;
  // About the workers. A drain::Notice requests that all ranks stop at one step.
  virtual void report(const core::NodeReport& report) = 0;
  // The nodes for which the running round could be restarted, without spares, as last received. No
  // request is sent.
  virtual int waiting_nodes() const = 0;
  // Calls `done` from the loop, once, when every statement was acknowledged or no longer can be
  // and no other node needs a coordinator in this process; after `limit` at the latest.
  virtual void drain(Duration limit, std::function<void()> done) = 0;
};

// By the node's options: begins to look for the rendezvous. `loop` and what `sink` uses outlive the
// membership; events come from the loop, the first of them MembershipReady or MembershipLost. An
// error means invalid options (kInvalidArgument) or a lack of resources, not that no process has
// answered yet.
Result<std::unique_ptr<Membership>> open_membership(os::EventLoop* loop,
                                                    const RendezvousOptions& options,
                                                    const std::string& run_id,
                                                    Membership::Sink sink,
                                                    std::uint16_t liveness_port = 0);

// ---- A node's identity, for agents and for programs that start their own workers.

// A new incarnation with the values of the options; without name, address and workers.
core::NodeInfo make_node(const RendezvousOptions& options);

// The node's name in messages, and a sort key of ranks: the host's name and the process id, and a
// number for later nodes of one process. The address replaces a host name that names no host.
// Another one at each call. Any thread.
std::string make_node_name(const std::string& address);

// Where a coordinator is looked for: the endpoint, and the further ones.
std::vector<Endpoint> endpoints_of(const RendezvousOptions& options);

// The host to bind the workers' store at, for a node that others reach at `address`. "": every
// interface, because a loopback address does not show from where other nodes will connect.
std::string store_host(const RendezvousOptions& options, const std::string& address);

}  // namespace elastic::host
