#pragma once

// A node whose coordinator is lost, or ends: whether that is so, as far as its session shows, and,
// in a job with one voter, whether this node runs the coordinator from then on.
//
// Pure: each call passes the time. Not thread-safe.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "core/session/session_wire.h"
#include "core/succession/succession_events.h"
#include "core/succession/succession_types.h"
#include "elastic/rendezvous_types.h"
#include "elastic/status.h"
#include "elastic/time.h"

namespace elastic::core {

// Detecting the loss, connecting, identifying the server, hello: three round trips and a margin.
inline constexpr int kRoundTripsToResume = 6;

// Whether the coordinator is lost: its connection has ended and was not resumed in time, or nothing
// was received on it for node_timeout.
class CoordinatorWatch {
 public:
  // How the node lost the coordinator, and the time of its last contact.
  enum class Cause : std::uint8_t { kClosed, kSilent, kHandedOver };
  struct End {
    Cause cause;
    Instant at;
  };

  // There is a new connection, instead of the last one if that is still open. `is_recorded`: the
  // peer is the one that the store's record names: it counts as the coordinator before it has
  // replied. Any other process may be one that does not coordinate the job: until
  // it replies, nothing that happens on the connection concerns the coordinator.
  void connected(bool is_recorded, Instant now) {
    if (is_recorded) {
      connection_ = Connection::kCoordinators;
      is_lost_ = false;
      due_.reset();
      last_active_ = now;
    } else if (connection_ == Connection::kCoordinators) {
      connection_ = Connection::kUnknown;  // the coordinator was silent, which is judged further
    }
  }
  // The connection has ended. Further ones that end before the coordinator replies leave it no
  // more time.
  void closed(const JobSettings& settings, Duration round_trip, Instant now) {
    if (connection_ != Connection::kCoordinators) return;
    connection_ = Connection::kClosed;
    note_end({Cause::kClosed, now});
    const Duration resume = round_trip * kRoundTripsToResume;
    due_ = add_saturating(now, std::max(settings.reconnect_grace, resume));
  }
  // A heartbeat has no reply.
  void silent(const JobSettings& settings) {
    if (connection_ != Connection::kCoordinators || due_) return;
    silence_max_ = settings.node_timeout;
    due_ = silence_end();
  }
  // Another process coordinates the job, or will.
  void handed_over(Instant now) { note_end({Cause::kHandedOver, now}); }
  // A message was received (session::is_from_coordinator). True: the coordinator had counted as
  // lost.
  bool active(Instant now) {
    if (connection_ != Connection::kCoordinators) return false;
    last_active_ = now;
    if (!std::exchange(is_lost_, false)) return false;
    is_end_over_ = true;
    return true;
  }
  // The process of the last session.
  bool is_last(std::uint64_t incarnation) const { return incarnation_ == incarnation; }
  // A process has replied as the coordinator. True: it had counted as lost.
  bool opened(std::uint64_t incarnation, Instant now) {
    connection_ = Connection::kCoordinators;
    due_.reset();
    last_active_ = now;
    is_end_over_ = true;
    const bool is_same = std::exchange(incarnation_, incarnation) == incarnation;
    return std::exchange(is_lost_, false) && is_same;
  }
  // The loss is over, and was reported.
  void settled() { end_.reset(); }
  // The node joins another job.
  void displaced() {
    const Instant last = last_active_;
    *this = {};
    last_active_ = last;
  }
  // When to call tick(); nullopt: there is nothing to judge.
  std::optional<Instant> next_deadline() const { return due_; }
  // True: the coordinator counts as lost from now on.
  bool tick(Instant now) {
    if (!due_ || now < *due_) return false;
    due_.reset();
    if (!is_closed()) {
      if (now < silence_end()) return false;  // it has replied; further silence is judged again
      note_end({Cause::kSilent, last_active_});
    }
    return !std::exchange(is_lost_, true);
  }

  // The coordinator's connection has ended, and no other one leads to it.
  bool is_closed() const { return connection_ == Connection::kClosed; }
  // Of the last loss.
  End end(Instant now) const { return end_.value_or(End{Cause::kHandedOver, now}); }

 private:
  enum class Connection : std::uint8_t {
    kUnknown,       // none, or one whose process has not replied
    kCoordinators,  // it leads to the coordinator
    kClosed,        // it had led there
  };

  // The first of several belongs to the loss, the others follow from it.
  void note_end(End end) {
    if (std::exchange(is_end_over_, false) || !end_) end_ = end;
  }
  Instant silence_end() const { return add_saturating(last_active_, silence_max_); }

  Connection connection_ = Connection::kUnknown;
  bool is_lost_ = false;
  std::optional<Instant> due_;
  Instant last_active_;
  Duration silence_max_{};
  std::optional<std::uint64_t> incarnation_;  // of the coordinator of the last session
  std::optional<End> end_;
  bool is_end_over_ = false;  // a coordinator has replied since
};

// ---- A job with one voter, while its coordinator ends.

// A job that its ending coordinator has sent to this node (session::TakeOver), until it is certain
// which node it has named as its successor.
//
// It may have asked several members, and names the first one that answers. The job begins here when
// that is this node: the ending coordinator says so, a node arrives that was sent here, or no other
// member can have been asked. Otherwise two coordinators could run the job.
class OfferedJob {
 public:
  // An error: the record cannot be continued. `self`: this node.
  static Result<OfferedJob> create(const succession::StartCoordinator& start, const NodeId& self,
                                   Instant now);

  const succession::StartCoordinator& start() const { return start_; }
  const NodeId& self() const { return self_; }
  // The record has no other node.
  bool is_alone() const { return is_alone_; }

 private:
  OfferedJob(const succession::StartCoordinator& start, const NodeId& self, bool is_alone)
      : start_(start), self_(self), is_alone_(is_alone) {}

  succession::StartCoordinator start_;
  NodeId self_;
  bool is_alone_ = false;
};

// What a node that has lost its coordinator was told about the one that follows.
//
// An ending coordinator names its successor to its nodes, and the first of them that arrives there
// proves to that member that it was named. Other processes direct to coordinators as well, perhaps
// to one of long ago: that must not replace what a coordinator has said.
class NamedSuccessor {
 public:
  // A process has named it. `is_from_coordinator`: the one that ends. Returns the address to go to:
  // a later successor's that was named before, if there is one.
  std::string note(const succession::Successor& successor, const std::string& address,
                   bool is_from_coordinator);
  // A coordinator has answered.
  void reset() { *this = {}; }
  const std::optional<succession::Successor>& successor() const { return successor_; }

 private:
  std::optional<succession::Successor> successor_;
  std::string address_;
  bool is_from_coordinator_ = false;
};

// A node of a job with one voter whose coordinator ends before the job: whether this node runs the
// coordinator from then on, and where it looks for that otherwise.
//
// The ending coordinator asks a member, and perhaps a second one, and names the first that answers.
// A member that has answered keeps the job and does not run it: its session goes back to that
// coordinator if the connection breaks, and repeats the answer. It runs the job when it is named
// (OfferedJob). If it cannot learn that within store_grace, the session has lost the coordinator
// like any other one, and the job runs elsewhere or has ended.
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
  // Nothing is pending from here on.
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
  NamedSuccessor named_;
};

}  // namespace elastic::core
