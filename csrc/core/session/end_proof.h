#pragma once

// Whether the process of a node whose session was closed has ended: a proof that spares the wait
// for its return.
//
// An agent and its guardian share one listening socket, the liveness port, which the hello names.
// The guardian keeps it until no process of the workers is left. So an address that answered while
// the session was open, and after the session was closed resets a connection that it had accepted,
// or refuses two, belongs to an agent that has ended with all of its workers. Everything else
// proves nothing, and the node has reconnect_grace to resume: no answer, an address that never
// answered (a firewall, a mapped port), a connection that is accepted (the agent lives, or another
// process has the port).
//
// One refusal is no proof: a firewall may have begun to reject new connections to the node, which
// resumes at once by a connection of its own. The second one comes after a fifth of the grace, a
// second at most.
//
// An answer does not say whose it is, and need not: another process, such as the next agent of the
// host, can have the port only after the agent and its guardian have closed it. If that process
// resets the connection, the node has ended indeed. If it accepts it, the node has its grace, which
// costs time only.
//
// Weak point: the proof is false if both directions are rejected for that long, or if the address
// that answered belongs to a forwarder which ends with its sessions. The node is then evicted
// earlier than the grace allows, and joins again as soon as it can.
//
// Pure; one object for each node.

#include <cstdint>
#include <string>

namespace elastic::core {

class EndProof {
 public:
  enum class Step : std::uint8_t {
    kNone,
    kTest,   // connect to the address, when there is time for it
    kDial,   // connect to it at once, and keep the connection until its end is known
    kAgain,  // the same, after that time
    kDrop,   // the connection is no longer needed
    kEnded,  // the process of the node has ended
  };

  // A session of the node has begun. `address`: of its liveness port; "": it has none.
  Step session_began(const std::string& address);
  // It ended without a Leave.
  Step session_closed();
  // The connection was made.
  Step answered();
  // It was refused, or reset after it was made.
  Step refused();
  // It has no result that says something about the process.
  Step failed();

  const std::string& address() const { return address_; }

 private:
  enum class Knowledge : std::uint8_t { kNone, kTested, kReached };

  std::string address_;
  Knowledge knowledge_ = Knowledge::kNone;
  bool is_closed_ = false;
  // Since the session was closed.
  bool has_answered_ = false;
  bool was_refused_ = false;
};

}  // namespace elastic::core
