#pragma once

// A node's place in its job: what it says to the rendezvous, and what it hears.
//
// The agent does not know where the rendezvous runs. On one node the machine runs beside it
// (LocalMembership); otherwise it is reached through a session with a coordinator (Session), or
// runs over a shared compare-and-set state (SharedMembership).
//
// What is said once is said: an implementation repeats it after a broken connection or a lost
// write, until the rendezvous has it. Heartbeats, resuming and clocks are its business alone. Loop
// thread only; events come from the loop, never from inside a call of the agent's.

#include <functional>
#include <string>
#include <variant>

#include "elastic/rendezvous.h"

namespace elastic::host {

// The way to the rendezvous is known and with it the address at which other nodes reach this one.
// Told once, first; the agent binds its store and joins.
struct MembershipReady {
  std::string address;  // numeric; a loopback address only as long as no other host takes part
  bool hosts_coordinator = false;  // it runs in this process
};

// Something to log: what is being waited for, or that the coordinator cannot be reached at present.
struct MembershipProgress {
  std::string message;
};

// What the coordinator in this process logged: joins, evictions, protocol faults of clients.
struct MembershipCoordinatorLog {
  std::string line;
};

// The end of the way: the agent stops its workers and finishes with `exit_code`.
struct MembershipLost {
  int exit_code = 0;
  std::string message;
};

using MembershipEvent =
    std::variant<MembershipReady, MembershipProgress, MembershipCoordinatorLog, MembershipLost,
                 rdzv::Round, rdzv::Restart, rdzv::Waiting, rdzv::Evicted, rdzv::Refused,
                 rdzv::TimedOut, rdzv::Closed, rdzv::RoundOver>;

class Membership {
 public:
  // May destroy nothing that it is called from; the membership least of all.
  using Sink = std::function<void(const MembershipEvent&)>;

  virtual ~Membership() = default;  // after Leave, or a result, without a trace; else as a crash
  // FailureReport.at is on this process's clock; an implementation brings it to the clock of
  // whoever runs the machine.
  virtual void send(const NodeStatement& statement) = 0;
  // What the rendezvous is known to wait for: nodes for which the running round could be restarted,
  // spares not counted. From what was pushed; asks nobody.
  virtual int waiting_nodes() const = 0;
  // Everything that was said has been heard, or cannot be any more, and nobody needs this process
  // for it: then calls `done` from the loop, once. Never takes longer than `limit`.
  virtual void drain(Duration limit, std::function<void()> done) = 0;
};

}  // namespace elastic::host
