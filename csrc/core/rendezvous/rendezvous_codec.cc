// The state as bytes: a magic number, a version, and the fields below in this order. There is no
// Instant among them. A deadline is how far away it was when it was set, and a process that loads
// the state counts from then; a point in the past is its age. So clocks of different processes are
// never compared.
//
// One list of fields serves both directions: RendezvousCodec visits them with a writer or a reader.

#include <algorithm>
#include <deque>
#include <set>
#include <utility>

#include "core/rendezvous/rendezvous_fields.h"
#include "core/rendezvous/rendezvous_machine.h"

namespace elastic::core {
namespace {

constexpr std::uint32_t kStateMagic = 0x5A445245;  // "ERDZ"

// Approximate size of a node and its place in the round, reserved so that an encoder need not copy
// what it has written.
constexpr std::size_t kEncodedNodeBytes = 320;

// Visits values for writing.
class Saver : public FieldWriter {
 public:
  Saver(std::string* out, Instant now) : FieldWriter(out), now_(now) {}

  void instant(StoredInstant& value) {
    bool is_set = value.is_set();
    flag(is_set);
    duration(value.away);
  }
  void past(StoredInstant& value) {
    StoredInstant aged = value;
    if (value.is_set()) aged.away = std::min(value.at - now_, Duration::zero());
    instant(aged);
  }

 private:
  const Instant now_;
};

// Visits values for reading.
class Loader : public FieldReader {
 public:
  Loader(std::string_view bytes, Instant now) : FieldReader(bytes), now_(now) {}

  void instant(StoredInstant& value) {
    bool is_set = false;
    flag(is_set);
    duration(value.away);
    if (is_set) value.at = add_saturating(now_, value.away);
  }
  void past(StoredInstant& value) { instant(value); }

 private:
  const Instant now_;
};

template <typename Visitor>
void visit(Visitor& v, Node& node) {
  visit(v, node.info);
  v.name(node.info.host, kNodeTextBytesMax);
  v.choice(node.phase, rdzv::NodePhase::kDone);
  v.number(node.rank);
  v.number(node.arrival);
  v.number(node.done_round);
  v.instant(node.deadline);
}

template <typename Visitor>
void visit(Visitor& v, FormerNode& one) {
  visit(v, one.id);
  v.name(one.name, kNodeTextBytesMax);
  v.text(one.reason, kFieldBytesMax);
  v.flag(one.lost);
  v.flag(one.timed_out);
  v.number(one.round);
  v.number(one.done_round);
  v.instant(one.join_deadline);
}

template <typename Visitor>
void visit(Visitor& v, PastFailure& one) {
  StoredInstant at{one.at, {}};
  v.past(at);
  one.at = at.at;
  v.name(one.host, kNodeTextBytesMax);
  v.number(one.rule);
}

template <typename Visitor>
void visit(Visitor& v, RoundEnd& end) {
  v.choice(end.cause, rdzv::RestartCause::kMemberLeft);
  v.text(end.reason, kFieldBytesMax);
  v.name(end.departed, kNodeTextBytesMax);
  v.choice(end.departed_as, StopCause::kJobEnded);
  v.optional(end.failure.report, [&](FailureReport& failure) { visit(v, failure); });
  v.past(end.failure_at);
  visit(v, end.failure.node);
  v.name(end.failure.name, kNodeTextBytesMax);
  v.flag(end.verdict_pending);
  v.flag(end.charged);
  v.number(end.exit_code);
  v.check(is_exit_code(end.exit_code));
  v.text(end.rule, kMessageBytesMax);
  v.flag(end.is_progress_counted);
  v.flag(end.is_round_over_sent);
}

template <typename Visitor>
void visit(Visitor& v, RoundState& round) {
  v.flag(round.is_running);
  v.flag(round.is_first);
  visit(v, round.record);
  bool has_cause = round.cause != nullptr;
  v.flag(has_cause);
  if (has_cause) v.shared(round.cause, [&](RoundCause& cause) { visit(v, cause); });
  visit(v, round.record.resume);
  v.list(round.members, kNodesMax, [&](RoundMember& member) { visit(v, member); });
  v.number(round.finishers_departed);
  v.number(round.flaps);
  v.number(round.crashes);
  v.past(round.started);
  v.past(round.first_waiting_at);
  v.past(round.last_waiting_at);
  visit(v, round.end);
  for (StoredInstant& timer : round.timers) v.instant(timer);
}

}  // namespace

// The part of the machine that is encoded. A loaded state is checked before it is installed. What
// has an entry for each node is written from the machine itself, and not copied for that.
class RendezvousCodec {
 public:
  explicit RendezvousCodec(const RendezvousMachine& machine)
      : settings(machine.settings_),
        source(&machine),
        highest_seen(machine.highest_seen_),
        arrivals(machine.arrivals_),
        restarts(machine.restarts_),
        membership_changes(machine.membership_changes_),
        past_failures(machine.past_failures_),
        progress(machine.progress_) {
    if (machine.host_gate_ != nullptr) hosts = machine.host_gate_->encode(machine.now_);
    if (machine.result_) result = *machine.result_;
    if (machine.previous_result_) previous_result = *machine.previous_result_;
  }
  RendezvousCodec() = default;

  template <typename Visitor>
  void visit_all(Visitor& v) {
    visit(v, settings);
    visit_timings(v, settings);
    v.number(highest_seen);
    constexpr std::size_t kMax = kNodesMax + kSparesMax;
    if constexpr (Visitor::kIsWriter) {
      visit(v, const_cast<RoundState&>(source->round_));
      v.list(source->nodes_, kMax, [&](auto& one) { visit(v, const_cast<Node&>(one.second)); });
    } else {
      visit(v, round);
      v.list(nodes, kMax, [&](Node& node) { visit(v, node); });
    }
    v.number(arrivals);
    v.number(restarts);
    v.number(membership_changes);
    v.list(past_failures, kPastFailuresMax, [&](PastFailure& one) { visit(v, one); });
    v.number(progress.step);
    v.number(progress.best);
    v.number(progress.fruitless);
    v.check(is_counter(progress.fruitless));
    for (auto* one : {&result, &previous_result}) {
      v.optional(*one, [&](JobResult& value) { visit(v, value); });
    }
    if constexpr (Visitor::kIsWriter) {
      v.list(source->former_nodes_.all(), kNodesMax,
             [&](auto& one) { visit(v, const_cast<FormerNode&>(one)); });
    } else {
      v.list(former_nodes, kNodesMax, [&](FormerNode& one) { visit(v, one); });
    }
    v.bytes(hosts, kHostGateBytesMax);
  }

  // The machine indexes and dereferences without further checks: the state must satisfy these.
  bool is_sound() const {
    if (result && round.is_running) return false;
    if (!settings.validate().ok() || highest_seen > kRoundMax ||
        round.record.round > highest_seen) {
      return false;
    }
    const bool is_timed = round.started.is_set() || round.members.empty();
    if (!is_timed || (round.is_running && round.members.empty())) return false;
    for (const int counter :
         {restarts, membership_changes, round.flaps, round.crashes, round.finishers_departed}) {
      if (!is_counter(counter)) return false;
    }
    const RoundEnd& end = round.end;
    if (end.failure.report.has_value() != end.failure_at.is_set()) return false;
    if (end.verdict_pending && !end.failure.report) return false;
    for (const RoundMember& member : round.members) {
      if (member.local_world_size < 0 || member.local_world_size > kLocalWorldSizeMax) return false;
    }
    if (round.record.nodes != round.size() || round.record.coordinator_rank >= round.size() ||
        !is_counter(round.record.restarts) || !is_counter(round.record.membership_changes)) {
      return false;
    }
    std::vector<bool> taken(round.members.size(), false);
    std::set<int> static_ranks;
    const NodeId* before = nullptr;  // each node is there once
    for (const Node& node : nodes) {
      if (before != nullptr && !(*before < node.info.id)) return false;
      before = &node.info.id;
      if (!is_sound(node) || !has_place(node, &taken)) return false;
      if (settings.static_ranks && !static_ranks.insert(node.info.static_rank).second) return false;
    }
    return true;
  }

  bool is_sound(const Node& node) const {
    const NodeInfo& info = node.info;
    if (info.local_world_size < 1 || info.local_world_size > kLocalWorldSizeMax) return false;
    if (info.stop_grace < Duration::zero() || info.failure_grace < Duration::zero()) return false;
    return !settings.static_ranks ||
           (info.static_rank >= 0 && info.static_rank < settings.max_nodes);
  }

  // A member has the place of its rank, and no other node has it.
  bool has_place(const Node& node, std::vector<bool>* taken) const {
    if (node.rank < -1 || node.rank >= round.size()) return false;
    if (node.rank < 0) {
      // A finished node of an earlier round may have been recalled; it joins before the next one.
      return node.phase != rdzv::NodePhase::kWorking;
    }
    const auto rank = static_cast<std::size_t>(node.rank);
    const RoundMember& member = round.members[rank];
    if ((*taken)[rank] || member.id != node.info.id || member.fate != MemberFate::kPresent) {
      return false;
    }
    (*taken)[rank] = true;
    return node.phase != rdzv::NodePhase::kWorking ||
           member.local_world_size == node.info.local_world_size;
  }

  void install(RendezvousMachine* machine, Instant now) {
    RendezvousMachine& m = *machine;
    copy_timings(settings, &m.settings_);
    m.highest_seen_ = highest_seen;
    round.count_missing();
    round.ranks = ranks_of(round.members);
    if (auto& failure = round.end.failure.report) failure->at = round.end.failure_at.at;
    m.round_ = std::move(round);
    m.arrivals_ = arrivals;
    m.restarts_ = restarts;
    m.membership_changes_ = membership_changes;
    m.past_failures_ = std::move(past_failures);
    m.progress_ = progress;
    m.result_ = share(result);
    m.previous_result_ = share(previous_result);
    m.former_nodes_.assign(std::move(former_nodes));
    install_nodes(&m, now);
    m.now_ = std::max(m.now_, now);
    m.timers_checked_at_ = Instant::min();
    for (auto& [id, node] : m.nodes_) node.is_excluded = !m.why_excluded(node.info).empty();
    m.recount();
  }

  JobSettings settings;
  std::optional<JobResult> result;  // of a closed job
  std::string hosts;                // HostGate::encode()

 private:
  static std::shared_ptr<const JobResult> share(std::optional<JobResult>& one) {
    return one ? std::make_shared<const JobResult>(std::move(*one)) : nullptr;
  }
  void install_nodes(RendezvousMachine* machine, Instant now) {
    RendezvousMachine& m = *machine;
    for (Node& node : nodes) {
      const NodeId id = node.info.id;
      m.liveness_.record_activity(id, now);
      if (m.settings_.static_ranks) m.static_rank_owners_[node.info.static_rank] = id;
      m.deadline_check_ = std::min(m.deadline_check_, node.deadline.at);
      m.nodes_[id] = std::move(node);
    }
  }

  const RendezvousMachine* source = nullptr;  // when writing
  std::uint64_t highest_seen = 0;
  RoundState round;         // that was read
  std::vector<Node> nodes;  // the same
  std::uint64_t arrivals = 0;
  int restarts = 0;
  int membership_changes = 0;
  std::vector<PastFailure> past_failures;
  ProgressRecord progress;
  std::optional<JobResult> previous_result;
  std::deque<FormerNode> former_nodes;  // the same
};

std::string RendezvousMachine::encode() const {
  std::string bytes;
  bytes.reserve(kEncodedNodeBytes * nodes_.size());
  Saver saver(&bytes, now_);
  std::uint32_t magic = kStateMagic;
  std::uint16_t version = kStateVersion;
  saver.number(magic);
  saver.number(version);
  RendezvousCodec(*this).visit_all(saver);
  return bytes;
}

Status RendezvousMachine::load(std::string_view bytes, Instant now) {
  ByteReader head(bytes);
  const bool is_ours = head.integer<std::uint32_t>() == kStateMagic;
  const auto version = head.integer<std::uint16_t>();
  if (!is_ours || !head.ok()) {
    return Status(StatusCode::kPeerViolation,
                  "rendezvous state: these bytes are not a rendezvous state");
  }
  if (version != kStateVersion) {
    return other_version("rendezvous state: written by", version, kStateVersion);
  }
  constexpr std::size_t kHeadBytes = sizeof kStateMagic + sizeof kStateVersion;
  RendezvousCodec state;
  Loader loader(bytes.substr(kHeadBytes), now);
  state.visit_all(loader);
  if (!loader.ok() || !state.is_sound()) {
    return Status(StatusCode::kPeerViolation,
                  "rendezvous state: the bytes are damaged" + loader.reason());
  }
  if (!state.result) {
    if (Status fault = compare_settings(state.settings, settings_); !fault.ok()) return fault;
  }
  if (host_gate_ != nullptr && !host_gate_->decode(state.hosts, now)) {
    return Status(StatusCode::kPeerViolation, "rendezvous state: what it has of hosts is damaged");
  }
  state.install(this, now);
  return {};
}

}  // namespace elastic::core
