// Theory of operation
//
// Connections come and go; the session is what outlives them. The machine keeps what the node has
// said in the form in which a Resume tells it (its phase, the round it holds, a failure, and a
// leave or a close), so that a new connection begins with one message that says everything, however
// much of what was sent before has arrived. Until the coordinator has answered once, that message
// is the Join itself, which may be repeated.
//
// A beat goes out several times in each node_timeout and is answered at once. What was sent before
// an answered beat has been heard: that is all the acknowledgement there is. A beat without an
// answer for an eighth of node_timeout raises a doubt: the machine looks for a new connection
// beside the old one. Whichever speaks first is kept. So a path that lost its packets is replaced
// before the coordinator counts the node as lost (the kernel alone would wait too long between its
// retransmissions), and a coordinator that merely stood still finds all its sessions as they were.
//
// While no coordinator answers, attempts follow each other with backoff, the first one at once. The
// time that this may take is join_timeout for a node that was never in a round, and store_grace for
// one that holds a round. Time in which this process was stopped does not count, and after such a
// gap there is time for a whole attempt at least.
//
// The timings are the job's: those that the coordinator sends replace this node's own.
//
// A node that is not known to the coordinator (before its Join, after its eviction or its Leave)
// sends no beats: they would only be answered by "evicted".

#include "core/session/session_machine.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/duration_text.h"
#include "elastic/agent.h"

namespace elastic::core {
namespace {

// A path may lose its packets for nearly all of node_timeout: what is missing at the end is one
// beat that was not due before, and the time until a new connection is through.
constexpr int kHeartbeatsPerTimeout = 8;
constexpr int kDoubtsPerTimeout = 8;
// Also with a long node_timeout the clock is compared, and a proxy sees traffic, this often.
constexpr Duration kHeartbeatIntervalMax = std::chrono::seconds(15);
constexpr Duration kHeartbeatIntervalMin = std::chrono::milliseconds(5);
constexpr Duration kAttemptLimitMin = std::chrono::seconds(5);
constexpr Duration kLogInterval = std::chrono::seconds(10);

constexpr std::pair<const char*, Duration JobSettings::*> kTimings[] = {
    {"join_timeout", &JobSettings::join_timeout},
    {"last_call_timeout", &JobSettings::last_call_timeout},
    {"settle", &JobSettings::settle},
    {"shrink_delay", &JobSettings::shrink_delay},
    {"node_timeout", &JobSettings::node_timeout},
    {"reconnect_grace", &JobSettings::reconnect_grace},
    {"store_grace", &JobSettings::store_grace},
    {"restart_backoff", &JobSettings::restart_backoff},
};

}  // namespace

SessionMachine::SessionMachine(const JobSettings& settings, std::vector<std::string> endpoints,
                               std::uint64_t seed)
    : own_settings_(settings), endpoints_(std::move(endpoints)), settings_(settings), rng_(seed) {
  ELASTIC_CHECK(!endpoints_.empty());
}

void SessionMachine::begin(Instant now, std::vector<Action>* actions) {
  now_ = now;
  out_ = actions;
  searching_since_ = now_;
  next_log_ = now_ + kLogInterval;
  attempt();
  out_ = nullptr;
}

void SessionMachine::step(const Event& event, Instant now, std::vector<Action>* actions) {
  now_ = std::max(now_, now);
  if (is_lost_) return;
  out_ = actions;
  std::visit([this](const auto& one) { on(one); }, event);
  out_ = nullptr;
}

std::optional<Instant> SessionMachine::next_deadline() const {
  if (is_lost_) return std::nullopt;
  Instant next = is_open_ ? next_heartbeat_ : Instant::max();
  if (searching_since_) {
    next = std::min({next, next_log_, add_saturating(*searching_since_, search_limit())});
  } else if (unacknowledged_heartbeat_) {
    next = std::min(next, *unacknowledged_heartbeat_ + settings_.node_timeout / kDoubtsPerTimeout);
  }
  if (attempt_ == Attempt::kScheduled) next = std::min(next, retry_at_);
  if (next == Instant::max()) return std::nullopt;
  return next;
}

bool SessionMachine::is_flushed() const {
  // Whoever has told the result expects no more of this node, nor has one that cannot be reached.
  return is_lost_ || !unacknowledged_since_ || (is_ended_ && !is_open_);
}

Duration SessionMachine::search_limit() const {
  return was_in_round() ? settings_.store_grace : settings_.join_timeout;
}

Duration SessionMachine::attempt_limit() const {
  return std::max(settings_.node_timeout, kAttemptLimitMin);
}

// ---- Connections.

void SessionMachine::attempt() {
  attempt_ = Attempt::kRunning;
  emit(Connect{endpoint_});
}

// Begins to look for a coordinator, at once.
void SessionMachine::search(const Status& why) {
  last_error_ = why;
  if (searching_since_) return;
  searching_since_ = now_;
  next_log_ = now_ + kLogInterval;
  backoff_.reset();
  if (attempt_ != Attempt::kRunning) attempt();
}

// The connection speaks.
void SessionMachine::record_activity() {
  if (unacknowledged_heartbeat_) unacknowledged_heartbeat_ = now_;
  if (!searching_since_) return;
  if (attempt_ == Attempt::kRunning) emit(CancelAttempt{});
  attempt_ = Attempt::kNone;
  searching_since_.reset();
  next_log_ = Instant::max();
  if (std::exchange(is_outage_logged_, false)) {
    emit(Log{"the coordinator at " + endpoint() + " answers again"});
  }
}

void SessionMachine::on(const Connected&) {
  if (attempt_ != Attempt::kRunning) return;
  attempt_ = Attempt::kNone;
  is_open_ = was_connected_ = true;
  is_hello_sent_ = is_ready_to_send_ = false;
  next_heartbeat_ = Instant::max();
  unacknowledged_heartbeat_.reset();
  record_activity();
  send_hello();
}

void SessionMachine::on(const AttemptDelayed& event) { last_error_ = event.so_far; }

void SessionMachine::on(const AttemptFailed& event) {
  if (attempt_ != Attempt::kRunning) return;
  last_error_ = event.why;
  if (event.exit_code && !was_connected_) {
    is_lost_ = true;
    emit(Lost{*event.exit_code, std::string(event.why.message())});
    return;
  }
  endpoint_ = (endpoint_ + 1) % endpoints_.size();
  if (!backoff_) backoff_.emplace(BackoffOptions{}, &rng_);
  attempt_ = Attempt::kScheduled;
  retry_at_ = now_ + backoff_->next();
  if (was_connected_ && !is_outage_logged_) next_log_ = now_;
  check_search();
}

void SessionMachine::on(const ConnectionLost& event) {
  if (!is_open_) return;
  is_open_ = is_hello_sent_ = is_ready_to_send_ = false;
  unacknowledged_heartbeat_.reset();
  if (is_ended_ || (leave_ && !unacknowledged_since_)) {  // nobody has anything more to say
    if (attempt_ == Attempt::kRunning) emit(CancelAttempt{});
    attempt_ = Attempt::kNone;
    searching_since_.reset();
    return;
  }
  search(event.why);
}

// The reason that the coordinator gave before it ended says more than that nothing is there now.
std::string SessionMachine::search_error() const {
  return leaving_reason_.empty() ? std::string(last_error_.message()) : leaving_reason_;
}

std::string SessionMachine::search_message() const {
  const std::string why = search_error().empty() ? "" : ": " + search_error();
  const Duration left = std::max(Duration::zero(), search_limit() - (now_ - *searching_since_));
  return was_connected_ ? "the coordinator at " + endpoint() + " cannot be reached" + why +
                              "; trying for another " + duration_text(left)
                        : "waiting for a coordinator at " + endpoint() + why + "; giving up in " +
                              duration_text(left);
}

void SessionMachine::check_search() {
  if (!searching_since_) return;
  if (now_ >= add_saturating(*searching_since_, search_limit())) {
    give_up();
    return;
  }
  if (now_ >= next_log_) {
    next_log_ = now_ + kLogInterval;
    is_outage_logged_ = true;
    emit(Log{search_message()});
  }
  if (attempt_ == Attempt::kScheduled && now_ >= retry_at_) attempt();
}

void SessionMachine::give_up() {
  const std::string error = search_error();
  const std::string why =
      duration_text(search_limit()) + ": " + (error.empty() ? "nobody answered" : error);
  is_lost_ = true;
  if (attempt_ == Attempt::kRunning) emit(CancelAttempt{});
  if (!was_connected_) {
    emit(Lost{kExitJoinTimedOut, "no coordinator was found at " + endpoint() + " within " + why});
    return;
  }
  emit(Lost{was_in_round() ? kExitCoordinatorLost : kExitJoinTimedOut,
            "the coordinator at " + endpoint() + " was not reached for " + why});
}

// ---- What is said.

bool SessionMachine::is_present() const {
  return join_ && !is_evicted_ && !leave_ && (!is_ended_ || is_closed_);
}

bool SessionMachine::is_current(std::uint64_t round) const {
  return held_round_ && held_round_->record.round == round;
}

void SessionMachine::send_hello() {
  if (!is_open_ || is_hello_sent_ || is_evicted_) return;
  if (!close_ && (!join_ || (leave_ && !was_join_sent_))) return;  // there is nothing to say
  is_hello_sent_ = true;
  hello_received_at_ = now_;
  unacknowledged_heartbeat_ = now_;
  emit(SendHello{join_ ? join_->node.id : close_->node, ++hellos_, term_});
  // A failure's time is told on the coordinator's clock, which may be another one now.
  if (!failure_) resend_state();
}

void SessionMachine::resend_state() {
  if (!is_hello_sent_ || is_ready_to_send_) return;
  is_ready_to_send_ = true;
  // A node that holds no round and goes has nothing to resume: joining only to leave might cost the
  // others a round.
  if (join_ && (held_round_ || !leave_)) {
    was_join_sent_ = true;
    if (is_known_) {
      send(resume());
    } else {
      send(*join_);
    }
  }
  if (close_) send(*close_);
  if (leave_) send(*leave_);
  send_heartbeat();
}

rdzv::Resume SessionMachine::resume() const {
  rdzv::Resume event{join_->node, join_->settings, phase_, held_round_, std::nullopt};
  event.node.highest_round = std::max(event.node.highest_round, highest_round_);
  if (held_round_) event.node.previous_rank = held_round_->group_rank;
  if (failure_) event.failure = to_coordinator_clock(*failure_);
  return event;
}

// What cannot be said now is said by what comes first on the next connection.
void SessionMachine::send(RendezvousEvent event) {
  unacknowledged_since_ = stamp();
  if (is_ready_to_send_) emit(Send{std::move(event)});
}

void SessionMachine::on(const Submit& event) {
  std::visit([this](const auto& said) { record_sent(said); }, event.statement);
}

void SessionMachine::record_sent(const rdzv::Join& said) {
  join_ = said;
  join_->node.highest_round = std::max(said.node.highest_round, highest_round_);
  phase_ = rdzv::NodePhase::kJoined;
  is_evicted_ = is_ended_ = is_closed_ = false;
  if (is_ready_to_send_) was_join_sent_ = true;
  send(*join_);
  if (!is_open_ && !searching_since_) search(Status());
  send_hello();
  if (is_ready_to_send_ && next_heartbeat_ == Instant::max()) send_heartbeat();
}

void SessionMachine::record_sent(const rdzv::Failed& said) {
  if (!is_present()) return;
  if (is_current(said.round) && !failure_) failure_ = said.failure;
  send(rdzv::Failed{said.node, said.round, to_coordinator_clock(said.failure)});
}

void SessionMachine::record_sent(const rdzv::Gone& said) {
  if (!is_present()) return;
  if (is_current(said.round) && phase_ == rdzv::NodePhase::kWorking) {
    phase_ = rdzv::NodePhase::kStopped;
  }
  send(said);
}

void SessionMachine::record_sent(const rdzv::Done& said) {
  if (!is_present()) return;
  if (is_current(said.round)) phase_ = rdzv::NodePhase::kDone;
  send(said);
}

void SessionMachine::record_sent(const rdzv::Leave& said) {
  if (leave_) return;
  leave_ = said;
  if (was_join_sent_) {
    send(said);
  } else {
    unacknowledged_since_.reset();  // nothing was said that this would take back
  }
  on(Flush{});
}

void SessionMachine::record_sent(const rdzv::Close& said) {
  if (is_evicted_ || leave_) return;
  close_ = said;
  send(said);
  send_hello();
  on(Flush{});
}

void SessionMachine::on(const Flush&) {
  if (is_ready_to_send_ && unacknowledged_since_ && last_heartbeat_ < *unacknowledged_since_)
    send_heartbeat();
}

// ---- What is heard.

void SessionMachine::on(const Activity&) { record_activity(); }

void SessionMachine::on(const Received& event) {
  record_activity();
  // What a node has not asked for, or has asked for and left again, it is not told.
  if (!is_hello_sent_ || leave_) return;
  const bool is_news =
      std::visit([this](const auto& action) { return receive(action); }, event.action);
  if (is_news) emit(Deliver{event.action});
}

bool SessionMachine::receive(const rdzv::Round& action) {
  is_known_ = true;
  if (action.record->round <= highest_round_) return false;
  highest_round_ = action.record->round;
  term_ = std::max(term_, action.record->term);
  held_round_ = HeldRound{*action.record, action.own.group_rank};
  phase_ = rdzv::NodePhase::kWorking;
  failure_.reset();
  was_evicted_while_done_ = false;
  return true;
}

bool SessionMachine::receive(const rdzv::Restart& action) {
  is_known_ = true;
  const std::uint64_t held = held_round_ ? held_round_->record.round : 0;
  if (action.round < held || action.round <= restarted_round_) return false;
  highest_round_ = std::max(highest_round_, action.round);
  restarted_round_ = action.round;
  return true;
}

bool SessionMachine::receive(const rdzv::Waiting&) {
  is_known_ = true;
  return !is_evicted_;
}

bool SessionMachine::receive(const rdzv::Resumed&) {
  is_known_ = true;
  return false;
}

bool SessionMachine::receive(const rdzv::Superseded&) { return false; }

bool SessionMachine::receive(const rdzv::Evicted& action) {
  highest_round_ = std::max(highest_round_, action.round);
  if (is_evicted_ || is_ended_) return false;
  if (phase_ == rdzv::NodePhase::kDone && !was_evicted_while_done_) {
    // It was lost while it waited for the others with its work done, and may wait there again.
    was_evicted_while_done_ = true;
    if (is_ready_to_send_) send(resume());
    return false;
  }
  is_known_ = false;
  is_evicted_ = true;
  close_.reset();
  unacknowledged_since_.reset();
  unacknowledged_heartbeat_.reset();
  next_heartbeat_ = Instant::max();
  return true;
}

bool SessionMachine::receive(const rdzv::Refused&) { return !std::exchange(is_ended_, true); }

bool SessionMachine::receive(const rdzv::TimedOut&) {
  is_known_ = false;
  return !std::exchange(is_ended_, true);
}

bool SessionMachine::receive(const rdzv::Closed&) {
  is_known_ = is_closed_ = true;
  close_.reset();
  return !std::exchange(is_ended_, true);
}

bool SessionMachine::receive(const rdzv::RoundOver& action) {
  if (action.round <= round_over_) return false;
  round_over_ = action.round;
  return true;
}

// ---- Signs of life, and the other clock.

Duration SessionMachine::heartbeat_interval() const {
  return std::clamp(settings_.node_timeout / kHeartbeatsPerTimeout, kHeartbeatIntervalMin,
                    kHeartbeatIntervalMax);
}

// Grows with every call, so that equal instants can be told apart.
Instant SessionMachine::stamp() {
  last_stamp_ = std::max(now_, last_stamp_ + Duration(1));
  return last_stamp_;
}

void SessionMachine::send_heartbeat() {
  last_heartbeat_ = stamp();
  if (!unacknowledged_heartbeat_) unacknowledged_heartbeat_ = now_;
  next_heartbeat_ = is_present() ? now_ + heartbeat_interval() : Instant::max();
  emit(SendHeartbeat{last_heartbeat_});
}

void SessionMachine::on(const HelloReceived& event) {
  record_activity();
  if (!is_hello_sent_) return;
  leaving_reason_.clear();
  term_ = std::max(term_, event.term);
  if (std::exchange(incarnation_, event.incarnation) != event.incarnation) clock_.clear();
  clock_.add(hello_received_at_, now_, event.time);
  resend_state();
}

void SessionMachine::on(const TimingsReceived& event) {
  record_activity();
  std::string log_progress;
  for (const auto& [name, member] : kTimings) {
    const Duration own = own_settings_.*member;
    const Duration job = event.settings.*member;
    settings_.*member = job;
    if (job == own) continue;
    log_progress += (log_progress.empty() ? "" : ", ") + std::string(name) + " is " +
                    duration_text(job) + " (here " + duration_text(own) + ")";
  }
  // The job may count this node as lost sooner than it thought.
  if (next_heartbeat_ != Instant::max())
    next_heartbeat_ = std::min(next_heartbeat_, now_ + heartbeat_interval());
  if (std::exchange(timings_note_, log_progress) == log_progress || log_progress.empty()) return;
  emit(Log{"the job's timings, which its first node brought, replace those of this node: " +
           log_progress});
}

void SessionMachine::on(const CoordinatorLeaves& event) {
  record_activity();
  leaving_reason_ = event.reason;
}

void SessionMachine::on(const HeartbeatAcknowledged& event) {
  record_activity();
  if (event.sent > last_heartbeat_ || event.sent < hello_received_at_)
    return;  // nothing that we asked
  clock_.add(event.sent, now_, event.time);
  if (event.sent == last_heartbeat_) unacknowledged_heartbeat_.reset();
  if (unacknowledged_since_ && event.sent > *unacknowledged_since_) unacknowledged_since_.reset();
}

FailureReport SessionMachine::to_coordinator_clock(FailureReport failure) const {
  failure.at += clock_.offset();
  return failure;
}

void SessionMachine::on(const ClockGap& event) {
  if (unacknowledged_heartbeat_)
    *unacknowledged_heartbeat_ = std::min(now_, *unacknowledged_heartbeat_ + event.gap);
  if (!searching_since_) return;
  const Instant latest = now_ - std::max(search_limit() - attempt_limit(), Duration::zero());
  *searching_since_ = std::min(now_, std::max(*searching_since_ + event.gap, latest));
  backoff_.reset();
  if (attempt_ == Attempt::kScheduled) retry_at_ = now_;
}

void SessionMachine::on(const Tick&) {
  if (is_open_ && now_ >= next_heartbeat_) {
    if (is_present()) {
      send_heartbeat();
    } else {
      next_heartbeat_ = Instant::max();
    }
  }
  if (is_open_ && !searching_since_ && unacknowledged_heartbeat_ &&
      now_ - *unacknowledged_heartbeat_ >= settings_.node_timeout / kDoubtsPerTimeout) {
    search(Status(StatusCode::kUnavailable,
                  "no answer for " + duration_text(now_ - *unacknowledged_heartbeat_)));
  }
  check_search();
}

}  // namespace elastic::core
