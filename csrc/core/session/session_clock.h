#pragma once

// The timers of a node's session: heartbeats and their acknowledgements, the search for a
// coordinator, and the offset of the coordinator's clock from this process's.
//
// Pure: advance() sets the time. Not thread-safe. A part of SessionMachine.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "elastic/rendezvous_types.h"
#include "elastic/time.h"

namespace elastic::core {

// Estimates the offset of another process's clock from replies that contain its time. The error is
// at most half the round trip, so the shortest one is used, and only of the latest samples, because
// clocks drift.
class ClockEstimate {
 public:
  void clear() {
    samples_.clear();
    next_ = 0;
  }
  // `sent`, `received`: the times of request and reply, on this clock. `time`: on the other clock.
  void add(Instant sent, Instant received, Instant time) {
    const Duration round_trip = received - sent;
    if (round_trip < Duration::zero()) return;
    const Sample sample{time - (sent + round_trip / 2), round_trip};
    if (samples_.size() < kSamples) {
      samples_.push_back(sample);
      return;
    }
    samples_[next_] = sample;
    next_ = (next_ + 1) % kSamples;
  }
  // The other clock minus this clock; zero without a sample.
  Duration offset() const {
    const auto best = std::min_element(
        samples_.begin(), samples_.end(),
        [](const Sample& a, const Sample& b) { return a.round_trip < b.round_trip; });
    return best == samples_.end() ? Duration::zero() : best->offset;
  }

 private:
  static constexpr std::size_t kSamples = 8;
  struct Sample {
    Duration offset{};
    Duration round_trip{};
  };
  std::vector<Sample> samples_;  // the latest, as a ring
  std::size_t next_ = 0;
};

class SessionClock {
 public:
  explicit SessionClock(const JobSettings& settings)
      : own_settings_(settings), settings_(settings) {}

  void advance(Instant now);
  Instant now() const { return now_; }
  // The current time, but greater than every earlier stamp, so that stamps are unique.
  Instant stamp();
  // This process was stopped for `gap`, which counts neither as silence nor as search time.
  void skip(Duration gap);
  // The earliest time at which a function below whose name ends in _due is true.
  std::optional<Instant> next_deadline() const;

  // The job's timings once they were received, else this node's own.
  const JobSettings& settings() const { return settings_; }
  // Returns how the job's timings differ from this node's (a sentence), or "" if they do not or the
  // last call returned the same.
  std::string set_job_timings(const JobSettings& job);
  // The timeout of one attempt to connect.
  Duration attempt_limit() const;

  // ---- Heartbeats of the current connection.

  // No further heartbeat is due, and no reply is expected.
  void reset_heartbeats();
  // No further heartbeat is due.
  void pause_heartbeats() { next_heartbeat_ = Instant::max(); }
  void hello_sent();
  // Returns the time that identifies the heartbeat. `repeats`: schedules the next one.
  Instant heartbeat_sent(bool repeats);
  bool has_heartbeats() const { return next_heartbeat_ != Instant::max(); }
  bool was_heartbeat_sent_since(Instant stamp) const { return last_heartbeat_ >= stamp; }
  // Bytes were received on the connection.
  void activity();
  // Returns false if the reply matches no heartbeat of this connection.
  bool acknowledge(Instant sent, Instant coordinator_time);
  // The reply to the hello was received.
  void hello_answered(std::uint64_t incarnation, Instant coordinator_time);
  // The coordinator's clock minus this process's clock.
  Duration offset() const { return estimate_.offset(); }

  bool is_heartbeat_due() const { return now_ >= next_heartbeat_; }
  bool is_silence_due() const;
  Duration silence() const { return now_ - *unacknowledged_heartbeat_; }

  // ---- The search for a coordinator.

  // `continues`: the last search is resumed if no coordinator with a majority of its voters has
  // acknowledged a heartbeat since. It is also resumed if the last coordinator had no majority, but
  // leaves time for one attempt.
  void start_search(Duration limit, bool continues = false);
  void stop_search();
  // A heartbeat was answered by a coordinator that has reached no majority of its voters for
  // `alone`; 0: it reaches one. `limit`: how long the node stays without such a coordinator.
  void confirmed(Duration alone, Duration limit);
  // How long that has been.
  Duration unconfirmed() const { return now_ - unconfirmed_since_.value_or(now_); }
  void stop_waiting_for_majority() { majority_expiry_.reset(); }
  bool is_searching() const { return search_.has_value(); }
  bool is_attempt_running() const { return search_ && !retry_at_; }
  void retry_after(Duration wait) { retry_at_ = now_ + wait; }
  void attempt_started() { retry_at_.reset(); }
  void log_now() { next_log_ = now_; }
  void log_written();
  Duration search_limit() const { return search_->limit; }
  Instant search_expiry() const;

  bool is_search_expired() const;
  // The coordinator of the connection has had no majority for too long.
  bool is_majority_overdue() const {
    return !search_ && majority_expiry_ && now_ >= *majority_expiry_;
  }
  bool is_log_due() const { return search_ && now_ >= next_log_; }
  bool is_retry_due() const { return retry_at_ && now_ >= *retry_at_; }

 private:
  struct Search {
    Instant since;
    Duration limit{};
    Instant expiry() const { return add_saturating(since, limit); }
  };

  Duration heartbeat_interval() const;
  Duration silence_limit() const;

  // Constant after construction.
  const JobSettings own_settings_;

  JobSettings settings_;
  std::string reported_difference_;

  Instant now_;
  Instant last_stamp_;

  Instant next_heartbeat_ = Instant::max();
  Instant last_heartbeat_;
  Instant hello_sent_at_;
  std::optional<Instant> unacknowledged_heartbeat_;  // nothing was received since
  std::uint64_t incarnation_ = 0;                    // of the coordinator whose clock is estimated
  ClockEstimate estimate_;

  std::optional<Search> search_;
  // Since when no coordinator with a majority of its voters is known to be reachable: the last
  // search ended with a connection that may lead to none.
  std::optional<Instant> unconfirmed_since_;
  // When to give up the coordinator of the connection; none while it has a majority.
  std::optional<Instant> majority_expiry_;
  // After the loss of a coordinator without a majority: the next one has time to answer.
  std::optional<Instant> earliest_expiry_;
  Instant search_ended_;
  Instant next_log_ = Instant::max();
  std::optional<Instant> retry_at_;  // of the search; none while an attempt runs
};

}  // namespace elastic::core
