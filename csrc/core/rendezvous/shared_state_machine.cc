// Theory of operation
//
// The store holds one value: a header and the machine's bytes. One poll is
//
//   read     an outage of the store is a ClockGap, stepped first; new bytes are loaded, and
//            remind() returns the decisions for this node
//   propose  statements of the node, a heartbeat if one is due, and a Tick if this node is the
//            timekeeper and a deadline is due, are stepped on trial
//   write    compare-and-set. The steps are final only when it succeeds: then the node receives
//            their actions. Otherwise the machine is invalid, and the next poll loads it again
//
// The header has the store's lineage, a random number of the node that found the store empty. A
// store that was restarted has another one, or none, so the state of a running job is lost: that
// is an error, because a node that continued would form a second group. It counts the writes: an
// older version than one that was seen is ignored. And it has a random number for each write, so
// that no two are equal, and a write whose answer was lost is recognised.
//
// Polling: often after a change, then less and less often; exactly for deadlines that are known.
// Each node writes a heartbeat every quarter of node_timeout. Writers that lose
// back off with full jitter, so that many joining at once do not hinder one another.
//
// A closed job whose nodes have all crashed leaves entries that look like live nodes. A new node
// delays its Join until one of them shows activity (then it receives the result) or node_timeout
// has passed (then a new generation begins).

#include "core/rendezvous/shared_state_machine.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/base/byte_io.h"
#include "core/base/check.h"
#include "core/base/duration_text.h"
#include "core/rendezvous/job_timings.h"
#include "core/rendezvous/rendezvous_machine.h"

namespace elastic::core {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kSharedStateMagic = 0x53445245;  // "ERDS"
constexpr std::uint16_t kFormat = 1;
constexpr std::size_t kHeaderBytes = 4 + 2 + 16 + 8 + 8;

constexpr BackoffOptions kAfterLostWrite = {.first = 4ms, .cap = 250ms};
constexpr BackoffOptions kAfterFailure = {.first = 50ms, .cap = 1s};

// Written before the machine's bytes.
void append(const SharedHeader& header, std::string* bytes) {
  ByteWriter writer(bytes);
  writer.integer(kSharedStateMagic);
  writer.integer(header.format);
  writer.integer(header.lineage.high);
  writer.integer(header.lineage.low);
  writer.integer(header.version);
  writer.integer(header.nonce);
}

// nullopt: not a shared state. Of a newer format only the field `format` is valid.
std::optional<SharedHeader> header_of(std::string_view bytes) {
  ByteReader reader(bytes);
  const bool is_ours = reader.integer<std::uint32_t>() == kSharedStateMagic;
  SharedHeader header;
  header.format = reader.integer<std::uint16_t>();
  header.lineage.high = reader.integer<std::uint64_t>();
  header.lineage.low = reader.integer<std::uint64_t>();
  header.version = reader.integer<std::uint64_t>();
  header.nonce = reader.integer<std::uint64_t>();
  if (!is_ours || !reader.ok()) return std::nullopt;
  return header;
}

Duration slowest_poll(const JobSettings& settings) {
  return std::clamp<Duration>(settings.node_timeout / 20, 5ms, 500ms);
}

Duration fastest_poll(const JobSettings& settings) {
  return std::clamp<Duration>(settings.node_timeout / 500, 2ms, 20ms);
}

template <typename... Kinds>
bool is_any(const RendezvousAction& action) {
  return (std::holds_alternative<Kinds>(action) || ...);
}

Status lost_state() {
  return {StatusCode::kFailedPrecondition,
          "the store was restarted: the job's state in it is lost"};
}

}  // namespace

SharedStateMachine::SharedStateMachine(JobSettings settings, std::uint64_t seed, Instant now)
    : own_settings_(std::move(settings)),
      rng_(seed),
      machine_(own_settings_, now, Duration::zero()),
      last_contact_(now),
      first_loaded_at_(now),
      last_sign_of_life_(now),
      tick_not_before_(now),
      lost_writes_(kAfterLostWrite, &rng_),
      failures_(kAfterFailure, &rng_),
      changed_at_(now),
      next_poll_(now),
      next_required_at_(now) {}

void SharedStateMachine::send(RendezvousEvent statement) {
  if (const auto* join = std::get_if<rdzv::Join>(&statement)) self_ = join->node.id;
  unsent_.push_back(std::move(statement));
  next_required_at_ = Instant();  // at once
}

std::string SharedStateMachine::timing_difference() const {
  return describe_timing_difference(settings(), own_settings_);
}

Status SharedStateMachine::read(const std::optional<StoredState>& stored, Instant now,
                                std::vector<RendezvousAction>* delivered) {
  if (rejection_) {
    deliver_rejection(delivered);
    return {};
  }
  is_up_to_date_ = !is_stale(stored);
  if (!is_up_to_date_) {
    next_poll_ = next_required_at_ = now + failures_.next();
    return out_of_reach("read", now - last_contact_,
                        Status(StatusCode::kUnavailable, "it returns only old versions"));
  }
  const Duration gap = now - last_contact_;
  if (has_contact_ && gap > heartbeat_interval()) {
    std::vector<RendezvousAction> none;
    machine_.step(rdzv::ClockGap{gap}, now, &none);
  }
  has_contact_ = true;
  last_contact_ = now;
  if (!writes_fail_since_) failures_ = Backoff(kAfterFailure, &rng_);
  if (!stored) {
    if (lineage_) return lost_state();
    if (is_machine_stale_) machine_ = Rendezvous(own_settings_, now, Duration::zero());
    is_machine_stale_ = false;
    attempt_.reset();
    token_.reset();
  } else if (is_machine_stale_ || token_ != stored->token) {
    if (Status status = load(*stored, now, delivered); !status.ok()) return status;
  }
  if (rejection_) {
    deliver_rejection(delivered);
    return {};
  }
  apply_state(now, delivered);
  schedule(now);
  return {};
}

// Some stores return a version that they have replaced already. It is ignored.
bool SharedStateMachine::is_stale(const std::optional<StoredState>& stored) const {
  if (!stored || !lineage_) return false;
  const std::optional<SharedHeader> header = header_of(stored->bytes);
  return header && header->lineage == *lineage_ && header->version < version_;
}

Status SharedStateMachine::load(const StoredState& stored, Instant now,
                                std::vector<RendezvousAction>* delivered) {
  const std::optional<SharedHeader> header = header_of(stored.bytes);
  if (!header) {
    rejection_ = Status(StatusCode::kPeerViolation,
                        "shared state: the store has another value under this key");
    return {};
  }
  if (header->format > kFormat) {
    rejection_ = Status(StatusCode::kFailedPrecondition,
                        "shared state: written by a newer version (format " +
                            std::to_string(header->format) + ", this one reads up to " +
                            std::to_string(kFormat) + ")");
    return {};
  }
  if (lineage_ && *lineage_ != header->lineage) return lost_state();
  const std::string_view payload = std::string_view(stored.bytes).substr(kHeaderBytes);
  if (Status fault = machine_.load(payload, now); !fault.ok()) {
    rejection_ = fault;
    return {};
  }
  if (!lineage_) first_loaded_at_ = now;
  lineage_ = header->lineage;
  version_ = header->version;
  token_ = stored.token;
  payload_ = payload;
  is_machine_stale_ = false;
  detect_changes(now);
  // A write whose answer was lost, and which was done.
  if (auto attempt = std::exchange(attempt_, std::nullopt);
      attempt && attempt->header.nonce == header->nonce) {
    write_accepted(*std::move(attempt), now, delivered);
  }
  return {};
}

// Every join is answered (I7); other statements have no effect.
void SharedStateMachine::deliver_rejection(std::vector<RendezvousAction>* delivered) {
  const bool is_asked =
      has_joined_ || std::any_of(unsent_.begin(), unsent_.end(), [](const auto& one) {
        return std::holds_alternative<rdzv::Join>(one);
      });
  if (is_asked) delivered->push_back(rdzv::Refused{self_, *rejection_});
  has_joined_ = false;
  unsent_.clear();
  attempt_.reset();
  next_poll_ = next_required_at_ = Instant::max();
}

Status SharedStateMachine::read_failed(const Status& cause, Instant now) {
  next_poll_ = next_required_at_ = now + failures_.next();
  return out_of_reach("read", now - last_contact_, cause);
}

std::optional<SharedWrite> SharedStateMachine::propose(Instant now,
                                                       std::vector<RendezvousAction>* delivered) {
  if (rejection_ || !is_up_to_date_) return std::nullopt;
  ELASTIC_CHECK(!is_machine_stale_);
  if (has_join_expired(now)) {
    unsent_.clear();
    delivered->push_back(
        rdzv::TimedOut{self_, "the join could not be written to the store within " +
                                  duration_text(settings().join_timeout)});
    return std::nullopt;
  }
  const std::vector<RendezvousEvent> events = events_to_step(now);
  if (events.empty()) return std::nullopt;
  return try_steps(events, now, delivered);
}

// Other writers may always win, or the store may accept no write: the join must still be answered.
bool SharedStateMachine::has_join_expired(Instant now) {
  const bool is_pending = std::any_of(unsent_.begin(), unsent_.end(), [](const auto& one) {
    return std::holds_alternative<rdzv::Join>(one);
  });
  if (!is_pending) {
    join_pending_since_.reset();
    return false;
  }
  if (!join_pending_since_) join_pending_since_ = now;
  if (now - *join_pending_since_ <= settings().join_timeout) return false;
  join_pending_since_.reset();
  return true;
}

std::vector<RendezvousEvent> SharedStateMachine::events_to_step(Instant now) const {
  std::vector<RendezvousEvent> events;
  if (!must_wait_to_join(now)) events = unsent_;
  if (events.empty() && has_joined_ && now >= last_sign_of_life_ + heartbeat_interval()) {
    events.push_back(rdzv::Heartbeat{self_});
  }
  const auto due = machine_.next_deadline();
  if (due && *due <= now && now >= tick_not_before_ && is_timekeeper(now)) {
    events.push_back(rdzv::Tick{});
  }
  return events;
}

std::optional<SharedWrite> SharedStateMachine::try_steps(const std::vector<RendezvousEvent>& events,
                                                         Instant now,
                                                         std::vector<RendezvousAction>* delivered) {
  Attempt attempt;
  attempt.sent = must_wait_to_join(now) ? 0 : unsent_.size();
  if (watcher_) watcher_(machine_, nullptr, {});
  for (const RendezvousEvent& event : events) {
    const std::size_t before = attempt.actions.size();
    machine_.step(event, now, &attempt.actions);
    if (std::holds_alternative<rdzv::Tick>(event)) {
      tick_not_before_ = now + fastest_poll(settings());
    } else {
      attempt.is_sign_of_life = true;
    }
    if (watcher_) {
      watcher_(
          machine_, &event,
          {attempt.actions.begin() + static_cast<std::ptrdiff_t>(before), attempt.actions.end()});
    }
  }
  const std::string payload = machine_.encode();
  if (token_ && payload == payload_) {  // nothing that other nodes need
    write_accepted(std::move(attempt), now, delivered);
    schedule(now);
    return std::nullopt;
  }
  attempt.header = {kFormat, lineage_.value_or(NodeId{rng_.next(), rng_.next()}), version_ + 1,
                    rng_.next()};
  append(attempt.header, &attempt.bytes);
  attempt.bytes += payload;
  is_machine_stale_ = true;
  attempt_ = std::move(attempt);
  return SharedWrite{attempt_->bytes, token_};
}

Status SharedStateMachine::wrote(const StoredWrite& answer, Instant now,
                                 std::vector<RendezvousAction>* delivered) {
  if (!answer.was_set) {
    attempt_.reset();
    next_poll_ = next_required_at_ = now + lost_writes_.next();
    return {};
  }
  lost_writes_ = Backoff(kAfterLostWrite, &rng_);
  last_contact_ = now;
  writes_fail_since_.reset();
  // Its own bytes too, so that its time limits count from here.
  const StoredState stored{attempt_->bytes, answer.now.token};
  if (Status status = load(stored, now, delivered); !status.ok()) return status;
  apply_state(now, delivered);
  schedule(now);
  return {};
}

Status SharedStateMachine::write_failed(const Status& cause, Instant now) {
  next_poll_ = next_required_at_ = now + failures_.next();
  if (!writes_fail_since_) writes_fail_since_ = now;
  return out_of_reach("written to", now - *writes_fail_since_, cause);
}

// An error if the outage has lasted too long.
Status SharedStateMachine::out_of_reach(const char* what, Duration outage,
                                        const Status& cause) const {
  if (outage <= (lineage_ ? settings().store_grace : settings().join_timeout)) return {};
  return {lineage_ ? StatusCode::kUnavailable : StatusCode::kDeadlineExceeded,
          "the store could not be " + std::string(what) + " for " + duration_text(outage) + ": " +
              std::string(cause.message())};
}

void SharedStateMachine::write_accepted(Attempt attempt, Instant now,
                                        std::vector<RendezvousAction>* delivered) {
  const auto sent_end = unsent_.begin() + static_cast<std::ptrdiff_t>(attempt.sent);
  for (auto one = unsent_.begin(); one != sent_end; ++one) {
    if (std::holds_alternative<rdzv::Join>(*one) || std::holds_alternative<rdzv::Resume>(*one)) {
      has_joined_ = has_ever_joined_ = true;
      reset_delivered();
    } else if (std::holds_alternative<rdzv::Leave>(*one)) {
      has_joined_ = false;
    }
  }
  unsent_.erase(unsent_.begin(), sent_end);
  if (attempt.is_sign_of_life) last_sign_of_life_ = now;
  for (const RendezvousAction& action : attempt.actions) {
    if (addressee(action) == self_) deliver(action, now, delivered);
  }
}

void SharedStateMachine::apply_state(Instant now, std::vector<RendezvousAction>* delivered) {
  if (!has_joined_) return;
  std::vector<RendezvousAction> actions;
  machine_.remind(self_, received_, now, &actions);
  for (const RendezvousAction& action : actions) deliver(action, now, delivered);
}

void SharedStateMachine::deliver(const RendezvousAction& action, Instant now,
                                 std::vector<RendezvousAction>* delivered) {
  if (is_undelivered(action, now)) delivered->push_back(action);
}

bool SharedStateMachine::is_undelivered(const RendezvousAction& action, Instant now) {
  const auto advances = [](std::uint64_t& delivered, std::uint64_t round) {
    return round > delivered && (delivered = round, true);
  };
  if (const auto* round = std::get_if<rdzv::Round>(&action)) {
    waiting_delivered_at_.reset();
    return advances(received_, round->record->round);
  }
  if (const auto* restart = std::get_if<rdzv::Restart>(&action)) {
    return advances(delivered_restart_, restart->round);
  }
  if (const auto* over = std::get_if<rdzv::RoundOver>(&action)) {
    return advances(delivered_round_over_, over->round);
  }
  if (std::holds_alternative<rdzv::Waiting>(action)) {
    if (waiting_delivered_at_ && now < *waiting_delivered_at_ + kWaitingMessageInterval)
      return false;
    waiting_delivered_at_ = now;
    return true;
  }
  if (std::holds_alternative<rdzv::Closed>(action)) {
    return !std::exchange(has_delivered_result_, true);
  }
  if (is_any<rdzv::Evicted, rdzv::Refused, rdzv::TimedOut>(action)) {
    has_joined_ = false;
    return !std::exchange(is_excluded_, true);
  }
  return false;  // Resumed, Superseded: nothing has happened
}

void SharedStateMachine::reset_delivered() {
  delivered_restart_ = 0;
  waiting_delivered_at_.reset();
  is_excluded_ = has_delivered_result_ = false;
}

bool SharedStateMachine::is_timekeeper(Instant now) const {
  const std::optional<NodeId> keeper = machine_.timekeeper(now);
  return !keeper || *keeper == self_;
}

bool SharedStateMachine::must_wait_to_join(Instant now) const {
  if (has_ever_joined_ || machine_.phase() != RendezvousPhase::kClosed) return false;
  const std::vector<NodeStatus> nodes = machine_.nodes(now);
  const auto has_shown_life = [&](const NodeStatus& node) {
    return now - node.silence > first_loaded_at_;
  };
  return !nodes.empty() && std::none_of(nodes.begin(), nodes.end(), has_shown_life);
}

void SharedStateMachine::detect_changes(Instant now) {
  const Snapshot current{machine_.phase(), machine_.record().round, machine_.nodes(now).size(),
                         machine_.waiting_nodes()};
  if (current == snapshot_) return;
  snapshot_ = current;
  changed_at_ = now;
}

Duration SharedStateMachine::poll_interval(Instant now) {
  const Duration base =
      std::clamp((now - changed_at_) / 8, fastest_poll(settings()), slowest_poll(settings()));
  return std::chrono::duration_cast<Duration>(base * (0.75 + 0.25 * rng_.next_fraction()));
}

void SharedStateMachine::schedule(Instant now) {
  next_poll_ = now + poll_interval(now);
  next_required_at_ = Instant::max();
  if (!unsent_.empty() && !must_wait_to_join(now)) next_required_at_ = now;
  if (has_joined_)
    next_required_at_ = std::min(next_required_at_, last_sign_of_life_ + heartbeat_interval());
  const auto due = machine_.next_deadline();
  if (!due) return;
  if (is_timekeeper(now)) {
    next_required_at_ = std::min(next_required_at_, std::max(*due, tick_not_before_));
  } else if (*due > now) {
    // The timekeeper acts then; this node reads the result soon after.
    next_poll_ = std::min(next_poll_, add_saturating(*due, fastest_poll(settings())));
  }
}

Instant SharedStateMachine::next_poll(bool is_watched) const {
  return is_watched ? next_required_at_ : std::min(next_poll_, next_required_at_);
}

}  // namespace elastic::core
