// Theory of operation
//
// A session outlives its connections. It has four parts: the connection (its state in the table,
// and the search for a coordinator), the outbox (the messages that the coordinator must receive,
// and which of them it acknowledged), the reports that a further coordinator receives again, and
// the clock (every timer). An event or an expired timer becomes an input of the table, and the
// reaction is executed here on the parts.
//
// Several heartbeats are sent per node_timeout, and the coordinator replies at once. A reply
// acknowledges every message that was sent before the heartbeat; there is no other acknowledgement.
// If no reply arrives within an eighth of node_timeout, the machine attempts a second connection
// and keeps the one on which bytes arrive first. So a network path that drops packets is replaced
// before the coordinator counts the node as lost (TCP alone would wait too long between its
// retransmissions), and a coordinator that was only stopped keeps all its sessions.
//
// While no coordinator replies, attempts are repeated with backoff, the first one at once. The
// limit is join_timeout for a node that was never in a round, and store_grace for one that holds a
// round. It counts from the last reply of a coordinator that reached a majority of its voters: one
// that is cut off from them cannot end the round, and the others continue without this node. Time
// in which this process was stopped does not count, and after such a gap there is time for at least
// one whole attempt.
//
// The timings are the job's: those that the coordinator sends replace this node's own.
//
// A node that is not registered (before its Join, after its eviction or its Leave) sends no
// heartbeats: the reply would be Evicted.
//
// A session ends in steps: the last messages are acknowledged, the coordinator in this process has
// no sessions left, and the store that keeps the record has it back. Each step begins with a tick,
// never with the event that ends the previous one: the sender of that event may be destroyed.

#include "core/session/session_machine.h"

#include <algorithm>
#include <utility>

#include "core/base/earliest.h"
#include "core/base/text.h"
#include "core/base/timings.h"

namespace elastic::core {
namespace {

// A final message is acknowledged within a round trip. A coordinator that cannot be reached detects
// the silence, for which a node that was asked to stop does not wait.
constexpr Duration kFinalMessageTimeout = std::chrono::seconds(1);
// How long the end waits until a store names this process no more. The next coordinator asks
// otherwise.
constexpr Duration kReleaseTimeout = std::chrono::seconds(1);
constexpr Duration kLossesApart = std::chrono::milliseconds(100);
constexpr int kLossesAtOnce = 5;  // in a row, each after less than that

}  // namespace

SessionMachine::SessionMachine(const JobSettings& settings, std::vector<std::string> endpoints,
                               std::uint64_t seed)
    : connection_(std::move(endpoints), seed), clock_(settings) {}

void SessionMachine::begin(Instant now, std::vector<Action>* actions) {
  clock_.advance(now);
  out_ = actions;
  apply(SessionInput::kConnectionNeeded);
  out_ = nullptr;
}

void SessionMachine::step(const Event& event, Instant now, std::vector<Action>* actions) {
  clock_.advance(now);
  out_ = actions;
  const bool is_of_end =
      std::holds_alternative<EndStepDone>(event) || std::holds_alternative<Tick>(event);
  if (is_of_end || !is_closed()) std::visit([this](const auto& one) { on(one); }, event);
  out_ = nullptr;
}

std::optional<Instant> SessionMachine::next_deadline() const {
  if (is_end_due()) return clock_.now();
  return is_closed() ? end_step_until_ : earliest({clock_.next_deadline(), end_step_until_});
}

bool SessionMachine::is_flushed() const {
  if (state() == SessionState::kLost || !outbox_.unacknowledged_since()) return true;
  return outbox_.has_ended() && !connection_.is_open();
}

Duration SessionMachine::attempt_pace(Duration usual) const {
  return was_connected() ? core::attempt_pace(settings().node_timeout, usual) : usual;
}

// ---- Events become inputs.

void SessionMachine::on(const Connected&) {
  if (!clock_.is_attempt_running()) return;
  apply(SessionInput::kConnected);
  if (outbox_.has_facts()) apply(SessionInput::kFactsToSend);
}

void SessionMachine::on(const AttemptDelayed& event) { connection_.set_error(event.so_far); }

void SessionMachine::on(const AttemptFailed& event) {
  if (!clock_.is_attempt_running()) return;
  if (is_final(event)) {
    apply(SessionInput::kAttemptRejected, event.why, *event.exit_code);
    return;
  }
  apply(SessionInput::kAttemptFailed, event.why);
  check_search();
}

void SessionMachine::on(const ConnectionLost& event) {
  const bool is_refusal = event.why.code() == StatusCode::kPeerViolation &&
                          !connection_.has_answered() && !outbox_.was_in_round();
  if (is_refusal) on(Received{rdzv::Refused{{}, event.why}});
  const bool must_pause = connection_.has_answered() && is_lost_at_once();
  lose_connection(event.why, false, must_pause);
}

// A coordinator that closes or redirects each connection at once, as after a message that it cannot
// read, is not called without a pause.
bool SessionMachine::is_lost_at_once() {
  if (lost_at_ && clock_.now() - *lost_at_ > kLossesApart) losses_ = 0;
  lost_at_ = clock_.now();
  return ++losses_ > kLossesAtOnce;
}

void SessionMachine::lose_connection(const Status& why, bool is_redirected, bool is_misdirected) {
  is_redirected_ = is_redirected;
  is_misdirected_ = is_misdirected;
  apply(outbox_.is_over() ? SessionInput::kConnectionOver : SessionInput::kConnectionLost, why);
  is_redirected_ = is_misdirected_ = false;
}

bool SessionMachine::accept_message() {
  apply(SessionInput::kMessage);
  return connection_.is_greeted();
}

void SessionMachine::on(const Activity&) { accept_message(); }

void SessionMachine::on(const HelloReceived& event) {
  if (!accept_message()) return;
  kept_.coordinator_replied(event.incarnation);
  connection_.answered(event.term);
  clock_.hello_answered(event.incarnation, event.time);
  if (auto message = connection_.log_recovery()) emit(Log{*std::move(message)});
  apply(SessionInput::kClockKnown);
  if (holds_facts_ && outbox_.has_facts()) send_facts();
}

void SessionMachine::on(const TimingsReceived& event) {
  if (!accept_message()) return;
  const std::string difference = clock_.set_job_timings(event.settings);
  if (!difference.empty()) emit(Log{difference});
}

void SessionMachine::on(const CoordinatorLeaves& event) {
  if (accept_message()) connection_.set_leaving_reason(event.reason);
}

void SessionMachine::on(const CoordinatorMoved& event) {
  if (state() == SessionState::kIdle || state() == SessionState::kLost) return;
  if (!event.address.empty()) connection_.redirect(event.address);
  const bool was_searching = clock_.is_searching();
  if (connection_.is_open()) {
    const Status why(StatusCode::kUnavailable, event.address.empty()
                                                   ? "it does not coordinate the job any more"
                                                   : "the coordinator moved to " + event.address);
    emit(Disconnect{.is_loss = connection_.has_answered()});
    lose_connection(why, true, is_lost_at_once() || event.address.empty());
  }
  // A search that was going on continues with the address, at once.
  if (!was_searching || !clock_.is_searching() || event.address.empty()) return;
  if (clock_.is_attempt_running()) emit(CancelAttempt{});
  connect();
}

void SessionMachine::on(const Displaced& event) {
  if (state() == SessionState::kIdle || state() == SessionState::kLost) return;
  const auto eviction = outbox_.displace(event.reason);
  kept_ = {};  // of the job that is dissolved: the other one was given no such notice
  on(CoordinatorMoved{event.address});
  if (eviction) emit(Deliver{*eviction});
}

void SessionMachine::on(const CoordinatorExpired& event) {
  if (state() == SessionState::kLost) return;
  apply(SessionInput::kAuthorityLost, Status(StatusCode::kUnavailable, event.reason),
        event.exit_code);
}

void SessionMachine::on(const HeartbeatAcknowledged& event) {
  if (!accept_message()) return;
  connection_.reset_backoff();
  clock_.confirmed(event.alone, search_limit());
  if (clock_.acknowledge(event.sent, event.time)) outbox_.acknowledge(event.sent);
}

// What ends the connection, and not the part of a node whose workers run: refusals whose reason can
// be gone in a second (the coordinator is full since it was restarted, or bytes were damaged), and
// a round that contradicts this node's own one.
std::optional<Status> SessionMachine::outage_of(const RendezvousAction& action) const {
  if (const auto* const round = std::get_if<rdzv::Round>(&action)) {
    if (!outbox_.contradicts(*round)) return std::nullopt;
    return Status(StatusCode::kPeerViolation, "the coordinator began round " +
                                                  std::to_string(round->record->round) +
                                                  ", which this node has not joined");
  }
  const auto* const refused = std::get_if<rdzv::Refused>(&action);
  if (refused == nullptr || !outbox_.works_in_round()) return std::nullopt;
  const StatusCode code = refused->error.code();
  const bool may_pass = code == StatusCode::kResourceExhausted ||
                        code == StatusCode::kUnavailable || code == StatusCode::kPeerViolation;
  return may_pass ? std::optional(refused->error) : std::nullopt;
}

// Its number of workers would size what this node allocates and indexes.
bool SessionMachine::is_foreign(const RendezvousAction& action) const {
  const auto* const round = std::get_if<rdzv::Round>(&action);
  return round != nullptr && outbox_.awaits_round() &&
         round->own.local_world_size != outbox_.local_world_size();
}

void SessionMachine::on(const Received& event) {
  if (!accept_message()) return;
  if (const auto why = outage_of(event.action); why && connection_.is_open()) {
    // The search continues, with the pause between attempts, until store_grace is over.
    emit(Disconnect{.is_loss = connection_.has_answered()});
    return lose_connection(*why, true, true);
  }
  if (is_foreign(event.action)) {
    const int given = std::get<rdzv::Round>(event.action).own.local_world_size;
    const Status why(StatusCode::kFailedPrecondition,
                     "the coordinator sent a round with " + count_text(given, "worker") +
                         " for this node, which has " +
                         count_text(outbox_.local_world_size(), "worker") +
                         ": use another run id (--rdzv-id), or the same version on all nodes");
    return on(Received{rdzv::Refused{{}, why}});
  }
  if (std::holds_alternative<rdzv::Resumed>(event.action)) {
    // The coordinator knows the round now.
    if (auto progress = kept_.after_resumed(clock_.now())) emit(SendReport{*std::move(progress)});
  }
  // A result of the job that crosses the leave is that of this node, too.
  if (outbox_.has_left() && !std::holds_alternative<rdzv::Closed>(event.action)) return;
  switch (outbox_.receive(event.action)) {
    case SessionOutbox::Receipt::kKnown: return;
    case SessionOutbox::Receipt::kResume:
      if (connection_.is_ready()) send(outbox_.resume());
      return;
    case SessionOutbox::Receipt::kDeliver: break;
  }
  if (const auto* round = std::get_if<rdzv::Round>(&event.action)) {
    connection_.saw_term(round->record->term);
    kept_.begin_round();
  } else if (std::holds_alternative<rdzv::Evicted>(event.action)) {
    clock_.reset_heartbeats();
  }
  emit(Deliver{event.action});
}

void SessionMachine::on(const Submit& event) {
  const bool is_join = std::holds_alternative<rdzv::Join>(event.statement);
  const bool is_final = std::holds_alternative<rdzv::Leave>(event.statement) ||
                        std::holds_alternative<rdzv::Close>(event.statement);
  auto message = outbox_.submit(event.statement, connection_.is_ready());
  if (!message) return;
  // The time of a failure is sent on this coordinator's clock. What follows the failure waits, too.
  if (connection_.is_ready() && !connection_.has_answered() && outbox_.needs_coordinator_clock()) {
    outbox_.mark_unacknowledged(clock_.stamp());
    holds_facts_ = true;
    return;
  }
  send(*std::move(message));
  if (is_join) apply(SessionInput::kConnectionNeeded);
  if (outbox_.has_facts()) apply(SessionInput::kFactsToSend);
  if (is_join && connection_.is_ready() && !clock_.has_heartbeats()) send_heartbeat();
  if (is_final) flush();
}

void SessionMachine::on(const Report& event) {
  const bool is_sent = state() == SessionState::kReady;
  const Delivery otherwise = connection_.is_ready() ? Delivery::kHeld : Delivery::kDropped;
  kept_.keep(event.report, is_sent ? Delivery::kSent : otherwise, clock_.now());
  if (is_sent) emit(SendReport{event.report});
}

void SessionMachine::on(const Informed& event) { kept_.note(event.message, clock_.now()); }

void SessionMachine::on(const Introduce& event) {
  outbox_.introduce(event.node);
  if (outbox_.has_facts()) apply(SessionInput::kFactsToSend);
}

void SessionMachine::on(const ClockGap& event) {
  if (!is_clock_gap(event.gap, settings().node_timeout)) return;
  clock_.skip(event.gap);
  connection_.reset_backoff();
}

void SessionMachine::on(const Tick&) {
  if (is_end_due() || is_closed()) return end_next();
  if (clock_.is_heartbeat_due()) apply(SessionInput::kHeartbeatDue);
  if (clock_.is_silence_due()) {
    apply(SessionInput::kSilence,
          Status(StatusCode::kUnavailable, "no answer for " + duration_text(clock_.silence())));
  }
  check_majority();
  check_search();
}

// A coordinator without a majority of its voters gives up after store_grace. The node may have been
// without one for longer, and the nodes that have one continue.
void SessionMachine::check_majority() {
  if (!clock_.is_majority_overdue()) return;
  clock_.stop_waiting_for_majority();
  if (!was_in_round() || outbox_.is_over()) return;
  on(CoordinatorExpired{connection_.alone_message(clock_.unconfirmed())});
}

void SessionMachine::check_search() {
  if (clock_.is_search_expired()) apply(SessionInput::kSearchExpired);
  if (clock_.is_log_due()) apply(SessionInput::kLogDue);
  if (clock_.is_retry_due()) apply(SessionInput::kRetryDue);
}

// ---- Reactions.

void SessionMachine::apply(SessionInput input, const Status& why, int exit_code) {
  const bool was_open = connection_.is_open();
  const SessionReaction reaction = connection_.apply(input);
  if (was_open && !connection_.is_open()) clock_.reset_heartbeats();
  switch (reaction) {
    case SessionReaction::kIgnore: break;
    case SessionReaction::kSearch: search(why); break;
    case SessionReaction::kAdopt: adopt(); break;
    case SessionReaction::kRetry: retry(why); break;
    case SessionReaction::kReject:
      clock_.stop_search();
      emit(Lost{exit_code, std::string(why.message())});
      break;
    case SessionReaction::kKeepSearching: connection_.set_error(why); break;
    case SessionReaction::kStop: cancel_search(); break;
    case SessionReaction::kReceive: clock_.activity(); break;
    case SessionReaction::kRecover: recover(); break;
    case SessionReaction::kSendHello: send_hello(); break;
    case SessionReaction::kSendFacts: send_facts(); break;
    case SessionReaction::kSendHeartbeat:
      if (outbox_.is_present()) {
        send_heartbeat();
      } else {
        clock_.pause_heartbeats();
      }
      break;
    case SessionReaction::kConnect: connect(); break;
    case SessionReaction::kLog: log_outage(); break;
    case SessionReaction::kGiveUp: give_up(); break;
  }
}

void SessionMachine::search(const Status& why) {
  connection_.start_search(why, is_redirected_);
  clock_.start_search(search_limit(), is_redirected_);
  if (is_misdirected_) {
    clock_.retry_after(connection_.next_attempt());
  } else {
    connect();
  }
}

void SessionMachine::connect() {
  clock_.attempt_started();
  emit(Connect{connection_.endpoint(), connection_.redirected_address()});
}

void SessionMachine::adopt() {
  connection_.adopted();
  kept_.forget_held();
  holds_facts_ = false;
  clock_.reset_heartbeats();
  clock_.stop_search();
}

void SessionMachine::retry(const Status& why) {
  connection_.set_error(why);
  clock_.retry_after(connection_.next_attempt());
  // The first failure after an outage began is logged at once.
  if (connection_.was_open() && !connection_.is_outage_logged()) clock_.log_now();
}

void SessionMachine::cancel_search() {
  if (clock_.is_attempt_running()) emit(CancelAttempt{});
  clock_.stop_search();
}

void SessionMachine::recover() {
  clock_.activity();
  cancel_search();
  if (auto message = connection_.log_recovery()) emit(Log{*std::move(message)});
  if (!connection_.is_ready()) return;
  for (NodeReport& report : kept_.after_silence(clock_.now())) emit(SendReport{std::move(report)});
}

void SessionMachine::send_hello() {
  clock_.hello_sent();
  emit(SendHello{outbox_.node(), connection_.count_hello(), connection_.term()});
  // The time of a failure is sent on the coordinator's clock, and the coordinator may be a new one:
  // a resume with a failure follows its reply.
  if (!outbox_.needs_coordinator_clock()) apply(SessionInput::kClockKnown);
}

void SessionMachine::send_facts() {
  holds_facts_ = false;
  for (RendezvousEvent& message : outbox_.facts()) send(std::move(message));
  if (!outbox_.has_join()) send_findings();  // of a node that is too bad to join
  send_heartbeat();
}

void SessionMachine::send_heartbeat() {
  emit(SendHeartbeat{clock_.heartbeat_sent(outbox_.is_present())});
}

// Requests an acknowledgement at once.
void SessionMachine::flush() {
  const auto since = outbox_.unacknowledged_since();
  if (connection_.is_ready() && since && !clock_.was_heartbeat_sent_since(*since)) {
    send_heartbeat();
  }
}

void SessionMachine::log_outage() {
  clock_.log_written();
  emit(Log{connection_.log_outage(), clock_.search_expiry()});
}

void SessionMachine::give_up() {
  std::string message = connection_.lost_message(clock_.search_limit());
  cancel_search();
  emit(Lost{was_in_round() ? kExitCoordinatorLost : kExitJoinTimedOut, std::move(message)});
}

Duration SessionMachine::search_limit() const {
  const JobSettings& settings = clock_.settings();
  return was_in_round() ? settings.store_grace : settings.join_timeout;
}

// ---- The end.

void SessionMachine::on(const End& event) {
  end_step_ = EndStep::kMessages;
  job_ = event.job;
  end_until_ = add_saturating(clock_.now(), event.limit);
  end_step_until_ = std::min(end_until_, clock_.now() + kFinalMessageTimeout);
  flush();
}

void SessionMachine::on(const EndStepDone&) {
  if (end_step_until_) end_step_until_ = clock_.now();
}

bool SessionMachine::is_end_due() const {
  const bool is_flushed_for_good = end_step_ == EndStep::kMessages && is_flushed();
  return is_flushed_for_good || (end_step_until_ && clock_.now() >= *end_step_until_);
}

void SessionMachine::end_next() {
  if (!is_end_due()) return;
  const Duration left = end_until_ - clock_.now();
  const bool has_time = left > Duration::zero();
  end_step_until_.reset();
  if (end_step_ == EndStep::kMessages) {
    // The coordinator in this process waits until its sessions have ended.
    if (clock_.is_attempt_running()) emit(CancelAttempt{});
    if (connection_.is_open()) emit(Disconnect{});
    end_step_ = EndStep::kCoordinator;
    end_step_until_ = end_until_;
    if (has_time) return emit(end_of_coordinator(left));
  }
  if (end_step_ == EndStep::kCoordinator && has_time) {
    end_step_ = EndStep::kRecord;
    end_step_until_ = std::min(end_until_, clock_.now() + kReleaseTimeout);
    return emit(ReleaseRecord{});
  }
  end_step_ = EndStep::kOver;
  end_step_until_.reset();
  emit(Ended{});
}

// The reason that nodes receive when the coordinator of this process ends before their job.
SessionMachine::EndCoordinator SessionMachine::end_of_coordinator(Duration limit) const {
  if (const auto* timed_out = std::get_if<rdzv::TimedOut>(&outbox_.end())) {
    return {limit, "the agent that hosts the coordinator gave up: " + timed_out->message, true};
  }
  std::string why = outbox_.leave_reason();
  if (const auto* closed = std::get_if<rdzv::Closed>(&outbox_.end())) {
    const bool is_success = closed->result->outcome == JobOutcome::kSucceeded;
    why = "its job " + job_ + (is_success ? " has succeeded" : " has ended");
  }
  const std::string what = "the agent that hosted the coordinator has ended";
  return {limit, why.empty() ? what : what + ": " + why};
}

// A message that cannot be sent now is part of the facts of the next connection.
void SessionMachine::send(RendezvousEvent event) {
  outbox_.mark_unacknowledged(clock_.stamp());
  if (!connection_.is_ready()) return;
  if (auto* failed = std::get_if<rdzv::Failed>(&event)) {
    failed->failure.at += clock_.offset();
  } else if (auto* resume = std::get_if<rdzv::Resume>(&event); resume && resume->failure) {
    resume->failure->at += clock_.offset();
  }
  const bool is_join = std::holds_alternative<rdzv::Join>(event);
  const bool is_resume = std::holds_alternative<rdzv::Resume>(event);
  emit(Send{std::move(event)});
  if (is_join) {
    if (auto notice = kept_.after_join(clock_.now())) emit(SendReport{*std::move(notice)});
  } else if (is_resume) {
    for (NodeReport& report : kept_.after_resume(clock_.now())) emit(SendReport{std::move(report)});
  }
  if (is_join || is_resume) send_findings();
}

void SessionMachine::send_findings() {
  for (auto& finding : kept_.take_findings(clock_.now())) {
    emit(SendReport{std::move(finding)});
  }
}

}  // namespace elastic::core
