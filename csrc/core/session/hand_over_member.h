#pragma once

// A node of a job with one voter whose coordinator ends before the job: whether this node runs the
// coordinator from then on, and where it looks for that otherwise.
//
// The ending coordinator asks a member, and perhaps a second one, and names the first that answers.
// A member that has answered keeps the job and does not run it: its session goes back to that
// coordinator if the connection breaks, and repeats the answer. It runs the job when it is named
// (OfferedJob). If it cannot learn that within store_grace, the session has lost the coordinator
// like any other one, and the job runs elsewhere or has ended.
//
// Pure. Not thread-safe.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "core/session/session_wire.h"
#include "core/succession/offered_job.h"
#include "core/succession/succession_events.h"

namespace elastic::core {

class HandOverMember {
 public:
  // What the owner does about the job that it keeps.
  enum class Order : std::uint8_t {
    kNone,
    kRun,      // run it, unless it runs, and call settle(): the coordinator has named this node
    kDrop,     // drop it, unless a node that was sent here has begun it, and call settle()
    kLogWait,  // log that the node waits for the coordinator, or a node that was sent here
  };
  // Why this node could not run the job.
  struct Own {
    bool is_ending = false;    // its agent ends, too
    bool has_lineage = false;  // a coordinator runs here, or the job has a record that names one
  };
  // The reply to an earlier question: it runs, or would run, at the owner's address.
  struct Repeat {};
  using Answer = std::variant<Repeat, session::TakenOver, succession::StartCoordinator>;

  // ---- The coordinator asks this node.

  // Received a piece of the job's record. Send the reply; or keep the job, which is complete, call
  // kept(), and send where it would run.
  Answer asked(const session::TakeOver& offer, const Own& own);
  // `is_running`: no other node can have been asked.
  void kept(const succession::Successor& job, bool is_running);
  // The job that is to be announced now. nullopt: it runs already, or there is none.
  std::optional<succession::Successor> begin();
  // Nothing is pending any more.
  void settle() { job_.reset(); }
  // The job that this node keeps, or runs without a confirmation of the coordinator.
  const std::optional<succession::Successor>& job() const { return job_; }

  // ---- The session.

  // A process has replied as the coordinator. `is_last`: the one of the last session.
  Order connected(bool is_last);
  // The coordinator ends without a successor, and closes the session after this.
  void coordinator_leaves() { is_left_ = true; }
  Order closed();
  // The process at the other end names the coordinator. `is_from_coordinator`: the session was with
  // a coordinator. `address`: where to go (NamedSuccessor).
  struct Direction {
    std::string address;
    Order order = Order::kNone;
  };
  Direction directed(const succession::Incumbent& to, bool is_from_coordinator);
  // The one that was named last, while no coordinator has replied since.
  const std::optional<succession::Successor>& named() const { return named_.successor(); }

 private:
  Order end();

  std::string pieces_;  // of the record
  std::optional<succession::Successor> job_;
  bool is_running_ = false;
  bool is_left_ = false;
  bool is_wait_logged_ = false;
  succession::NamedSuccessor named_;
};

}  // namespace elastic::core
