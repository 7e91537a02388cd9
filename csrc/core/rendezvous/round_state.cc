#include "core/rendezvous/round_state.h"

#include <algorithm>
#include <climits>
#include <utility>

#include "core/base/describe.h"
#include "core/base/siphash.h"
#include "core/base/text.h"
#include "core/rendezvous/rendezvous_fields.h"

namespace elastic::core {
namespace {

// The same on every machine: members compare it to know that they hold the same list.
std::uint64_t digest_of(const std::vector<RoundMember>& members) {
  std::string bytes;
  const auto add = [&bytes](std::string_view text) { (bytes += text) += '\0'; };
  for (const RoundMember& member : members) {
    add(to_string(member.id));
    add(member.name);
    add(member.address);
    add(std::to_string(member.local_world_size));
    add(member.role);
  }
  return SipHash(0)(bytes);
}

// Equal for failures that look the same, whichever rank they are of; not 0.
std::uint64_t digest_of(const FailureReport& failure) {
  std::string_view what;
  std::string bytes = std::to_string(failure.exit_code);
  if (failure.evidence) {
    const FailureEvidence& evidence = *failure.evidence;
    (bytes += '|') += to_string(evidence.cause);
    what = evidence.error.empty() ? last_line(evidence.output) : std::string_view(evidence.error);
  }
  (bytes += '|') += without_numbers(what);
  return SipHash(0)(bytes) | 1;
}

}  // namespace

std::vector<NodeRanks> ranks_of(const std::vector<RoundMember>& members) {
  std::vector<NodeMember> shapes;
  shapes.reserve(members.size());
  for (const RoundMember& member : members) {
    shapes.push_back({member.local_world_size, member.role});
  }
  return assign_ranks(shapes);
}

NodeAssignment make_assignment(int group_rank, int local_world_size, const NodeRanks& ranks) {
  return {group_rank, local_world_size, ranks.base_rank, ranks.base_role_rank,
          ranks.role_world_size};
}

void RoundState::count(const Node& node, int sign) {
  const bool is_member = node.rank >= 0;
  const bool has_finished = node.done_round == record.round && record.round > 0;
  switch (node.phase) {
    case rdzv::NodePhase::kJoined:
      tally.joined += sign;
      if (node.suspect) tally.joined_suspect += sign;
      if (!node.is_excluded) tally.joined_eligible += sign;
      if (!node.is_excluded && !node.suspect) tally.joined_ready += sign;
      break;
    case rdzv::NodePhase::kWorking: tally.working += sign; break;
    case rdzv::NodePhase::kStopped: tally.stopped += sign; break;
    case rdzv::NodePhase::kDone:
      tally.done += sign;
      if (is_member) tally.done_members += sign;
      break;
  }
  if (is_member) (has_finished ? tally.finished : tally.unfinished) += sign;
  if (is_member && node.is_awaited) tally.awaited += sign;
  if (!node.is_excluded && !node.suspect) tally.eligible += sign;
  if (is_member && node.is_excluded && !has_finished) tally.excluded_members += sign;
}

void RoundState::count_missing() {
  missing =
      static_cast<int>(std::count_if(members.begin(), members.end(), [](const RoundMember& member) {
        return member.fate == MemberFate::kMissing;
      }));
}

bool RoundState::take_due(Timer timer, Instant now) {
  if (at(timer) > now) return false;
  disarm(timer);
  return true;
}

bool RoundState::has_succeeded() const {
  return record.round > 0 && tally.finished + finishers_departed == record.nodes;
}

std::vector<std::string> RoundState::lost_names() const {
  std::vector<std::string> names;
  for (const RoundMember& member : members) {
    const bool is_lost = member.fate == MemberFate::kLost;
    if (is_lost && names.size() < kLostNamesMax) names.push_back(member.name);
  }
  return names;
}

NodeAssignment RoundState::assignment_of(const Node& member) const {
  const auto rank = static_cast<std::size_t>(member.rank);
  return make_assignment(member.rank, member.info.local_world_size,
                         ranks.empty() ? ranks_of(members)[rank] : ranks[rank]);
}

void RoundState::begin(std::uint64_t round, const std::vector<Node*>& by_rank, StoredInstant now) {
  record.coordinator_rank = -1;
  members.clear();
  for (Node* node : by_rank) {
    const NodeInfo& info = node->info;
    node->rank = size();
    node->phase = rdzv::NodePhase::kWorking;
    if (info.hosts_coordinator) record.coordinator_rank = node->rank;
    members.push_back(
        {info.id, info.name, info.address, info.local_world_size, info.role, MemberFate::kPresent});
  }
  record.round = round;
  record.nodes = size();
  ranks = ranks_of(members);
  record.world_size = ranks.front().world_size;
  record.master_addr = by_rank.front()->info.address;
  record.master_port = by_rank.front()->info.store_port;
  record.members_digest = digest_of(members);

  is_running = true;
  is_first = may_be_stale = false;
  origin = RoundOrigin::kOwn;
  finishers_departed = 0;
  started = now;
  end = {};
  for (const Timer timer : {Timer::kLastCall, Timer::kGrowth, Timer::kBelowMinNodes, Timer::kShrink,
                            Timer::kRebuild, Timer::kVerdict, Timer::kResend, Timer::kBackoff}) {
    disarm(timer);
  }
}

void RoundState::adopt(const HeldRound& held, StoredInstant now) {
  record = held.record;
  cause = held.cause;
  is_running = true;
  is_first = false;
  origin = RoundOrigin::kAdopted;
  finishers_departed = 0;
  started = now;
  end = {};
  missing = record.nodes;
  ranks.clear();
  members.assign(static_cast<std::size_t>(record.nodes), RoundMember{});
  for (int rank = 0; rank < record.nodes; ++rank) {
    member(rank).name = "the node of rank " + std::to_string(rank);
    member(rank).fate = MemberFate::kMissing;
  }
  for (const Timer timer : {Timer::kLastCall, Timer::kGrowth, Timer::kBelowMinNodes, Timer::kShrink,
                            Timer::kVerdict, Timer::kResend, Timer::kBackoff}) {
    disarm(timer);
  }
}

StopReason RoundState::stop_reason() const {
  StopReason why;
  why.text = end.reason;
  if (!end.departed.empty()) {
    why.cause = end.departed_as;
    why.node = end.departed;
    if (why.cause == StopCause::kNodeLost) why.failure_class = FailureClass::kInfrastructure;
  } else if (end.cause == rdzv::RestartCause::kWorkerFailed && end.failure.report) {
    const FailureReport& first = *end.failure.report;
    return worker_stop_reason(first.rank, end.failure.name, first.exit_code, first.evidence,
                              describe_worker(first.rank, end.failure.name, first.message));
  }
  return why;
}

RoundCause RoundState::next_cause() const {
  RoundCause next{.why = stop_reason(), .rule = end.rule};
  const bool is_failure = next.why.rank >= 0 && end.failure.report;
  if (!is_failure) return next;
  const FailureReport& first = *end.failure.report;
  next.failure_digest = digest_of(first);
  // The age of a round that an earlier coordinator has formed is not known.
  if (is_adopted() || first.at - started.at > kSameFailureAge) return next;
  const bool is_same = cause != nullptr && cause->failure_digest == next.failure_digest;
  next.same_failures = is_same ? std::clamp(cause->same_failures, 0, INT_MAX - 1) + 1 : 1;
  return next;
}

void FormerNodes::add(FormerNode node, std::size_t max) {
  latest_[node.id] = first_ + all_.size();
  all_.push_back(std::move(node));
  for (; all_.size() > max; ++first_) {
    const auto found = latest_.find(all_.front().id);
    if (found->second == first_) latest_.erase(found);  // else it has a later entry
    all_.pop_front();
  }
}

void FormerNodes::assign(std::deque<FormerNode> all) {
  all_ = std::move(all);
  first_ = 0;
  latest_.clear();
  for (std::size_t i = 0; i < all_.size(); ++i) latest_[all_[i].id] = i;
}

const FormerNode* FormerNodes::find(const NodeId& id) const {
  const auto found = latest_.find(id);
  if (found == latest_.end()) return nullptr;
  return &all_[static_cast<std::size_t>(found->second - first_)];
}

}  // namespace elastic::core
