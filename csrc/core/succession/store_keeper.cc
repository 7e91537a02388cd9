// Theory of operation
//
// A process is a follower until its claim is stored. A follower without a coordinator reads the
// record, and does what that says:
//
//   nothing is stored          claims the role, under term 1 of a new lineage
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
// One bad link must not end a coordinator: a node that cannot reach the coordinator writes a
// challenge into the record. A coordinator that lives reads its record again and again, and answers
// by a write without it. The node claims the role when no answer is there in time; otherwise it
// tries to connect, until its own limits end it. An address that answers that no coordinator is
// there makes the time short. A refusal alone proves nothing, because a firewall may send it. A
// refusal after the coordinator itself has closed the session proves that the process has ended or
// no longer coordinates the job.
//
// Turns: by the node's rank in the round, so that the first claim is the only one. The others read
// the winner's address. Two claims at once are harmless.

#include "core/succession/store_keeper.h"

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

StoreKeeper::StoreKeeper(Settings settings, std::uint64_t seed, Instant now)
    : Machine(settings.self,
              {.node_timeout = settings.node_timeout,
               .store_grace = settings.store_grace,
               .handover_timeout = settings.handover_timeout},
              now),
      settings_(std::move(settings)),
      rng_(seed),
      failures_(kAfterFailure, &rng_),
      next_read_(now),
      poll_wait_(poll_max() / 4) {}

void StoreKeeper::settle() {
  judge();
  judge_outage();
}

void StoreKeeper::receive(const Event& event) {
  std::visit([this](const auto& one) { on(one); }, event);
  if (must_watch() && !is_watched_ && pending_ == Pending::kNone && now_ >= next_read_) {
    is_read_due_ = true;
  }
}

// ---- The session of this process.

void StoreKeeper::on(const Informed& event) {
  if (is_coordinator()) return;
  const Incumbent& named = event.incumbent;
  const bool is_other = incumbent_ && incumbent_->lineage != named.lineage;
  if (is_other) incumbent_.reset();
  if (incumbent_ && named.term < incumbent_->term) return;
  learn(named);
  followed_ = {named.lineage, named.term, named.address};
  has_session_ = has_belonged_ = true;
  follow_until_.reset();
  found();
}

// While this node follows the next coordinator, only the former one can have been lost.
void StoreKeeper::on(const IncumbentLost&) {
  if (!is_coordinator() && !follow_until_) lose();
}

void StoreKeeper::on(const IncumbentReturned&) {
  if (is_coordinator()) return;
  has_session_ = true;
  follow_until_.reset();
  found();
}

void StoreKeeper::on(const Unreachable& event) {
  if (is_coordinator() || event.address != followed_.address || !event.is_refused) return;
  const bool has_ended = has_session_ && event.was_closed;
  lose();
  is_refused_ = true;
  if (has_ended) ended_at_ = add_saturating(now_, turn());
}

// The coordinator of the record, or its successor, was found: nothing is known against it.
void StoreKeeper::found() {
  is_lost_ = is_refused_ = false;
  ended_at_.reset();
  challenge_.reset();
  alive_until_.reset();
}

void StoreKeeper::lose() {
  follow_until_.reset();
  has_session_ = false;
  if (is_lost_) return;
  found();
  is_lost_ = true;
  poll_wait_ = poll_max() / 4;
  is_read_due_ = true;
  next_read_ = std::min(next_read_, now_);
}

// ---- The coordinator of this process.

void StoreKeeper::on(const CoordinatorStarted& event) {
  if (own_.is_started && !is_named_) own_.address = event.address;
}

void StoreKeeper::on(const CoordinatorFailed& event) {
  if (!is_coordinator()) return;
  emit(Log{"the job's coordinator could not be started on this node: " + event.reason});
  stands_from_ = std::max(stands_from_, add_saturating(now_, limits_.node_timeout));
  end_soon(event.reason);
}

void StoreKeeper::on(const Propose& event) {
  // One of an earlier term of this process may arrive late.
  if (is_coordinator() && event.term == term_) own_.open = event;
}

void StoreKeeper::on(const LaterTermSeen& event) {
  if (is_coordinator() && event.term > term_) is_read_due_ = true;
}

// A claim whose answer is pending is given back when it turns out to be stored.
void StoreKeeper::on(const Resign&) {
  stands_from_ = Instant::max();
  if (is_coordinator() && !own_.ending) end_soon("the coordinator ended in order");
}

void StoreKeeper::stopped() {
  is_named_ = has_session_ = false;
  found();
  followed_ = {};
  incumbent_ = stored_ && !is_mine() ? incumbent_of(*stored_) : std::nullopt;
}

void StoreKeeper::give_up(int exit_code, const std::string& why) {
  if (std::exchange(has_given_up_, true)) return;
  if (is_coordinator()) stop(why);
  emit(KeeperFault{exit_code, settings_.store + " rendezvous: " + why});
}

// A node that went on could form a second group beside those that found the store empty.
void StoreKeeper::store_lost() {
  give_up(kExitCoordinatorLost, "the store was restarted: the job's record in it is lost");
}

// ---- Calls of the store.

bool StoreKeeper::needs_coordinator() const { return !is_coordinator() && !has_session_; }

bool StoreKeeper::must_watch() const {
  if (has_given_up_) return false;
  const bool is_connecting = !is_lost_ && !followed_.address.empty();
  return is_coordinator() || (needs_coordinator() && !is_connecting);
}

std::optional<KeeperCall> StoreKeeper::next_call() {
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
  wait_until_ = add_saturating(now_, core::keeper_wait_limit(limits_.node_timeout));
  return call(Pending::kWait, KeeperWait{token_, wait_until_});
}

bool StoreKeeper::must_interrupt() const {
  if (pending_ != Pending::kWait) return false;
  return is_read_due_ || !must_watch() || wants_write();
}

void StoreKeeper::read(const Result<std::optional<StoredState>>& answer, Instant now,
                       std::vector<Action>* actions) {
  run(now, actions, [&] {
    end_call();
    if (has_given_up_) return;
    if (answer.ok()) {
      is_read_due_ = false;
      was_read_ = true;
      poll_wait_ = std::min(poll_wait_ * 3 / 2, poll_max());
      next_read_ = add_saturating(now_, poll_wait_);
      load(*answer);
    } else {
      failed(answer.status());
    }
  });
}

void StoreKeeper::written(const Result<StoredWrite>& answer, Instant now,
                          std::vector<Action>* actions) {
  run(now, actions, [&] {
    end_call();
    if (has_given_up_) return;
    if (answer.ok()) {
      // A conflict: the value is gone, or holds the other writer's bytes.
      const bool is_there = answer->was_set || !answer->now.bytes.empty();
      if (answer->was_set) refresh_at_ = add_saturating(now_, kRefreshInterval);
      load(is_there ? std::optional(answer->now) : std::nullopt);
    } else {
      failed(answer.status());
    }
  });
}

void StoreKeeper::waited(bool is_watched, Instant now, std::vector<Action>* actions) {
  run(now, actions, [&] {
    pending_ = Pending::kNone;
    is_watched_ = is_watched;
    judge();
    // What is to be written needs no read: the store compares the version.
    if (!wants_write() && is_watched) {
      is_read_due_ = true;
      next_read_ = std::min(next_read_, now_);
    }
  });
}

// The slowest call of late: a coordinator that lives needs as long to answer.
void StoreKeeper::end_call() {
  pending_ = Pending::kNone;
  slowest_call_ = std::max<Duration>(now_ - pending_since_, slowest_call_ * 7 / 8);
}

void StoreKeeper::failed(const Status& why) {
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

void StoreKeeper::reached() {
  failures_ = Backoff(kAfterFailure, &rng_);
  if (!outage_since_) return;
  const Duration outage = now_ - *std::exchange(outage_since_, std::nullopt);
  outage_log_at_.reset();
  if (!own_.has_majority) regain_majority();
  if (std::exchange(is_outage_logged_, false) && is_coordinator()) {
    emit(Log{"the " + settings_.store + " rendezvous can be reached again after " +
             core::duration_text(outage)});
  }
}

// The coordinator's alone: a node's session has the limits of a node.
void StoreKeeper::judge_outage() {
  const bool is_call = pending_ == Pending::kRead || pending_ == Pending::kWrite;
  const bool is_late = (is_call && now_ > pending_since_ + kCallLimit) ||
                       (pending_ == Pending::kWait && now_ > wait_until_ + kCallLimit);
  if (is_late && !outage_since_) {
    outage_since_ = is_call ? pending_since_ : wait_until_;
    outage_ = "a call of the store has not returned";
    outage_log_at_ = add_saturating(now_, kOutageLogDelay);
  }
  if (!is_coordinator() || !outage_since_ || has_given_up_) return;
  if (own_.has_majority) lose_majority({});
  if (outage_log_at_ && now_ >= *outage_log_at_) {
    outage_log_at_ = add_saturating(now_, kOutageLogInterval);
    is_outage_logged_ = true;
    emit(Log{"the " + settings_.store + " rendezvous cannot be reached: " + outage_ +
             "; no round begins until it can"});
  }
  if (now_ < add_saturating(*outage_since_, limits_.store_grace)) return;
  has_given_up_ = true;
  expire("the " + settings_.store + " rendezvous could not be reached for " +
         core::duration_text(limits_.store_grace) + " (store_grace): " + outage_);
}

void StoreKeeper::load(const std::optional<StoredState>& stored) {
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
    return apply();
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
  apply();
}

// ---- What is stored now is in force.

void StoreKeeper::apply() {
  if (!is_coordinator()) {
    // Not again at once where its coordinator could not be started.
    if (is_mine() && (is_resigning() || now_ >= stands_from_)) start_claimed();
    return;
  }
  if (!is_mine() || stored_->term != term_) {
    const bool is_given_up = own_.ending && stored_->holder == NodeId{};
    return stop(is_given_up ? own_.ending->reason : "another node coordinates the job now");
  }
  in_force(stored_->content);
  if (is_named_ || own_.address.empty() || stored_->address != own_.address) return;
  is_named_ = true;
  incumbent_ = incumbent_of(*stored_);
  followed_ = {stored_->lineage, stored_->term, own_.address};
  inform();
  emit(Follow{*incumbent_});
}

void StoreKeeper::start_claimed() {
  JobRecord record;
  if (!stored_->content.bytes.empty()) {
    auto decoded = decode_record(stored_->content.bytes);
    if (!decoded.ok()) return give_up(kExitRejected, std::string(decoded.status().message()));
    record = *std::move(decoded);
  }
  own_ = {.is_started = true};
  is_named_ = false;
  term_ = stored_->term;
  has_belonged_ = true;
  has_session_ = false;
  found();
  follow_until_.reset();
  intent_ = Intent::kNone;
  if (is_resigning()) return end_soon("this process ends");
  start({.lineage = stored_->lineage,
         .term = term_,
         .record = std::move(record),
         .lost_incumbent = former_,
         .is_kept = true});
}

bool StoreKeeper::wants_write() const {
  if (is_read_due_ || has_given_up_) return false;
  if (!is_coordinator()) return intent_ != Intent::kNone;
  return own_.ending || now_ >= refresh_at_ || stored_->challenge != 0 ||
         stored_->address != own_.address || (own_.open && stored_->content != own_.open->content);
}

// REQUIRES: wants_write()
KeptRecord StoreKeeper::wanted() {
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
    if (own_.open) next.content = own_.open->content;
    next.challenge = 0;
    next.holder = own_.ending ? NodeId{} : settings_.self;
    next.node = own_.ending ? NodeId{} : node_;
    next.address = own_.ending ? "" : own_.address;
  }
  ++next.version;
  next.nonce = rng_.next();
  return next;
}

// ---- As a follower.

std::string StoreKeeper::explain() const {
  if (outage_since_) return "it cannot be reached: " + outage_;
  if (!was_read_) return "it has not answered yet";
  if (is_lost_) return "the coordinator at " + followed_.address + " cannot be reached";
  return "it names no coordinator yet";
}

void StoreKeeper::judge() {
  intent_ = Intent::kNone;
  if (has_given_up_ || is_read_due_) return;
  if (!needs_coordinator()) {
    claim_at_.reset();
    challenge_.reset();
    idle_.reset();
    return;
  }
  if (!stored_) return stand();
  const Named named{stored_->lineage, stored_->term, stored_->address};
  if (!named.address.empty()) {
    idle_.reset();
    claim_at_.reset();
    if (named != followed_) {
      follow();
    } else if (is_lost_) {
      judge_lost();
    }
    return;
  }
  if (idle_ != named) {
    idle_ = named;
    const bool is_vacant = stored_->holder == NodeId{};
    claim_at_ = add_saturating(now_, is_vacant ? turn() : limits_.node_timeout);
  }
  if (now_ >= *claim_at_) stand();
}

// Only with a record that can be continued.
void StoreKeeper::stand() {
  if (now_ < stands_from_) return;
  if (stored_ && !stored_->content.bytes.empty()) {
    const Status fault = decode_record(stored_->content.bytes).status();
    if (!fault.ok()) return give_up(kExitRejected, std::string(fault.message()));
  }
  intent_ = Intent::kClaim;
}

void StoreKeeper::follow() {
  followed_ = {stored_->lineage, stored_->term, stored_->address};
  found();
  incumbent_ = incumbent_of(*stored_);
  direct_session();
}

void StoreKeeper::judge_lost() {
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
      alive_until_ = add_saturating(now_, limits_.node_timeout);
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
Duration StoreKeeper::poll_max() const { return core::keeper_poll_interval(limits_.node_timeout); }

Duration StoreKeeper::answer_time() const {
  // Its address answers that it is not there: the shortest time is enough.
  Duration time =
      is_refused_ ? core::kKeeperAnswerTimeMin : core::keeper_answer_time(limits_.node_timeout);
  if (!is_watched_) time += 2 * poll_max();
  return time + 3 * slowest_call_;  // it may be reading, reads, and writes
}

// By rank, once the job has begun. Before that all nodes are equal.
Duration StoreKeeper::turn() {
  const double part = rng_.next_fraction();
  const bool has_begun = stored_ && stored_->content.round > 0 && !stored_->content.is_result;
  const int place = !has_begun ? 0 : rank_ < 0 ? kTurns : std::min(rank_, kTurns);
  const Duration jitter = std::chrono::duration_cast<Duration>(kTurn * part);
  return place * kTurn + (place == kTurns || !has_begun ? jitter : Duration::zero());
}

// ---- Time.

std::optional<Instant> StoreKeeper::keeper_deadline() const {
  Instant next = Instant::max();
  const auto add = [&](const std::optional<Instant>& at) {
    if (at) next = std::min(next, *at);
  };
  if (has_given_up_) return std::nullopt;
  if (pending_ == Pending::kNone && must_watch() && (is_read_due_ || !is_watched_)) {
    add(next_read_);
  }
  // What is judged after each event needs a Tick only for the time to come.
  const auto add_later = [&](const std::optional<Instant>& at) {
    if (at && *at > now_) add(at);
  };
  if (needs_coordinator()) {
    add_later(claim_at_);
    add_later(alive_until_);
    add_later(ended_at_);
    if (challenge_) add_later(challenge_->until);
    if (!is_resigning()) add_later(stands_from_);
  }
  if (is_coordinator()) {
    if (outage_since_) {
      add(outage_log_at_);
      add(add_saturating(*outage_since_, limits_.store_grace));
    } else if (pending_ == Pending::kRead || pending_ == Pending::kWrite) {
      add(pending_since_ + kCallLimit + 1ns);
    } else if (pending_ == Pending::kWait) {
      add(wait_until_ + kCallLimit + 1ns);
    }
  }
  if (next == Instant::max()) return std::nullopt;
  return next;
}

}  // namespace elastic::succession
