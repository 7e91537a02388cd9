// The state as bytes: a magic number, a version, and the fields below in this order. There is no
// Instant among them: a point of time is a number and how far away it was when it was set. A
// process that loads the state counts from when it first saw the number, so that a time limit runs
// on in everybody who knows it, however often others write the state meanwhile, and no two clocks
// are ever compared.
//
// One list of fields serves both directions: RendezvousCodec visits them with a writer or a reader.

#include <algorithm>
#include <map>
#include <utility>

#include "core/rendezvous/rendezvous_fields.h"
#include "core/rendezvous/rendezvous_machine.h"

namespace elastic::core {
namespace {

constexpr std::uint32_t kStateMagic = 0x5A445245;  // "ERDZ"
constexpr std::uint16_t kStateVersion = 3;
constexpr int kCounterMax = 1'000'000'000;  // far from where it would wrap

// Visits values for writing.
class Saver : public FieldWriter {
 public:
  using FieldWriter::FieldWriter;
  void make_shared_instant(SharedInstant& value) {
    number(value.number);
    duration(value.away);
  }
};

// Visits values for reading.
class Loader : public FieldReader {
 public:
  Loader(std::string_view bytes, Instant now, const std::map<std::uint64_t, Instant>& seen)
      : FieldReader(bytes), now_(now), seen_(seen) {}

  void make_shared_instant(SharedInstant& value) {
    number(value.number);
    duration(value.away);
    if (value.number == 0) return;
    const auto seen = seen_.find(value.number);
    value.at = seen != seen_.end() ? seen->second : add_saturating(now_, value.away);
    marks.emplace(value.number, value.at);
  }

  std::map<std::uint64_t, Instant> marks;  // all that were read

 private:
  Instant now_;
  const std::map<std::uint64_t, Instant>& seen_;
};

template <typename Visitor>
void visit(Visitor& v, Node& node) {
  visit(v, node.info);
  v.choice(node.phase, rdzv::NodePhase::kDone);
  v.number(node.rank);
  v.number(node.arrival);
  v.number(node.done_round);
  v.number(node.beat);
  v.make_shared_instant(node.deadline);
}

template <typename Visitor>
void visit(Visitor& v, RoundEnd& end) {
  v.choice(end.cause, rdzv::RestartCause::kRejoin);
  v.text(end.reason, kFieldBytesMax);
  v.optional(end.failure, [&](FailureReport& failure) { visit(v, failure); });
  v.make_shared_instant(end.failure_at);
  v.text(end.failed_node, kNodeTextBytesMax);
  v.flag(end.verdict_pending);
  v.flag(end.charged);
  v.flag(end.is_round_over_sent);
}

}  // namespace

// What of a machine is its state. A state that was loaded is checked before a machine takes it.
class RendezvousCodec {
 public:
  explicit RendezvousCodec(const RendezvousMachine& machine)
      : settings(machine.settings_),
        phase(machine.phase_),
        highest_seen(machine.highest_seen_),
        is_first(machine.is_first_),
        record(machine.record_),
        members(machine.members_),
        finishers_departed(machine.finishers_departed_),
        arrivals(machine.arrivals_),
        restarts(machine.restarts_),
        membership_changes(machine.membership_changes_),
        flaps(machine.flaps_),
        crashes(machine.crashes_),
        round_started(machine.round_started_),
        first_waiting(machine.first_waiting_at_),
        last_waiting(machine.last_waiting_),
        end(machine.end_),
        former_node(machine.former_nodes_),
        timers(std::begin(machine.timers_), std::end(machine.timers_)),
        marks(machine.marks_) {
    for (const auto& [id, node] : machine.nodes_) nodes.push_back(node);
    if (machine.result_) result = *machine.result_;
    if (machine.previous_result_) previous_result = *machine.previous_result_;
  }
  RendezvousCodec() = default;

  template <typename Visitor>
  void visit_all(Visitor& v) {
    visit(v, settings);
    v.choice(phase, RendezvousPhase::kClosed);
    v.number(highest_seen);
    v.flag(is_first);
    visit(v, record);
    v.list(members, kNodesMax, [&](RoundMember& member) { visit(v, member); });
    v.number(finishers_departed);
    v.list(nodes, kNodesMax + kSparesMax, [&](Node& node) { visit(v, node); });
    v.number(arrivals);
    v.number(restarts);
    v.number(membership_changes);
    v.number(flaps);
    v.number(crashes);
    v.make_shared_instant(round_started);
    v.make_shared_instant(first_waiting);
    v.make_shared_instant(last_waiting);
    visit(v, end);
    for (auto* one : {&result, &previous_result}) {
      v.optional(*one, [&](JobResult& value) { visit(v, value); });
    }
    v.list(former_node, kFormerNodesMax, [&](FormerNode& one) {
      visit(v, one.id);
      v.text(one.name, kNodeTextBytesMax);
      v.text(one.reason, kFieldBytesMax);
      v.flag(one.lost);
      v.flag(one.timed_out);
      v.number(one.round);
      v.number(one.done_round);
    });
    v.list(timers, kTimers, [&](SharedInstant& timer) { v.make_shared_instant(timer); });
    v.number(marks);
  }

  // What the machine relies on when it indexes and dereferences.
  bool is_sound() const {
    const bool closed = phase == RendezvousPhase::kClosed;
    if (closed != result.has_value() || timers.size() != kTimers) return false;
    if (!settings.validate().ok() || highest_seen > kRoundMax || record.round > highest_seen) {
      return false;
    }
    const bool is_timed = round_started.number > 0 || members.empty();
    if (!is_timed || (phase == RendezvousPhase::kRunning && members.empty())) return false;
    for (const int counter : {restarts, membership_changes, flaps, crashes, finishers_departed}) {
      if (counter < 0 || counter > kCounterMax) return false;
    }
    if (end.failure.has_value() != (end.failure_at.number > 0)) return false;
    if (end.verdict_pending && !end.failure) return false;
    for (const RoundMember& member : members) {
      if (member.local_world_size < 0 || member.local_world_size > kLocalWorldSizeMax) return false;
    }
    std::vector<bool> taken(members.size(), false);
    for (const Node& node : nodes) {
      if (node.rank < -1 || node.rank >= static_cast<int>(members.size())) return false;
      if (node.info.local_world_size < 1 || node.info.local_world_size > kLocalWorldSizeMax) {
        return false;
      }
      if (node.info.stop_grace < Duration::zero() || node.info.failure_grace < Duration::zero()) {
        return false;
      }
      if (node.rank < 0) continue;
      const auto rank = static_cast<std::size_t>(node.rank);
      if (taken[rank] || members[rank].id != node.info.id) return false;
      taken[rank] = true;
    }
    return true;
  }

  void install(RendezvousMachine* machine, Instant now) {
    RendezvousMachine& m = *machine;
    m.phase_ = phase;
    m.highest_seen_ = highest_seen;
    m.is_first_ = is_first;
    m.is_fresh_ = m.is_fresh_ && record.round == 0;
    m.record_ = std::move(record);
    m.members_ = std::move(members);
    m.missing_ = static_cast<int>(std::count_if(
        m.members_.begin(), m.members_.end(),
        [](const RoundMember& member) { return member.fate == MemberFate::kMissing; }));
    m.finishers_departed_ = finishers_departed;
    m.arrivals_ = arrivals;
    m.restarts_ = restarts;
    m.membership_changes_ = membership_changes;
    m.flaps_ = flaps;
    m.crashes_ = crashes;
    m.round_started_ = round_started;
    m.first_waiting_at_ = first_waiting;
    m.last_waiting_ = last_waiting;
    m.end_ = std::move(end);
    if (m.end_.failure) m.end_.failure->at = m.end_.failure_at.at;
    m.result_ = share(result);
    m.previous_result_ = share(previous_result);
    m.former_nodes_ = std::move(former_node);
    std::copy(timers.begin(), timers.end(), std::begin(m.timers_));
    m.marks_ = marks;
    install_nodes(&m, now);
    m.now_ = std::max(m.now_, now);
    m.timers_checked_at_ = Instant::min();
    m.recount();
  }

  JobSettings settings;
  RendezvousPhase phase = RendezvousPhase::kForming;

 private:
  static std::shared_ptr<const JobResult> share(std::optional<JobResult>& one) {
    return one ? std::make_shared<const JobResult>(std::move(*one)) : nullptr;
  }
  void install_nodes(RendezvousMachine* machine, Instant now) {
    RendezvousMachine& m = *machine;
    RendezvousMachine::Nodes before = std::move(m.nodes_);
    m.nodes_.clear();
    m.static_rank_owners_.clear();
    m.deadline_check_ = Instant::max();
    for (Node& node : nodes) {
      const NodeId id = node.info.id;
      const auto known = before.find(id);
      if (known == before.end() || known->second.beat != node.beat)
        m.liveness_.record_activity(id, now);
      before.erase(id);
      if (m.settings_.static_ranks) m.static_rank_owners_[node.info.static_rank] = id;
      m.deadline_check_ = std::min(m.deadline_check_, node.deadline.at);
      m.nodes_[id] = std::move(node);
    }
    for (const auto& [id, node] : before) m.liveness_.forget(id);
  }

  std::uint64_t highest_seen = 0;
  bool is_first = true;
  RoundRecord record;
  std::vector<RoundMember> members;
  int finishers_departed = 0;
  std::vector<Node> nodes;
  std::uint64_t arrivals = 0;
  int restarts = 0;
  int membership_changes = 0;
  int flaps = 0;
  int crashes = 0;
  SharedInstant round_started;
  SharedInstant first_waiting;
  SharedInstant last_waiting;
  RoundEnd end;
  std::optional<JobResult> result;
  std::optional<JobResult> previous_result;
  std::deque<FormerNode> former_node;
  std::vector<SharedInstant> timers;
  std::uint64_t marks = 0;
};

std::string RendezvousMachine::encode() const {
  std::string bytes;
  Saver saver(&bytes);
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
    return Status(StatusCode::kPeerViolation, "rendezvous state: these bytes are something else");
  }
  if (version != kStateVersion) {
    return Status(StatusCode::kFailedPrecondition,
                  std::string("rendezvous state: written by ") +
                      (version > kStateVersion ? "a newer" : "an older") + " version (format " +
                      std::to_string(version) + ", this one reads " +
                      std::to_string(kStateVersion) + ")");
  }
  constexpr std::size_t kHeadBytes = sizeof kStateMagic + sizeof kStateVersion;
  RendezvousCodec state;
  Loader loader(bytes.substr(kHeadBytes), now, seen_marks_);
  state.visit_all(loader);
  if (!loader.ok() || !state.is_sound()) {
    return Status(StatusCode::kPeerViolation, "rendezvous state: the bytes are damaged");
  }
  if (state.phase != RendezvousPhase::kClosed) {
    if (Status fault = compare_settings(state.settings, settings_); !fault.ok()) return fault;
  }
  state.install(this, now);
  seen_marks_ = std::move(loader.marks);
  return {};
}

Status RendezvousMachine::restore(std::string_view bytes, Instant now) {
  const Instant hold_until = at(Timer::kStartHold);
  if (Status fault = load(bytes, now); !fault.ok()) return fault;
  is_fresh_ = has_resumes_ = true;
  arm(Timer::kStartHold, hold_until);
  for (auto& [id, node] : nodes_) {
    change(node, [](Node& one) { one.suspect = one.is_awaited = true; });
    liveness_.await(id, add_saturating(now_, settings_.store_grace));
  }
  return {};
}

}  // namespace elastic::core
