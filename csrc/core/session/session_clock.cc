#include "core/session/session_clock.h"

#include <algorithm>
#include <utility>

#include "core/base/timings.h"
#include "core/rendezvous/rendezvous_fields.h"

namespace elastic::core {
namespace {

constexpr Duration kLogInterval = std::chrono::seconds(10);
// Nodes that start at the same time connect within this time; a longer wait is logged.
constexpr Duration kFirstLogDelay = std::chrono::seconds(1);

}  // namespace

void SessionClock::advance(Instant now) { now_ = std::max(now_, now); }

Instant SessionClock::stamp() {
  last_stamp_ = std::max(now_, last_stamp_ + Duration(1));
  return last_stamp_;
}

void SessionClock::skip(Duration gap) {
  if (unacknowledged_heartbeat_) {
    *unacknowledged_heartbeat_ = std::min(now_, *unacknowledged_heartbeat_ + gap);
  }
  if (unconfirmed_since_) *unconfirmed_since_ = std::min(now_, *unconfirmed_since_ + gap);
  if (majority_expiry_) *majority_expiry_ += gap;
  if (earliest_expiry_) *earliest_expiry_ += gap;
  if (!search_) return;
  // Leaves time for at least one whole attempt after the gap.
  const Instant latest = now_ - std::max(search_->limit - attempt_limit(), Duration::zero());
  search_->since = std::min(now_, std::max(search_->since + gap, latest));
  if (retry_at_) retry_at_ = now_;
}

std::optional<Instant> SessionClock::next_deadline() const {
  Instant next = next_heartbeat_;
  if (search_) {
    next = std::min({next, next_log_, search_expiry()});
  } else {
    if (unacknowledged_heartbeat_) {
      next = std::min(next, *unacknowledged_heartbeat_ + silence_limit());
    }
    if (majority_expiry_) next = std::min(next, *majority_expiry_);
  }
  if (retry_at_) next = std::min(next, *retry_at_);
  if (next == Instant::max()) return std::nullopt;
  return next;
}

// ---- Timings.

std::string SessionClock::set_job_timings(const JobSettings& job) {
  copy_timings(job, &settings_);
  std::string difference = describe_timing_difference(job, own_settings_);
  // With a shorter node_timeout the next heartbeat is due sooner.
  if (has_heartbeats()) next_heartbeat_ = std::min(next_heartbeat_, now_ + heartbeat_interval());
  return std::exchange(reported_difference_, difference) == difference ? "" : difference;
}

Duration SessionClock::attempt_limit() const { return core::attempt_limit(settings_.node_timeout); }

Duration SessionClock::heartbeat_interval() const {
  return core::heartbeat_interval(settings_.node_timeout);
}

Duration SessionClock::silence_limit() const { return core::silence_limit(settings_.node_timeout); }

// ---- Heartbeats.

void SessionClock::reset_heartbeats() {
  pause_heartbeats();
  unacknowledged_heartbeat_.reset();
}

void SessionClock::hello_sent() {
  hello_sent_at_ = now_;
  unacknowledged_heartbeat_ = now_;
}

Instant SessionClock::heartbeat_sent(bool repeats) {
  last_heartbeat_ = stamp();
  if (!unacknowledged_heartbeat_) unacknowledged_heartbeat_ = now_;
  next_heartbeat_ = repeats ? now_ + heartbeat_interval() : Instant::max();
  return last_heartbeat_;
}

void SessionClock::activity() {
  if (unacknowledged_heartbeat_) unacknowledged_heartbeat_ = now_;
}

bool SessionClock::acknowledge(Instant sent, Instant coordinator_time) {
  if (sent > last_heartbeat_ || sent < hello_sent_at_) return false;
  estimate_.add(sent, now_, coordinator_time);
  if (sent == last_heartbeat_) unacknowledged_heartbeat_.reset();
  return true;
}

void SessionClock::hello_answered(std::uint64_t incarnation, Instant coordinator_time) {
  if (std::exchange(incarnation_, incarnation) != incarnation) estimate_.clear();
  estimate_.add(hello_sent_at_, now_, coordinator_time);
}

bool SessionClock::is_silence_due() const {
  return !search_ && unacknowledged_heartbeat_ && silence() >= silence_limit();
}

// ---- The search.

void SessionClock::start_search(Duration limit, bool continues) {
  const bool was_alone = majority_expiry_.has_value();
  const bool goes_on = unconfirmed_since_ && (continues || was_alone);
  if (was_alone && !earliest_expiry_) earliest_expiry_ = now_ + attempt_limit();
  search_ = Search{goes_on ? *unconfirmed_since_ : now_, limit};
  if (!goes_on) next_log_ = now_ + kFirstLogDelay;
}

void SessionClock::stop_search() {
  if (search_) unconfirmed_since_ = search_->since;
  // The coordinator of the new connection has time to answer.
  if (majority_expiry_) *majority_expiry_ = std::max(*majority_expiry_, now_ + attempt_limit());
  search_ended_ = now_;
  search_.reset();
  retry_at_.reset();
}

// The coordinator gives its authority up after store_grace and says why, so the node waits for that
// first: node_timeout longer.
void SessionClock::confirmed(Duration alone, Duration limit) {
  earliest_expiry_.reset();
  if (alone <= Duration::zero()) {
    unconfirmed_since_.reset();
    majority_expiry_.reset();
    return;
  }
  unconfirmed_since_ = std::min(unconfirmed_since_.value_or(now_), now_ - alone);
  majority_expiry_ =
      std::max(add_saturating(add_saturating(*unconfirmed_since_, limit), settings_.node_timeout),
               search_ended_ + attempt_limit());
}

void SessionClock::log_written() { next_log_ = now_ + kLogInterval; }

Instant SessionClock::search_expiry() const {
  return std::max(search_->expiry(), earliest_expiry_.value_or(search_->expiry()));
}

bool SessionClock::is_search_expired() const { return search_ && now_ >= search_expiry(); }

}  // namespace elastic::core
