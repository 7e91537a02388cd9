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
#include <cstdio>
#include <utility>

#include "core/base/check.h"
#include "elastic/agent.h"

namespace elastic::core {
namespace {

// A path may lose its packets for nearly all of node_timeout: what is missing at the end is one
// beat that was not due before, and the time until a new connection is through.
constexpr int kBeatsPerTimeout = 8;
constexpr int kDoubtsPerTimeout = 8;
// Also with a long node_timeout the clock is compared, and a proxy sees traffic, this often.
constexpr Duration kBeatIntervalMax = std::chrono::seconds(15);
constexpr Duration kBeatIntervalMin = std::chrono::milliseconds(5);
constexpr Duration kAttemptLimitMin = std::chrono::seconds(5);
constexpr Duration kNoteEvery = std::chrono::seconds(10);

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

std::string seconds_text(Duration duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", to_seconds(duration));
  return text;
}

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
  next_note_ = now_ + kNoteEvery;
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
  Instant next = is_open_ ? next_beat_ : Instant::max();
  if (searching_since_) {
    next = std::min({next, next_note_, add_saturating(*searching_since_, search_limit())});
  } else if (unanswered_since_) {
    next = std::min(next, *unanswered_since_ + settings_.node_timeout / kDoubtsPerTimeout);
  }
  if (attempt_ == Attempt::kScheduled) next = std::min(next, retry_at_);
  if (next == Instant::max()) return std::nullopt;
  return next;
}

bool SessionMachine::is_settled() const {
  // Whoever has told the result expects no more of this node, nor has one that cannot be reached.
  return is_lost_ || !unheard_since_ || (is_over_ && !is_open_);
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
  next_note_ = now_ + kNoteEvery;
  backoff_.reset();
  if (attempt_ != Attempt::kRunning) attempt();
}

// The connection speaks.
void SessionMachine::alive() {
  if (unanswered_since_) unanswered_since_ = now_;
  if (!searching_since_) return;
  if (attempt_ == Attempt::kRunning) emit(Abandon{});
  attempt_ = Attempt::kNone;
  searching_since_.reset();
  next_note_ = Instant::max();
  if (std::exchange(was_absence_noted_, false)) {
    emit(Note{"the coordinator at " + endpoint() + " answers again"});
  }
}

void SessionMachine::on(const Connected&) {
  if (attempt_ != Attempt::kRunning) return;
  attempt_ = Attempt::kNone;
  is_open_ = was_connected_ = true;
  is_greeted_ = may_speak_ = false;
  next_beat_ = Instant::max();
  unanswered_since_.reset();
  alive();
  greet();
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
  if (was_connected_ && !was_absence_noted_) next_note_ = now_;
  judge_search();
}

void SessionMachine::on(const ConnectionLost& event) {
  if (!is_open_) return;
  is_open_ = is_greeted_ = may_speak_ = false;
  unanswered_since_.reset();
  if (is_over_ || (leave_ && !unheard_since_)) {  // nobody has anything more to say
    if (attempt_ == Attempt::kRunning) emit(Abandon{});
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

std::string SessionMachine::search_sentence() const {
  const std::string why = search_error().empty() ? "" : ": " + search_error();
  const Duration left = std::max(Duration::zero(), search_limit() - (now_ - *searching_since_));
  return was_connected_ ? "the coordinator at " + endpoint() + " cannot be reached" + why +
                              "; trying for another " + seconds_text(left)
                        : "waiting for a coordinator at " + endpoint() + why + "; giving up in " +
                              seconds_text(left);
}

void SessionMachine::judge_search() {
  if (!searching_since_) return;
  if (now_ >= add_saturating(*searching_since_, search_limit())) {
    give_up();
    return;
  }
  if (now_ >= next_note_) {
    next_note_ = now_ + kNoteEvery;
    was_absence_noted_ = true;
    emit(Note{search_sentence()});
  }
  if (attempt_ == Attempt::kScheduled && now_ >= retry_at_) attempt();
}

void SessionMachine::give_up() {
  const std::string error = search_error();
  const std::string why =
      seconds_text(search_limit()) + ": " + (error.empty() ? "nobody answered" : error);
  is_lost_ = true;
  if (attempt_ == Attempt::kRunning) emit(Abandon{});
  if (!was_connected_) {
    emit(Lost{kExitJoinTimedOut, "no coordinator was found at " + endpoint() + " within " + why});
    return;
  }
  emit(Lost{was_in_round() ? kExitCoordinatorLost : kExitJoinTimedOut,
            "the coordinator at " + endpoint() + " was not reached for " + why});
}

// ---- What is said.

bool SessionMachine::is_present() const {
  return join_ && !is_evicted_ && !leave_ && (!is_over_ || is_closed_);
}

bool SessionMachine::is_current(std::uint64_t round) const {
  return last_ && last_->record.round == round;
}

void SessionMachine::greet() {
  if (!is_open_ || is_greeted_ || is_evicted_) return;
  if (!close_ && (!join_ || (leave_ && !was_join_sent_))) return;  // there is nothing to say
  is_greeted_ = true;
  greeted_at_ = now_;
  unanswered_since_ = now_;
  emit(Greet{join_ ? join_->node.id : close_->node, ++hellos_, term_});
  // A failure's time is told on the coordinator's clock, which may be another one now.
  if (!failure_) say_all_anew();
}

void SessionMachine::say_all_anew() {
  if (!is_greeted_ || may_speak_) return;
  may_speak_ = true;
  // A node that holds no round and goes has nothing to resume: joining only to leave might cost the
  // others a round.
  if (join_ && (last_ || !leave_)) {
    was_join_sent_ = true;
    if (is_known_) {
      send(resume());
    } else {
      send(*join_);
    }
  }
  if (close_) send(*close_);
  if (leave_) send(*leave_);
  beat();
}

rdzv::Resume SessionMachine::resume() const {
  rdzv::Resume event{join_->node, join_->settings, phase_, last_, std::nullopt};
  event.node.highest_round = std::max(event.node.highest_round, highest_round_);
  if (last_) event.node.previous_rank = last_->group_rank;
  if (failure_) event.failure = to_coordinator_clock(*failure_);
  return event;
}

// What cannot be said now is said by what comes first on the next connection.
void SessionMachine::send(RendezvousEvent event) {
  unheard_since_ = stamp();
  if (may_speak_) emit(Send{std::move(event)});
}

void SessionMachine::on(const Say& event) {
  std::visit([this](const auto& said) { note_said(said); }, event.statement);
}

void SessionMachine::note_said(const rdzv::Join& said) {
  join_ = said;
  join_->node.highest_round = std::max(said.node.highest_round, highest_round_);
  phase_ = rdzv::NodePhase::kJoined;
  is_evicted_ = is_over_ = is_closed_ = false;
  if (may_speak_) was_join_sent_ = true;
  send(*join_);
  if (!is_open_ && !searching_since_) search(Status());
  greet();
  if (may_speak_ && next_beat_ == Instant::max()) beat();
}

void SessionMachine::note_said(const rdzv::Failed& said) {
  if (!is_present()) return;
  if (is_current(said.round) && !failure_) failure_ = said.failure;
  send(rdzv::Failed{said.node, said.round, to_coordinator_clock(said.failure)});
}

void SessionMachine::note_said(const rdzv::Gone& said) {
  if (!is_present()) return;
  if (is_current(said.round) && phase_ == rdzv::NodePhase::kWorking) {
    phase_ = rdzv::NodePhase::kStopped;
  }
  send(said);
}

void SessionMachine::note_said(const rdzv::Done& said) {
  if (!is_present()) return;
  if (is_current(said.round)) phase_ = rdzv::NodePhase::kDone;
  send(said);
}

void SessionMachine::note_said(const rdzv::Leave& said) {
  if (leave_) return;
  leave_ = said;
  if (was_join_sent_) {
    send(said);
  } else {
    unheard_since_.reset();  // nothing was said that this would take back
  }
  on(Hurry{});
}

void SessionMachine::note_said(const rdzv::Close& said) {
  if (is_evicted_ || leave_) return;
  close_ = said;
  send(said);
  greet();
  on(Hurry{});
}

void SessionMachine::on(const Hurry&) {
  if (may_speak_ && unheard_since_ && last_beat_ < *unheard_since_) beat();
}

// ---- What is heard.

void SessionMachine::on(const Stirred&) { alive(); }

void SessionMachine::on(const Heard& event) {
  alive();
  // What a node has not asked for, or has asked for and left again, it is not told.
  if (!is_greeted_ || leave_) return;
  const bool is_news =
      std::visit([this](const auto& action) { return hear(action); }, event.action);
  if (is_news) emit(Deliver{event.action});
}

bool SessionMachine::hear(const rdzv::Round& action) {
  is_known_ = true;
  if (action.record->round <= highest_round_) return false;
  highest_round_ = action.record->round;
  term_ = std::max(term_, action.record->term);
  last_ = HeldRound{*action.record, action.own.group_rank};
  phase_ = rdzv::NodePhase::kWorking;
  failure_.reset();
  was_evicted_while_done_ = false;
  return true;
}

bool SessionMachine::hear(const rdzv::Restart& action) {
  is_known_ = true;
  const std::uint64_t held = last_ ? last_->record.round : 0;
  if (action.round < held || action.round <= restarted_round_) return false;
  highest_round_ = std::max(highest_round_, action.round);
  restarted_round_ = action.round;
  return true;
}

bool SessionMachine::hear(const rdzv::Waiting&) {
  is_known_ = true;
  return !is_evicted_;
}

bool SessionMachine::hear(const rdzv::Resumed&) {
  is_known_ = true;
  return false;
}

bool SessionMachine::hear(const rdzv::Superseded&) { return false; }

bool SessionMachine::hear(const rdzv::Evicted& action) {
  highest_round_ = std::max(highest_round_, action.round);
  if (is_evicted_ || is_over_) return false;
  if (phase_ == rdzv::NodePhase::kDone && !was_evicted_while_done_) {
    // It was lost while it waited for the others with its work done, and may wait there again.
    was_evicted_while_done_ = true;
    if (may_speak_) send(resume());
    return false;
  }
  is_known_ = false;
  is_evicted_ = true;
  close_.reset();
  unheard_since_.reset();
  unanswered_since_.reset();
  next_beat_ = Instant::max();
  return true;
}

bool SessionMachine::hear(const rdzv::Refused&) { return !std::exchange(is_over_, true); }

bool SessionMachine::hear(const rdzv::TimedOut&) {
  is_known_ = false;
  return !std::exchange(is_over_, true);
}

bool SessionMachine::hear(const rdzv::Closed&) {
  is_known_ = is_closed_ = true;
  close_.reset();
  return !std::exchange(is_over_, true);
}

bool SessionMachine::hear(const rdzv::RoundOver& action) {
  if (action.round <= round_over_) return false;
  round_over_ = action.round;
  return true;
}

// ---- Signs of life, and the other clock.

Duration SessionMachine::beat_interval() const {
  return std::clamp(settings_.node_timeout / kBeatsPerTimeout, kBeatIntervalMin, kBeatIntervalMax);
}

// Grows with every call, so that equal instants can be told apart.
Instant SessionMachine::stamp() {
  last_stamp_ = std::max(now_, last_stamp_ + Duration(1));
  return last_stamp_;
}

void SessionMachine::beat() {
  last_beat_ = stamp();
  if (!unanswered_since_) unanswered_since_ = now_;
  next_beat_ = is_present() ? now_ + beat_interval() : Instant::max();
  emit(Beat{last_beat_});
}

void SessionMachine::on(const Greeted& event) {
  alive();
  if (!is_greeted_) return;
  leaving_reason_.clear();
  term_ = std::max(term_, event.term);
  if (std::exchange(incarnation_, event.incarnation) != event.incarnation) clock_.clear();
  clock_.add(greeted_at_, now_, event.time);
  say_all_anew();
}

void SessionMachine::on(const TimingsReceived& event) {
  alive();
  std::string note;
  for (const auto& [name, member] : kTimings) {
    const Duration own = own_settings_.*member;
    const Duration job = event.settings.*member;
    settings_.*member = job;
    if (job == own) continue;
    note += (note.empty() ? "" : ", ") + std::string(name) + " is " + seconds_text(job) +
            " (here " + seconds_text(own) + ")";
  }
  // The job may count this node as lost sooner than it thought.
  if (next_beat_ != Instant::max()) next_beat_ = std::min(next_beat_, now_ + beat_interval());
  if (std::exchange(timings_note_, note) == note || note.empty()) return;
  emit(
      Note{"the job's timings, which its first node brought, replace those of this node: " + note});
}

void SessionMachine::on(const CoordinatorLeaves& event) {
  alive();
  leaving_reason_ = event.reason;
}

void SessionMachine::on(const BeatAnswered& event) {
  alive();
  if (event.sent > last_beat_ || event.sent < greeted_at_) return;  // nothing that we asked
  clock_.add(event.sent, now_, event.time);
  if (event.sent == last_beat_) unanswered_since_.reset();
  if (unheard_since_ && event.sent > *unheard_since_) unheard_since_.reset();
}

FailureReport SessionMachine::to_coordinator_clock(FailureReport failure) const {
  failure.at += clock_.offset();
  return failure;
}

void SessionMachine::on(const ClockGap& event) {
  if (unanswered_since_) *unanswered_since_ = std::min(now_, *unanswered_since_ + event.gap);
  if (!searching_since_) return;
  const Instant latest = now_ - std::max(search_limit() - attempt_limit(), Duration::zero());
  *searching_since_ = std::min(now_, std::max(*searching_since_ + event.gap, latest));
  backoff_.reset();
  if (attempt_ == Attempt::kScheduled) retry_at_ = now_;
}

void SessionMachine::on(const Tick&) {
  if (is_open_ && now_ >= next_beat_) {
    if (is_present()) {
      beat();
    } else {
      next_beat_ = Instant::max();
    }
  }
  if (is_open_ && !searching_since_ && unanswered_since_ &&
      now_ - *unanswered_since_ >= settings_.node_timeout / kDoubtsPerTimeout) {
    search(Status(StatusCode::kUnavailable,
                  "no answer for " + seconds_text(now_ - *unanswered_since_)));
  }
  judge_search();
}

}  // namespace elastic::core
