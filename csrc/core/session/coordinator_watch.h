#pragma once

// Whether a node has lost its coordinator, as far as its session shows: the connection has ended
// and was not resumed in time, or nothing was received on it for node_timeout.
//
// Pure: each call passes the time. Not thread-safe.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "elastic/rendezvous_types.h"

namespace elastic::core {

// Detecting the loss, connecting, identifying the server, hello: three round trips and a margin.
inline constexpr int kRoundTripsToResume = 6;

class CoordinatorWatch {
 public:
  // How the node lost the coordinator, and the time of its last contact.
  enum class Cause : std::uint8_t { kClosed, kSilent, kHandedOver };
  struct End {
    Cause cause;
    Instant at;
  };

  // The connection has ended. Further ones that end before the coordinator replies leave it no
  // more time.
  void closed(const JobSettings& settings, Duration round_trip, Instant now) {
    if (std::exchange(is_closed_, true)) return;
    note_end({Cause::kClosed, now});
    const Duration resume = round_trip * kRoundTripsToResume;
    due_ = add_saturating(now, std::max(settings.reconnect_grace, resume));
  }
  // A store's record names the process at the other end of a new connection: it has not replied,
  // and is judged as the coordinator from now on.
  void connected(Instant now) {
    is_closed_ = is_lost_ = false;
    due_.reset();
    last_active_ = now;
  }
  // A heartbeat has no reply.
  void silent(const JobSettings& settings) {
    if (is_closed_ || due_) return;
    silence_max_ = settings.node_timeout;
    due_ = silence_end();
  }
  // Another process coordinates the job, or will.
  void handed_over(Instant now) { note_end({Cause::kHandedOver, now}); }
  // A message was received. True: the coordinator had counted as lost.
  bool active(Instant now) {
    last_active_ = now;
    return !is_closed_ && std::exchange(is_lost_, false);
  }
  // The process of the last session.
  bool is_last(std::uint64_t incarnation) const { return incarnation_ == incarnation; }
  // A process has replied as the coordinator. True: it had counted as lost.
  bool opened(std::uint64_t incarnation) {
    is_closed_ = false;
    due_.reset();
    const bool is_same = std::exchange(incarnation_, incarnation) == incarnation;
    return std::exchange(is_lost_, false) && is_same;
  }
  // The loss is over: the job has a coordinator.
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
    if (!is_closed_) {
      if (now < silence_end()) return false;  // it has replied; further silence is judged again
      note_end({Cause::kSilent, last_active_});
    }
    return !std::exchange(is_lost_, true);
  }

  bool is_closed() const { return is_closed_; }
  End end(Instant now) const { return end_.value_or(End{Cause::kHandedOver, now}); }

 private:
  void note_end(End end) {
    if (!end_) end_ = end;
  }
  Instant silence_end() const { return add_saturating(last_active_, silence_max_); }

  bool is_closed_ = false;
  bool is_lost_ = false;
  std::optional<Instant> due_;
  Instant last_active_;
  Duration silence_max_{};
  std::optional<std::uint64_t> incarnation_;  // of the coordinator of the last session
  std::optional<End> end_;                    // none while the node has a coordinator
};

}  // namespace elastic::core
