// Theory of operation
//
// A process is a follower until its claim is stored. A follower without a coordinator reads the
// record, and does what that says:
//
//   nothing is stored          claims the office, under term 1 of a new lineage
//   no process holds it        claims it under the next term, in its turn
//   a holder without address   waits for the address; after node_timeout it claims the role
//   an address                 connects to it
//   the address of the coordinator that it has lost: asks whether that lives (below)
//
// Only the compare-and-set decides which process holds the role, and nothing of a former holder is
// stored after it: decisions of two coordinators are never in force (R3, R4 of docs/rendezvous.md).
// There is no lease and no clock. A coordinator that is cut off from the store gets nothing into
// force, and gives up after store_grace (R5). The coordinator's writes hold the whole state:
// whatever happens while one is pending is in the next one. A write whose answer was lost is judged
// by what is read next: whether the stored content is the one that was proposed.
//
// One bad link must not end an office: a node that cannot reach the coordinator writes a challenge
// into the record. A coordinator that lives reads its record again and again, and answers by a
// write without it. The node claims the office when no answer is there in time; otherwise it tries
// to connect, until its own limits end it. An address that answers that no coordinator is there
// makes the time short. A refusal alone proves nothing, because a firewall may send it. A refusal
// after the coordinator itself has closed the session proves that the process has ended or no
// longer coordinates the job.
//
// Turns: by the node's rank in the round, so that the first claim is the only one. The others read
// the winner's address. Two claims at once are harmless.

#include "core/succession/kept_machine.h"

#include <algorithm>
#include <utility>

#include "core/base/text.h"
#include "core/base/timings.h"
#include "elastic/agent.h"

namespace elastic::succession {
namespace {

using namespace std::chrono_literals;

constexpr BackoffOptions kAfterFailure = {.first = 50ms, .cap = 1s};
constexpr Duration kTurn = 20ms;
constexpr int kTurns = 16;  // of further ranks, and of nodes without one
// A call that takes longer counts as an outage.
constexpr Duration kCallLimit = 1s;
constexpr Duration kOutageLogDelay = 1s;
constexpr Duration kOutageLogInterval = 10s;
// A store may drop a value that is not written for long (etcd: after two hours).
constexpr Duration kRefreshInterval = 10min;

}  // namespace

KeptMachine::KeptMachine(Settings settings, std::uint64_t seed, Instant now)
    : settings_(std::move(settings)),
      rng_(seed),
      failures_(kAfterFailure, &rng_),
      now_(now),
      next_read_(now),
      poll_wait_(poll_max() / 4) {}

void KeptMachine::begin(Instant now, std::vector<Action>* actions) {
  now_ = std::max(now_, now);
  out_ = actions;
}

void KeptMachine::end() {
  judge();
  judge_outage();
  out_ = nullptr;
}

void KeptMachine::step(const Event& event, Instant now, std::vector<Action>* actions) {
  begin(now, actions);
  std::visit([this](const auto& one) { on(one); }, event);
  if (ending_ && now_ >= ending_->until) leave_office(ending_->reason);
  if (follow_until_ && now_ >= *follow_until_) lose();
  if (must_watch() && !is_watched_ && pending_ == Pending::kNone && now_ >= next_read_) {
    is_read_due_ = true;
  }
  end();
}

// ---- The session of this process.

void KeptMachine::on(const Informed& event) {
  if (is_coordinator()) return;
  const Incumbent& named = event.incumbent;
  const bool is_older =
      incumbent_ && incumbent_->lineage == named.lineage && named.term < incumbent_->term;
  if (is_older) return;
  incumbent_ = named;
  followed_ = {named.lineage, named.term, named.address};
  has_session_ = has_belonged_ = true;
  follow_until_.reset();
  found();
}

// While this node follows the next coordinator, only the former one can have been lost.
void KeptMachine::on(const IncumbentLost&) {
  if (!is_coordinator() && !follow_until_) lose();
}

void KeptMachine::on(const IncumbentReturned&) {
  if (is_coordinator()) return;
  has_session_ = true;
  follow_until_.reset();
  found();
}

void KeptMachine::on(const Unreachable& event) {
  if (is_coordinator() || event.address != followed_.address || !event.is_refused) return;
  const bool has_ended = has_session_ && event.was_closed;
  lose();
  is_refused_ = true;
  if (has_ended) ended_at_ = add_saturating(now_, turn());
}

// The coordinator of the record, or its successor, was found: nothing is known against it.
void KeptMachine::found() {
  is_lost_ = is_refused_ = false;
  ended_at_.reset();
  challenge_.reset();
  alive_until_.reset();
}

void KeptMachine::lose() {
  follow_until_.reset();
  has_session_ = false;
  if (is_lost_) return;
  found();
  is_lost_ = true;
  poll_wait_ = poll_max() / 4;
  is_read_due_ = true;
  next_read_ = std::min(next_read_, now_);
}

void KeptMachine::on(const Timings& event) {
  settings_.node_timeout = event.node_timeout;
  settings_.store_grace = event.store_grace;
}

// ---- The coordinator of this process.

void KeptMachine::on(const CoordinatorStarted& event) {
  if (role_ == Role::kStarting) address_ = event.address;
}

void KeptMachine::on(const CoordinatorFailed& event) {
  if (!is_coordinator()) return;
  emit(Log{"the job's coordinator could not be started on this node: " + event.reason});
  stands_from_ = std::max(stands_from_, add_saturating(now_, settings_.node_timeout));
  ending_ = Ending{event.reason, add_saturating(now_, settings_.handover_timeout)};
}

void KeptMachine::on(const Propose& event) {
  // One of an earlier office of this process may arrive late.
  if (is_coordinator() && (event.term == 0 || event.term == term_)) open_ = event;
}

void KeptMachine::on(const LaterTermSeen& event) {
  if (is_coordinator() && event.term > term_) is_read_due_ = true;
}

// A claim whose answer is pending is given back when it turns out to be stored.
void KeptMachine::on(const Resign&) {
  stands_from_ = Instant::max();
  if (!is_coordinator() || ending_) return;
  ending_ =
      Ending{"the coordinator ended in order", add_saturating(now_, settings_.handover_timeout)};
}

// By value: it may be that of ending_.
void KeptMachine::leave_office(std::string reason) {
  role_ = Role::kFollower;
  ending_.reset();
  open_.reset();
  address_.clear();
  has_session_ = false;
  found();
  followed_ = {};
  auto successor = stored_ && !is_mine() ? incumbent_of(*stored_) : std::nullopt;
  incumbent_ = successor;
  emit(StopCoordinator{std::move(reason), std::move(successor)});
}

void KeptMachine::give_up(int exit_code, const std::string& why) {
  if (std::exchange(has_given_up_, true)) return;
  if (is_coordinator()) leave_office(why);
  emit(KeeperFault{exit_code, settings_.store + " rendezvous: " + why});
}

// A node that went on could form a second group beside those that found the store empty.
void KeptMachine::store_lost() {
  give_up(kExitCoordinatorLost, "the store was restarted: the job's record in it is lost");
}

// ---- Calls of the store.

bool KeptMachine::needs_coordinator() const { return role_ == Role::kFollower && !has_session_; }

bool KeptMachine::must_watch() const {
  if (has_given_up_) return false;
  const bool is_connecting = !is_lost_ && !followed_.address.empty();
  return is_coordinator() || (needs_coordinator() && !is_connecting);
}

std::optional<KeeperCall> KeptMachine::next_call() {
  if (pending_ != Pending::kNone || !must_watch()) return std::nullopt;
  const auto call = [this](Pending kind, KeeperCall one) {
    pending_ = kind;
    pending_since_ = now_;
    return std::optional(std::move(one));
  };
  if (is_read_due_) {
    if (now_ < next_read_) return std::nullopt;
    return call(Pending::kRead, KeeperRead{});
  }
  if (wants_write()) return call(Pending::kWrite, KeeperWrite{encode_kept(wanted()), token_});
  if (!is_watched_) return std::nullopt;
  wait_until_ = add_saturating(now_, core::keeper_wait_limit(settings_.node_timeout));
  return call(Pending::kWait, KeeperWait{token_, wait_until_});
}

bool KeptMachine::must_interrupt() const {
  if (pending_ != Pending::kWait) return false;
  return is_read_due_ || !must_watch() || wants_write();
}

void KeptMachine::read(const Result<std::optional<StoredState>>& answer, Instant now,
                       std::vector<Action>* actions) {
  begin(now, actions);
  end_call();
  if (answer.ok()) {
    is_read_due_ = false;
    was_read_ = true;
    poll_wait_ = std::min(poll_wait_ * 3 / 2, poll_max());
    next_read_ = add_saturating(now_, poll_wait_);
    load(*answer);
  } else {
    failed(answer.status());
  }
  end();
}

void KeptMachine::written(const Result<StoredWrite>& answer, Instant now,
                          std::vector<Action>* actions) {
  begin(now, actions);
  end_call();
  if (answer.ok()) {
    // A conflict: the value is gone, or holds the other writer's bytes.
    const bool is_there = answer->was_set || !answer->now.bytes.empty();
    if (answer->was_set) refresh_at_ = add_saturating(now_, kRefreshInterval);
    load(is_there ? std::optional(answer->now) : std::nullopt);
  } else {
    failed(answer.status());
  }
  end();
}

void KeptMachine::waited(bool is_watched, Instant now, std::vector<Action>* actions) {
  begin(now, actions);
  pending_ = Pending::kNone;
  is_watched_ = is_watched;
  judge();
  // What is to be written needs no read: the store compares the version.
  if (!wants_write() && is_watched) {
    is_read_due_ = true;
    next_read_ = std::min(next_read_, now_);
  }
  end();
}

// The slowest call of late: a coordinator that lives needs as long to answer.
void KeptMachine::end_call() {
  pending_ = Pending::kNone;
  slowest_call_ = std::max<Duration>(now_ - pending_since_, slowest_call_ * 7 / 8);
}

void KeptMachine::failed(const Status& why) {
  is_read_due_ = true;
  next_read_ = add_saturating(now_, failures_.next());
  switch (why.code()) {
    case StatusCode::kUnavailable:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kResourceExhausted: break;
    case StatusCode::kInvalidArgument:
    case StatusCode::kNotFound: return give_up(kExitUsage, std::string(why.message()));
    case StatusCode::kFailedPrecondition:
      return give_up(kExitCoordinatorLost, std::string(why.message()));
    case StatusCode::kPeerViolation: return give_up(kExitRejected, std::string(why.message()));
    default: return give_up(kExitInternal, std::string(why.message()));
  }
  outage_ = std::string(why.message());
  if (outage_since_) return;
  outage_since_ = now_;
  outage_log_at_ = add_saturating(now_, kOutageLogDelay);
}

void KeptMachine::reached() {
  failures_ = Backoff(kAfterFailure, &rng_);
  if (!outage_since_) return;
  const Duration outage = now_ - *std::exchange(outage_since_, std::nullopt);
  outage_log_at_.reset();
  if (!std::exchange(has_majority_, true)) emit(MajorityRegained{});
  if (std::exchange(is_outage_logged_, false) && is_coordinator()) {
    emit(Log{"the " + settings_.store + " rendezvous can be reached again after " +
             core::duration_text(outage)});
  }
}

// The coordinator's alone: a node's session has the limits of a node.
void KeptMachine::judge_outage() {
  const bool is_call = pending_ == Pending::kRead || pending_ == Pending::kWrite;
  const bool is_late = (is_call && now_ > pending_since_ + kCallLimit) ||
                       (pending_ == Pending::kWait && now_ > wait_until_ + kCallLimit);
  if (is_late && !outage_since_) {
    outage_since_ = is_call ? pending_since_ : wait_until_;
    outage_ = "a call of the store has not returned";
    outage_log_at_ = add_saturating(now_, kOutageLogDelay);
  }
  if (!is_coordinator() || !outage_since_ || has_given_up_) return;
  if (std::exchange(has_majority_, false)) emit(MajorityLost{});
  if (outage_log_at_ && now_ >= *outage_log_at_) {
    outage_log_at_ = add_saturating(now_, kOutageLogInterval);
    is_outage_logged_ = true;
    emit(Log{"the " + settings_.store + " rendezvous cannot be reached: " + outage_ +
             "; no round begins until it can"});
  }
  if (now_ < add_saturating(*outage_since_, settings_.store_grace)) return;
  const std::string reason = "the " + settings_.store + " rendezvous could not be reached for " +
                             core::duration_text(settings_.store_grace) +
                             " (store_grace): " + outage_;
  has_given_up_ = true;
  leave_office(reason);
  emit(Expired{reason});
}

void KeptMachine::load(const std::optional<StoredState>& stored) {
  if (!stored) {
    reached();
    if (has_belonged_ || is_coordinator()) return store_lost();
    stored_.reset();
    token_.reset();
    followed_ = {};
    found();
    return;
  }
  if (stored_ && stored->token == token_) {  // no two versions have one token
    reached();
    return settle();
  }
  auto record = decode_kept(stored->bytes);
  if (!record.ok()) return give_up(kExitRejected, std::string(record.status().message()));
  const bool is_other = stored_ && stored_->lineage != record->lineage;
  if (is_other && (has_belonged_ || is_coordinator())) return store_lost();
  if (stored_ && !is_other && record->version < stored_->version) {
    return failed(Status(StatusCode::kUnavailable, "it returns only old versions"));
  }
  reached();
  token_ = stored->token;
  stored_ = *std::move(record);
  settle();
}

// ---- What is stored now is in force.

void KeptMachine::settle() {
  if (!is_coordinator()) {
    // Not again at once where its coordinator could not be started.
    if (is_mine() && (is_resigning() || now_ >= stands_from_)) take_office();
    return;
  }
  if (!is_mine() || stored_->term != term_) {
    const bool is_given_up = ending_ && stored_->holder == NodeId{};
    return leave_office(is_given_up ? ending_->reason : "another node coordinates the job now");
  }
  if (open_ && stored_->content == open_->content) {
    emit(InForce{std::exchange(open_, std::nullopt)->number});
  }
  if (role_ != Role::kStarting || address_.empty() || stored_->address != address_) return;
  role_ = Role::kCoordinator;
  incumbent_ = incumbent_of(*stored_);
  followed_ = {stored_->lineage, stored_->term, address_};
  emit(Inform{*incumbent_});
  emit(Follow{*incumbent_});
}

void KeptMachine::take_office() {
  JobRecord record;
  if (!stored_->content.bytes.empty()) {
    auto decoded = decode_record(stored_->content.bytes);
    if (!decoded.ok()) return give_up(kExitRejected, std::string(decoded.status().message()));
    record = *std::move(decoded);
  }
  role_ = Role::kStarting;
  term_ = stored_->term;
  has_majority_ = has_belonged_ = true;
  has_session_ = false;
  found();
  follow_until_.reset();
  intent_ = Intent::kNone;
  if (is_resigning()) {
    ending_ = Ending{"this process ends", add_saturating(now_, settings_.handover_timeout)};
    return;
  }
  emit(StartCoordinator{.lineage = stored_->lineage,
                        .term = term_,
                        .record = std::move(record),
                        .lost_incumbent = former_,
                        .is_kept = true});
}

bool KeptMachine::wants_write() const {
  if (is_read_due_ || has_given_up_) return false;
  if (!is_coordinator()) return intent_ != Intent::kNone;
  return ending_ || now_ >= refresh_at_ || stored_->challenge != 0 ||
         stored_->address != address_ || (open_ && stored_->content != open_->content);
}

// REQUIRES: wants_write()
KeptRecord KeptMachine::wanted() {
  KeptRecord next = stored_.value_or(KeptRecord{});
  if (intent_ == Intent::kClaim) {
    // Others may only have been too slow to answer: their nodes resume.
    former_ = ended_at_ ? next.node : NodeId{};
    if (!stored_) next.lineage = {rng_.next(), rng_.next() | 1};
    ++next.term;
    next.holder = settings_.self;
    next.node = node_;
    next.address.clear();
    next.challenge = 0;
  } else if (intent_ == Intent::kChallenge) {
    next.challenge = rng_.next() | 1;
  } else {
    if (open_) next.content = open_->content;
    next.challenge = 0;
    next.holder = ending_ ? NodeId{} : settings_.self;
    next.node = ending_ ? NodeId{} : node_;
    next.address = ending_ ? "" : address_;
  }
  ++next.version;
  next.nonce = rng_.next();
  return next;
}

// ---- As a follower.

std::string KeptMachine::explain() const {
  if (outage_since_) return "it cannot be reached: " + outage_;
  if (!was_read_) return "it has not answered yet";
  if (is_lost_) return "the coordinator at " + followed_.address + " cannot be reached";
  return "it names no coordinator yet";
}

void KeptMachine::judge() {
  intent_ = Intent::kNone;
  if (has_given_up_ || is_read_due_) return;
  if (!needs_coordinator()) {
    claim_at_.reset();
    challenge_.reset();
    idle_.reset();
    return;
  }
  if (!stored_) return stand();
  const Office office{stored_->lineage, stored_->term, stored_->address};
  if (!office.address.empty()) {
    idle_.reset();
    claim_at_.reset();
    if (office != followed_) {
      follow();
    } else if (is_lost_) {
      judge_lost();
    }
    return;
  }
  if (idle_ != office) {
    idle_ = office;
    const bool is_vacant = stored_->holder == NodeId{};
    claim_at_ = add_saturating(now_, is_vacant ? turn() : settings_.node_timeout);
  }
  if (now_ >= *claim_at_) stand();
}

// Only with a record that can be continued.
void KeptMachine::stand() {
  if (now_ < stands_from_) return;
  if (stored_ && !stored_->content.bytes.empty()) {
    const Status fault = decode_record(stored_->content.bytes).status();
    if (!fault.ok()) return give_up(kExitRejected, std::string(fault.message()));
  }
  intent_ = Intent::kClaim;
}

void KeptMachine::follow() {
  followed_ = {stored_->lineage, stored_->term, stored_->address};
  found();
  follow_until_ = add_saturating(now_, settings_.node_timeout);
  incumbent_ = incumbent_of(*stored_);
  emit(Follow{*incumbent_});
}

void KeptMachine::judge_lost() {
  if (ended_at_) {
    if (now_ >= *ended_at_) stand();
    return;
  }
  if (challenge_ && stored_->challenge != challenge_->number) {
    challenge_.reset();
    if (stored_->challenge == 0) {
      if (!alive_until_) {
        emit(Log{"the coordinator at " + followed_.address + " lives, as the record in " +
                 settings_.store + " shows, but this node cannot reach it"});
      }
      alive_until_ = add_saturating(now_, settings_.node_timeout);
    }
  }
  if (!challenge_ && stored_->challenge != 0) {
    challenge_ = Challenge{stored_->challenge, add_saturating(now_, answer_time() + turn())};
  }
  if (!challenge_) {
    if (!alive_until_ || now_ >= *alive_until_) intent_ = Intent::kChallenge;
  } else if (now_ >= challenge_->until) {
    stand();
  }
}

// Where the store reports no changes, a coordinator reads its record as often as this, and others
// at first more often.
Duration KeptMachine::poll_max() const {
  return core::keeper_poll_interval(settings_.node_timeout);
}

Duration KeptMachine::answer_time() const {
  // Its address answers that it is not there: the shortest time is enough.
  Duration time =
      is_refused_ ? core::kKeeperAnswerTimeMin : core::keeper_answer_time(settings_.node_timeout);
  if (!is_watched_) time += 2 * poll_max();
  return time + 3 * slowest_call_;  // it may be reading, reads, and writes
}

// By rank, once the job has begun. Before that all nodes are equal.
Duration KeptMachine::turn() {
  const double part = rng_.next_fraction();
  const bool has_begun = stored_ && stored_->content.round > 0 && !stored_->content.is_result;
  const int place = !has_begun ? 0 : rank_ < 0 ? kTurns : std::min(rank_, kTurns);
  const Duration jitter = std::chrono::duration_cast<Duration>(kTurn * part);
  return place * kTurn + (place == kTurns || !has_begun ? jitter : Duration::zero());
}

// ---- Time.

std::optional<Instant> KeptMachine::next_deadline() const {
  Instant next = Instant::max();
  const auto note = [&](const std::optional<Instant>& at) {
    if (at) next = std::min(next, *at);
  };
  if (has_given_up_) return std::nullopt;
  if (pending_ == Pending::kNone && must_watch() && (is_read_due_ || !is_watched_)) {
    note(next_read_);
  }
  // What is judged after each event needs a Tick only for the time to come.
  const auto note_later = [&](const std::optional<Instant>& at) {
    if (at && *at > now_) note(at);
  };
  if (needs_coordinator()) {
    note(follow_until_);
    note_later(claim_at_);
    note_later(alive_until_);
    note_later(ended_at_);
    if (challenge_) note_later(challenge_->until);
    if (!is_resigning()) note_later(stands_from_);
  }
  if (is_coordinator()) {
    if (ending_) note(ending_->until);
    if (outage_since_) {
      note(outage_log_at_);
      note(add_saturating(*outage_since_, settings_.store_grace));
    } else if (pending_ == Pending::kRead || pending_ == Pending::kWrite) {
      note(pending_since_ + kCallLimit + 1ns);
    } else if (pending_ == Pending::kWait) {
      note(wait_until_ + kCallLimit + 1ns);
    }
  }
  if (next == Instant::max()) return std::nullopt;
  return next;
}

}  // namespace elastic::succession
