#pragma once

// A node whose coordinator is lost, or ends: whether that is so, as far as its session shows, and
// what it was told about the next one.
//
// Pure: each call passes the time. Not thread-safe.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "core/succession/succession_types.h"
#include "elastic/rendezvous_types.h"
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

// What a node that has lost its coordinator was told about the one that follows.
//
// An ending coordinator names its successor to its nodes. Other processes direct to coordinators as
// well, perhaps to one of long ago: that must not replace what a coordinator has said.
class NamedSuccessor {
 public:
  // A process has named it. `is_from_coordinator`: the one that ends. Returns the address to go to:
  // a later successor's that was named before, if there is one.
  std::string note(const succession::Successor& successor, const std::string& address,
                   bool is_from_coordinator);
  // A coordinator has answered.
  void reset() { *this = {}; }

 private:
  std::optional<succession::Successor> successor_;
  std::string address_;
  bool is_from_coordinator_ = false;
};

}  // namespace elastic::core
