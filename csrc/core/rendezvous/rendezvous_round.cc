// Rounds: how one ends and what that costs, when the next is complete, and the end of the job.

#include <algorithm>
#include <set>
#include <utility>

#include "core/base/check.h"
#include "core/base/siphash.h"
#include "core/rendezvous/node_order.h"
#include "core/rendezvous/rank_assign.h"
#include "core/rendezvous/rendezvous_fields.h"
#include "core/rendezvous/rendezvous_machine.h"

namespace elastic::core {
namespace {

constexpr Duration kGrowthDelayMax = std::chrono::seconds(60);
constexpr int kFlapDoublingsMax = 6;
constexpr Duration kRestartBackoffMax = std::chrono::seconds(60);
constexpr int kBackoffDoublingsMax = 16;

// The same on every machine: members compare it to know that they hold the same list.
std::uint64_t digest_of(const std::vector<RoundMember>& members) {
  std::string bytes;
  for (const RoundMember& member : members) {
    bytes += to_string(member.id) + '\0' + member.name + '\0' + member.address + '\0' +
             std::to_string(member.local_world_size) + '\0' + member.role + '\0';
  }
  return SipHash(0)(bytes);
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

NodeAssignment assignment_of(int group_rank, int local_world_size, const NodeRanks& ranks) {
  return {group_rank, local_world_size, ranks.base_rank, ranks.base_role_rank,
          ranks.role_world_size};
}

void RendezvousMachine::advance() {
  if (phase_ == RendezvousPhase::kClosed) return;
  mark_host_lost();
  if (phase_ == RendezvousPhase::kRunning) {
    check_growth();
    return;
  }
  if (phase_ == RendezvousPhase::kForming) check_verdict();
  if (phase_ == RendezvousPhase::kClosed) return;
  announce_round_over();
  if (tally_.working > 0 || missing_ > 0) return;  // I1
  if (has_succeeded()) {
    succeed();
    return;
  }
  if (record_.round > 0) recall_as_needed();
  check_min_nodes();
  if (may_complete()) complete();
}

void RendezvousMachine::end_round(rdzv::RestartCause cause, std::string reason) {
  phase_ = RendezvousPhase::kForming;
  const bool was_short_lived = now_ - round_started_.at < kFlapRoundAge;
  if (!was_short_lived) {
    flaps_ = 0;
  } else if (cause == rdzv::RestartCause::kMemberLost) {
    ++flaps_;
  }
  end_ = {};
  end_.cause = cause;
  end_.reason = std::move(reason);
  count_crash(cause);
  disarm(Timer::kGrowth);
  arm_after(Timer::kResend, kWaitingMessageInterval);
  if (cause == rdzv::RestartCause::kMemberLost && settings_.shrink_delay > Duration::zero()) {
    arm_after(Timer::kShrink, settings_.shrink_delay);
  }
  for (auto& [id, node] : nodes_) {
    if (node.phase == NodePhase::kWorking || node.phase == NodePhase::kStopped) send_restart(node);
  }
  recall_as_needed();
}

void RendezvousMachine::count_crash(rdzv::RestartCause cause) {
  if (now_ - round_started_.at >= kCrashAge) crashes_ = 0;
  if (cause != rdzv::RestartCause::kWorkerFailed) return;
  if (now_ - round_started_.at < kCrashAge) ++crashes_;
  const Duration first = settings_.restart_backoff;
  if (crashes_ < 2 || first == Duration::zero()) return;
  const Duration longest = std::max(first, kRestartBackoffMax);
  const int doublings = std::min(crashes_ - 2, kBackoffDoublingsMax);
  const Duration::rep factor = Duration::rep{1} << doublings;
  arm_after(Timer::kBackoff, first > longest / factor ? longest : Duration(first.count() * factor));
}

Duration RendezvousMachine::grace_of(const Node& node) const {
  const bool has_failed = end_.cause == rdzv::RestartCause::kWorkerFailed ||
                          end_.cause == rdzv::RestartCause::kMemberLost;
  return has_failed ? node.info.failure_grace : node.info.stop_grace;
}

void RendezvousMachine::send_restart(Node& node) {
  const Duration grace = grace_of(node);
  set_deadline(node, add_saturating(add_saturating(now_, grace), kStopTimeoutMargin));
  emit(rdzv::Restart{node.info.id, record_.round, end_.cause, end_.reason, grace});
}

void RendezvousMachine::recall(bool members_only) {
  for (auto& [id, node] : nodes_) {
    if (node.phase != NodePhase::kDone || (members_only && node.rank < 0)) continue;
    change(node, [](Node& one) { one.phase = NodePhase::kStopped; });
    send_restart(node);
  }
}

void RendezvousMachine::recall_as_needed() {
  if (end_.cause != rdzv::RestartCause::kMemberLost && tally_.done_members > 0) recall(true);
  // The others run the next round without the finished nodes, if they are enough for one.
  const int without = tally_.joined + tally_.working + tally_.stopped + missing_;
  if (tally_.done > 0 && without < settings_.min_nodes && !has_succeeded()) recall(false);
}

bool RendezvousMachine::has_succeeded() const {
  return record_.round > 0 && tally_.finished + finishers_departed_ == record_.nodes;
}

void RendezvousMachine::check_verdict() {
  if (!end_.verdict_pending) return;
  const bool may_be_explained = tally_.working > 0 || missing_ > 0;
  if (may_be_explained && is_armed(Timer::kVerdict)) return;
  end_.verdict_pending = false;
  disarm(Timer::kVerdict);
  charge(rdzv::RestartCause::kWorkerFailed, end_.failed_node, end_.reason);
}

JobResult RendezvousMachine::failure_result() const {
  JobResult result;
  result.outcome = JobOutcome::kFailed;
  result.cause = JobCause::kWorker;
  result.exit_code = end_.failure->exit_code;
  result.rank = end_.failure->rank;
  result.node = end_.failed_node;
  result.message =
      "rank " + std::to_string(result.rank) + " on " + result.node + " " + end_.failure->message;
  result.lost = lost_names();
  result.evidence = end_.failure->evidence;
  return result;
}

void RendezvousMachine::charge(rdzv::RestartCause cause, const std::string& node,
                               const std::string& what) {
  const bool is_loss = cause == rdzv::RestartCause::kMemberLost;
  const bool may_replace = !is_loss || settings_.on_loss == LossPolicy::kReplace;
  if (may_replace && end_.charged) return;  // one end costs one restart
  if (may_replace && restarts_ < settings_.max_restarts) {
    ++restarts_;
    end_.charged = true;
    return;
  }
  const std::string total = std::to_string(settings_.max_restarts);
  const std::string budget = !may_replace                  ? "lost nodes are not replaced"
                             : settings_.max_restarts == 0 ? "no restart is allowed"
                                                           : "no restart is left of " + total;
  JobResult result;
  if (is_loss) {
    result.outcome = JobOutcome::kFailed;
    result.cause = JobCause::kNodeLost;
    result.node = node;
    result.lost = lost_names();
    result.message = what + ": " + std::to_string(available_nodes()) + " of at least " +
                     std::to_string(settings_.min_nodes) + " nodes remain and " + budget;
    if (end_.failure) result.message += "; before that " + failure_result().message;
  } else {
    result = failure_result();
    result.message += "; " + budget;
  }
  close(std::move(result));
}

void RendezvousMachine::check_min_nodes() {
  // Before the first round every join has a time limit of its own.
  const bool is_short = tally_.joined + tally_.stopped < settings_.min_nodes;
  if (is_first_ || !is_short) {
    disarm(Timer::kBelowMinNodes);
  } else if (!is_armed(Timer::kBelowMinNodes)) {
    arm_after(Timer::kBelowMinNodes, settings_.join_timeout);
  }
}

bool RendezvousMachine::may_complete() {
  const int size = std::min(tally_.joined, settings_.max_nodes);
  if (tally_.joined < settings_.min_nodes) {
    disarm(Timer::kLastCall);
    return false;
  }
  if (tally_.stopped > 0 || tally_.joined_suspect > 0) return false;
  if (is_armed(Timer::kBackoff) && now_ < at(Timer::kBackoff)) return false;
  if (size < settings_.max_nodes) {
    if (is_first_) {
      if (!is_armed(Timer::kLastCall)) arm_after(Timer::kLastCall, settings_.last_call_timeout);
      if (now_ < at(Timer::kLastCall)) return false;
    } else if (size < static_cast<int>(members_.size()) && is_armed(Timer::kShrink) &&
               now_ < at(Timer::kShrink)) {
      return false;
    }
  }
  const bool is_full_of_newcomers =
      size == settings_.max_nodes && highest_seen_ == 0 && !has_resumes_;
  return is_full_of_newcomers || now_ >= at(Timer::kStartHold);
}

std::vector<Node*> RendezvousMachine::choose_members() {
  std::vector<Node*> chosen;
  for (auto& [id, node] : nodes_) {
    if (node.phase == NodePhase::kJoined) chosen.push_back(&node);
  }
  const std::size_t places = static_cast<std::size_t>(settings_.max_nodes);
  if (chosen.size() > places) {
    // Survivors stay; then the first who came.
    std::sort(chosen.begin(), chosen.end(), [](const Node* a, const Node* b) {
      if ((a->rank >= 0) != (b->rank >= 0)) return a->rank >= 0;
      return a->arrival < b->arrival;
    });
    chosen.resize(places);
  }
  return chosen;
}

void RendezvousMachine::complete() {
  const std::vector<Node*> by_rank = order_by_rank(choose_members());
  install_round(by_rank);
  send_round(by_rank);
}

std::vector<Node*> RendezvousMachine::order_by_rank(const std::vector<Node*>& chosen) {
  std::vector<RankRequest> claims;
  claims.reserve(chosen.size());
  for (const Node* node : chosen) {
    RankRequest claim;
    claim.id = node->info.id;
    claim.name = node->info.name;
    claim.held_rank = settings_.static_ranks ? node->info.static_rank : node->rank;
    if (node->info.highest_round > 0) claim.preferred_rank = node->info.previous_rank;
    claim.hint = node->info.static_rank;
    claim.topology = node->info.topology;
    claims.push_back(claim);
  }
  const std::vector<int> ranks = assign_node_ranks(claims);
  std::vector<Node*> by_rank(chosen.size());
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    by_rank[static_cast<std::size_t>(ranks[i])] = chosen[i];
  }
  return by_rank;
}

void RendezvousMachine::install_round(const std::vector<Node*>& by_rank) {
  std::set<NodeId> before;
  for (const RoundMember& member : members_) before.insert(member.id);
  std::set<NodeId> after;
  for (const Node* node : by_rank) after.insert(node->info.id);
  if (!is_first_ && after != before) ++membership_changes_;

  for (auto& [id, node] : nodes_) {
    node.rank = -1;
    node.deadline = {};
  }
  record_.coordinator_rank = -1;
  members_.clear();
  for (Node* node : by_rank) {
    const NodeInfo& info = node->info;
    node->rank = static_cast<int>(members_.size());
    node->phase = NodePhase::kWorking;
    if (info.hosts_coordinator) record_.coordinator_rank = node->rank;
    members_.push_back(
        {info.id, info.name, info.address, info.local_world_size, info.role, MemberFate::kPresent});
  }
  record_.round = ++highest_seen_;
  record_.nodes = static_cast<int>(members_.size());
  record_.world_size = ranks_of(members_).front().world_size;
  record_.master_addr = by_rank.front()->info.address;
  record_.master_port = by_rank.front()->info.store_port;
  record_.restarts = restarts_;
  record_.membership_changes = membership_changes_;
  record_.members_digest = digest_of(members_);

  phase_ = RendezvousPhase::kRunning;
  is_first_ = is_fresh_ = is_adopted_ = false;
  finishers_departed_ = 0;
  round_started_ = make_shared_instant(now_);
  end_ = {};
  for (const Timer timer : {Timer::kLastCall, Timer::kGrowth, Timer::kBelowMinNodes, Timer::kShrink,
                            Timer::kRebuild, Timer::kVerdict, Timer::kResend, Timer::kBackoff}) {
    disarm(timer);
  }
  // Whoever comes back from an earlier round now finds another one, and need not be waited for.
  if (now_ < at(Timer::kStartHold)) arm(Timer::kStartHold, now_);
  recount();
}

void RendezvousMachine::send_round(const std::vector<Node*>& by_rank) const {
  const auto record = std::make_shared<const RoundRecord>(record_);
  const std::vector<NodeRanks> ranks = ranks_of(members_);
  for (const Node* node : by_rank) {
    const auto rank = static_cast<std::size_t>(node->rank);
    emit(rdzv::Round{node->info.id, record,
                     assignment_of(node->rank, node->info.local_world_size, ranks[rank])});
  }
  for (const auto& [id, node] : nodes_) {
    if (node.phase == NodePhase::kJoined) send_waiting(node);
  }
}

bool RendezvousMachine::may_grow() const {
  const bool has_changes_left = settings_.max_membership_changes < 0 ||
                                membership_changes_ < settings_.max_membership_changes;
  return phase_ == RendezvousPhase::kRunning && missing_ == 0 && tally_.done == 0 &&
         finishers_departed_ == 0 && has_changes_left && tally_.joined > tally_.joined_suspect &&
         static_cast<int>(members_.size()) < settings_.max_nodes;
}

Duration RendezvousMachine::growth_delay() const {
  if (flaps_ < 2) return settings_.settle;
  const Duration base = std::max<Duration>(settings_.settle, std::chrono::seconds(1));
  if (base >= kGrowthDelayMax) return base;
  return std::min<Duration>(base * (1LL << std::min(flaps_ - 1, kFlapDoublingsMax)),
                            kGrowthDelayMax);
}

void RendezvousMachine::check_growth() {
  if (!may_grow()) {
    disarm(Timer::kGrowth);
    return;
  }
  const Duration delay = growth_delay();
  const bool is_filled =
      static_cast<int>(members_.size()) + tally_.joined - tally_.joined_suspect >=
          settings_.max_nodes &&
      flaps_ < 2;
  // Newcomers that keep coming prolong the wait, but not for ever.
  const Instant due =
      std::min(add_saturating(last_waiting_.at, delay),
               add_saturating(first_waiting_at_.at, std::max(delay, settings_.last_call_timeout)));
  if (!is_filled && now_ < due) {
    if (at(Timer::kGrowth) != due) arm(Timer::kGrowth, due);
    return;
  }
  end_round(rdzv::RestartCause::kGrowth,
            std::to_string(waiting_nodes()) + " more nodes have joined");
}

int RendezvousMachine::waiting_nodes() const {
  if (!may_grow()) return 0;
  return std::min(tally_.joined, settings_.max_nodes - static_cast<int>(members_.size()));
}

int RendezvousMachine::spare_nodes() const {
  return phase_ == RendezvousPhase::kRunning ? tally_.joined - waiting_nodes() : 0;
}

std::vector<std::string> RendezvousMachine::lost_names() const {
  std::vector<std::string> names;
  for (const RoundMember& member : members_) {
    const bool is_gone = member.fate == MemberFate::kLost;
    if (is_gone && names.size() < kLostNamesMax) names.push_back(member.name);
  }
  return names;
}

void RendezvousMachine::succeed() {
  JobResult result;
  result.lost = lost_names();
  result.message = "all nodes have finished";
  if (!result.lost.empty()) {
    result.node = result.lost.front();
    result.message = "all nodes have finished; " + result.node;
    if (result.lost.size() > 1) {
      result.message += " and " + std::to_string(result.lost.size() - 1) + " more";
    }
    result.message += result.lost.size() > 1 ? " were" : " was";
    result.message += " lost after that";
  }
  close(std::move(result));
}

void RendezvousMachine::close(JobResult result) {
  result.message.resize(std::min(result.message.size(), 2 * kMessageBytesMax));
  result.node.resize(std::min(result.node.size(), kNodeTextBytesMax));
  result.lost.resize(std::min(result.lost.size(), kLostNamesMax));
  for (std::string& name : result.lost) name.resize(std::min(name.size(), kNodeTextBytesMax));
  phase_ = RendezvousPhase::kClosed;
  result_ = std::make_shared<const JobResult>(std::move(result));
  const bool is_of_earlier_job = is_adopted_ && result_->outcome == JobOutcome::kSucceeded;
  for (const auto& [id, node] : nodes_) {
    if (is_of_earlier_job && node.is_newcomer) {
      is_next_job_due_ = true;
    } else {
      emit(rdzv::Closed{id, result_});
    }
  }
  announce_round_over();
}

void RendezvousMachine::announce_round_over() {
  const bool has_workers = tally_.working > 0 || missing_ > 0;
  if (phase_ == RendezvousPhase::kRunning || has_workers || end_.is_round_over_sent ||
      members_.empty())
    return;
  end_.is_round_over_sent = true;
  const Node* host = find(members_.front().id);
  if (host != nullptr && host->rank == 0) emit(rdzv::RoundOver{host->info.id, record_.round});
}

}  // namespace elastic::core
