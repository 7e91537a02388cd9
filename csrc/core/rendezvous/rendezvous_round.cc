// Rounds: how one ends and what that costs, when the next is complete, and the end of the job.

#include <algorithm>
#include <utility>

#include "core/base/describe.h"
#include "core/base/siphash.h"
#include "core/base/text.h"
#include "core/rendezvous/rank_assign.h"
#include "core/rendezvous/rendezvous_events.h"
#include "core/rendezvous/rendezvous_fields.h"
#include "core/rendezvous/rendezvous_machine.h"

namespace elastic::core {
namespace {

constexpr Duration kGrowthDelayMax = std::chrono::seconds(60);
constexpr int kFlapDoublingsMax = 6;
constexpr Duration kRestartBackoffMax = std::chrono::seconds(60);
constexpr int kBackoffDoublingsMax = 16;

}  // namespace

void RendezvousMachine::advance() {
  if (is_closed()) return;
  mark_host_lost();
  check_newcomers();
  if (is_next_job_due_) return;
  if (round_.is_running) {
    dismiss_excluded();
    check_growth();
    return;
  }
  if (phase() == RendezvousPhase::kForming) check_verdict();
  if (is_closed()) return;
  announce_round_over();
  if (round_.has_workers()) return;  // I1
  if (round_.has_succeeded()) {
    close_with_success();
    return;
  }
  if (round_.record.round > 0) recall_as_needed();
  dismiss_excluded();
  check_min_nodes();
  is_start_due_ = false;
  if (may_complete() && may_start()) complete();
}

void RendezvousMachine::fail(Node& node, const FailureReport& failure) {
  if (node.rank < 0) return;
  // Clamp times in the future and times that are too old to be true.
  const Instant at = std::clamp(failure.at, now_ - kEvidenceAgeMax, now_);
  if (round_.is_running) {
    RoundEnd end{.cause = rdzv::RestartCause::kWorkerFailed};
    end.reason =
        describe_worker(failure.rank, node.info.name, failure.message.substr(0, kMessageBytesMax));
    end.verdict_pending = true;
    note_first(node.info, failure, at, &end);
    end_round(std::move(end));
    arm_after(Timer::kVerdict, settings_.node_timeout);
  } else if (round_.end.verdict_pending) {
    note_first(node.info, failure, at, &round_.end);
  }
}

void RendezvousMachine::note_first(const NodeInfo& node, const FailureReport& failure, Instant at,
                                   RoundEnd* end) const {
  if (!end->failure.note(node.id, node.name, failure, at)) return;
  FailureReport& first = *end->failure.report;
  first.message.resize(std::min(first.message.size(), kMessageBytesMax));
  end->failure_at = stored(first.at);
}

void RendezvousMachine::end_round(RoundEnd end, bool is_planned) {
  const rdzv::RestartCause cause = end.cause;
  round_.is_running = round_.is_growth_due = false;
  const bool was_short_lived = now_ - round_.started.at < kFlapRoundAge;
  if (!was_short_lived) {
    round_.flaps = 0;
  } else if (is_departure(cause) && !is_planned) {
    ++round_.flaps;
  }
  round_.end = std::move(end);
  count_crash(cause);
  round_.disarm(Timer::kGrowth);
  arm_after(Timer::kResend, kWaitingMessageInterval);
  if (is_departure(cause) && settings_.shrink_delay > Duration::zero()) {
    arm_after(Timer::kShrink, settings_.shrink_delay);
  }
  for (auto& [id, node] : nodes_) {
    if (node.phase == NodePhase::kWorking || node.phase == NodePhase::kStopped) send_restart(node);
  }
  recall_as_needed();
}

void RendezvousMachine::count_crash(rdzv::RestartCause cause) {
  if (now_ - round_.started.at >= kCrashAge) round_.crashes = 0;
  if (cause != rdzv::RestartCause::kWorkerFailed) return;
  round_.end.is_crash = now_ - round_.started.at < kCrashAge;
  if (round_.end.is_crash) ++round_.crashes;
  const Duration first = settings_.restart_backoff;
  if (round_.crashes < 2 || first == Duration::zero()) return;
  const Duration longest = std::max(first, kRestartBackoffMax);
  const int doublings = std::min(round_.crashes - 2, kBackoffDoublingsMax);
  const Duration::rep factor = Duration::rep{1} << doublings;
  arm_after(Timer::kBackoff, first > longest / factor ? longest : Duration(first.count() * factor));
}

// Their peer was lost: they say nothing about the program, and the next round is not delayed.
void RendezvousMachine::explain_failures(bool is_planned) {
  round_.end.verdict_pending = false;
  round_.disarm(Timer::kVerdict);
  if (!is_planned && now_ - round_.started.at < kFlapRoundAge) ++round_.flaps;
  if (!std::exchange(round_.end.is_crash, false)) return;
  --round_.crashes;
  round_.disarm(Timer::kBackoff);
}

Duration RendezvousMachine::grace_of(const Node& node) const {
  const bool has_failed =
      round_.end.cause == rdzv::RestartCause::kWorkerFailed || is_departure(round_.end.cause);
  return has_failed ? node.info.failure_grace : node.info.stop_grace;
}

void RendezvousMachine::send_restart(Node& node) {
  const Duration grace = grace_of(node);
  set_deadline(node, add_saturating(add_saturating(now_, grace), kStopMargin));
  emit(rdzv::Restart{node.info.id, round_.record.round, round_.end.cause, round_.end.reason, grace,
                     round_.stop_reason()});
}

void RendezvousMachine::recall(bool members_only) {
  for (auto& [id, node] : nodes_) {
    if (node.phase != NodePhase::kDone || (members_only && node.rank < 0)) continue;
    const bool has_joined = node.answered_round == round_.record.round;
    change(node,
           [&](Node& one) { one.phase = has_joined ? NodePhase::kJoined : NodePhase::kStopped; });
    if (!has_joined) send_restart(node);
  }
}

void RendezvousMachine::recall_as_needed() {
  if (!is_departure(round_.end.cause) && round_.tally.done_members > 0) recall(true);
  // The others run the next round without the finished nodes, if they are enough for one.
  const int without =
      round_.tally.joined + round_.tally.working + round_.tally.stopped + round_.missing;
  if (round_.tally.done > 0 && without < settings_.min_nodes && !round_.has_succeeded())
    recall(false);
}

void RendezvousMachine::check_verdict() {
  if (!round_.end.verdict_pending) return;
  const bool may_be_explained = round_.has_workers();
  if (may_be_explained && round_.is_armed(Timer::kVerdict)) return;
  round_.end.verdict_pending = false;
  round_.disarm(Timer::kVerdict);
  judge_failure();
}

FailureDecision RendezvousMachine::decide(const FailureEvent& event) {
  if (stop_without_progress_ > 0) count_progress();
  if (rules_.of_user.empty() && stop_without_progress_ == 0 && !event.advice) {
    return decide_by_default(rules_, event);
  }
  FailureDecision decision = decide_failure(rules_, past_failures_, event, now_);
  if (decision.action != FailureAction::kStop && stop_without_progress_ > 0 &&
      progress_.fruitless >= stop_without_progress_) {
    decision.action = FailureAction::kStop;
    decision.why = count_text(progress_.fruitless, "round") + " ended without a step after " +
                   (progress_.best < 0 ? "the first" : std::to_string(progress_.best)) +
                   " (stop_without_progress)";
  }
  if (past_failures_.size() == kPastFailuresMax) past_failures_.erase(past_failures_.begin());
  past_failures_.push_back({now_, event.host, decision.rule});
  round_.end.rule = decision.why;
  if (decision.action == FailureAction::kExclude) exclude(decision, event);
  return decision;
}

void RendezvousMachine::count_progress() {
  if (std::exchange(round_.end.is_progress_counted, true)) return;
  if (progress_.step > progress_.best) {
    progress_.best = progress_.step;
    progress_.fruitless = 0;
  } else {
    progress_.fruitless = std::min(progress_.fruitless + 1, kCounterMax);
  }
}

// The next round is not complete yet: all of its nodes have to join first.
void RendezvousMachine::exclude(const FailureDecision& decision, const FailureEvent& event) {
  if (host_gate_ == nullptr || event.host.empty()) return;
  std::string why = decision.why;
  if (!event.error.empty()) why += ": " + event.error;
  host_gate_->exclude(event.host, why, now_);
  mark_excluded();
}

void RendezvousMachine::judge_failure() {
  const FailureReport& first = *round_.end.failure.report;
  FailureEvent event{.exit_code = first.exit_code,
                     .host = host_of(round_.end.failure.name),
                     .advice = first.advice};
  if (const Node* const node = find(round_.end.failure.node)) event.host = host_of(node->info);
  if (first.evidence) {
    const FailureEvidence& evidence = *first.evidence;
    if (evidence.cause == FailureCause::kHang) event.kind = FailureKind::kHang;
    event.failure_class = evidence.failure_class;
    event.error = evidence.error.empty() ? last_line(evidence.output) : evidence.error;
  }
  const FailureDecision decision = decide(event);
  if (decision.action == FailureAction::kStop) {
    JobResult result = failure_result();
    result.message += "; " + decision.why;
    return close(std::move(result));
  }
  if (decision.counts)
    charge(rdzv::RestartCause::kWorkerFailed, round_.end.failure.name, round_.end.reason);
}

void RendezvousMachine::judge_loss(FailureKind kind, const std::string& name,
                                   const std::string& host, const std::string& what,
                                   bool survives) {
  const FailureEvent event{.kind = kind,
                           .failure_class = FailureClass::kInfrastructure,
                           .error = what,
                           .host = host,
                           .enough_left = survives};
  // One end of a round is decided once, however many nodes were lost. A node that leaves is no
  // failure.
  const bool is_decided = !round_.end.rule.empty();
  const FailureDecision decision = is_decided || kind == FailureKind::kNodeLeft
                                       ? decide_by_default(rules_, event)
                                       : decide(event);
  if (decision.action == FailureAction::kStop) {
    return close(loss_result(name, what + (survives ? "; " : nodes_left()) + decision.why));
  }
  if (decision.counts) charge(rdzv::RestartCause::kMemberLost, name, what);
}

std::string RendezvousMachine::nodes_left() const {
  const std::string left = settings_.min_nodes == 1
                               ? "no node remains"
                               : std::to_string(available_nodes()) + " of at least " +
                                     std::to_string(settings_.min_nodes) + " nodes remain";
  return ": " + left + " and ";
}

JobResult RendezvousMachine::loss_result(const std::string& node,
                                         const std::string& message) const {
  JobResult result;
  result.outcome = JobOutcome::kFailed;
  result.cause = JobCause::kNodeLost;
  result.exit_code = round_.end.exit_code;
  result.node = node;
  result.lost = round_.lost_names();
  result.message = message;
  if (round_.end.failure.report) result.message += "; before that " + failure_result().message;
  return result;
}

JobResult RendezvousMachine::failure_result() const {
  const FailureReport& first = *round_.end.failure.report;
  JobResult result;
  result.outcome = JobOutcome::kFailed;
  result.cause = JobCause::kWorker;
  result.exit_code = first.exit_code;
  result.rank = first.rank;
  result.node = round_.end.failure.name;
  result.node_id = round_.end.failure.node;
  result.message = describe_worker(first.rank, result.node, first.message);
  result.lost = round_.lost_names();
  result.finished = finished_names();
  result.evidence = first.evidence;
  return result;
}

// That they have ended may be why the others failed.
std::vector<std::string> RendezvousMachine::finished_names() const {
  std::vector<std::string> names;
  for (const auto& [id, node] : nodes_) {
    if (names.size() == kLostNamesMax) break;
    const bool has_finished = node.rank >= 0 && node.done_round == round_.record.round;
    if (has_finished) names.push_back(node.info.name);
  }
  return names;
}

void RendezvousMachine::charge(rdzv::RestartCause cause, const std::string& node,
                               const std::string& what) {
  if (std::exchange(round_.end.charged, true)) return;  // one end costs one restart
  const RestartBudget restarts{restarts_, settings_.max_restarts};
  if (!restarts.is_spent()) {
    ++restarts_;
    return;
  }
  JobResult result;
  if (is_departure(cause)) {
    result = loss_result(node, what + nodes_left() + restarts.describe_spent());
  } else {
    result = failure_result();
    result.message += "; " + restarts.describe_spent();
  }
  close(std::move(result));
}

void RendezvousMachine::check_min_nodes() {
  // Before the first round every join has a time limit of its own.
  const bool is_short = round_.tally.joined + round_.tally.stopped < settings_.min_nodes;
  if (round_.is_first || !is_short) {
    round_.disarm(Timer::kBelowMinNodes);
  } else if (!round_.is_armed(Timer::kBelowMinNodes)) {
    arm_after(Timer::kBelowMinNodes, settings_.join_timeout);
  }
}

bool RendezvousMachine::may_complete() {
  const int size = std::min(candidates(), settings_.max_nodes);
  if (round_.tally.joined < settings_.min_nodes) {
    round_.disarm(Timer::kLastCall);
    return false;
  }
  if (round_.tally.stopped > 0 || round_.tally.joined_suspect > 0) return false;
  if (round_.is_armed(Timer::kBackoff) && now_ < round_.at(Timer::kBackoff)) return false;
  if (size < settings_.max_nodes) {
    if (round_.is_first) {
      if (!round_.is_armed(Timer::kLastCall))
        arm_after(Timer::kLastCall, settings_.last_call_timeout);
      if (now_ < round_.at(Timer::kLastCall)) return false;
    } else if (size < round_.size() && round_.is_armed(Timer::kShrink) &&
               now_ < round_.at(Timer::kShrink)) {
      return false;
    }
  }
  const bool is_full_of_newcomers =
      size == settings_.max_nodes && highest_seen_ == 0 && !has_resumes_;
  return is_full_of_newcomers || now_ >= round_.at(Timer::kStart);
}

// Once it was allowed, nodes that join until the round is complete are of it, too.
bool RendezvousMachine::may_start() {
  is_start_due_ = awaits_start_ && round_.is_first && !is_start_allowed_ && !probed_nodes().empty();
  return !is_start_due_;
}

std::vector<const NodeInfo*> RendezvousMachine::probed_nodes() const {
  std::vector<const NodeInfo*> found;
  for (const auto& [id, node] : nodes_) {
    if (node.phase == NodePhase::kJoined && node.info.probe_port != 0) found.push_back(&node.info);
  }
  return found;
}

// A node of an excluded host is one of them only where min_nodes would not be reached.
int RendezvousMachine::candidates() const {
  const int eligible = round_.tally.joined_eligible;
  return std::max(eligible, std::min(round_.tally.joined, settings_.min_nodes));
}

std::vector<Node*> RendezvousMachine::choose_members() {
  std::vector<Node*> chosen;
  for (auto& [id, node] : nodes_) {
    if (node.phase == NodePhase::kJoined) chosen.push_back(&node);
  }
  const auto places = static_cast<std::size_t>(std::min(candidates(), settings_.max_nodes));
  if (chosen.size() > places) {
    // Survivors first, then the others in the order of their joins; excluded hosts last.
    std::sort(chosen.begin(), chosen.end(), [](const Node* a, const Node* b) {
      if (a->is_excluded != b->is_excluded) return b->is_excluded;
      if ((a->rank >= 0) != (b->rank >= 0)) return a->rank >= 0;
      return a->arrival < b->arrival;
    });
    chosen.resize(places);
  }
  return chosen;
}

void RendezvousMachine::complete() {
  bad_host_.clear();
  const std::vector<Node*> by_rank = order_by_rank(choose_members());
  refused_.clear();
  is_start_allowed_ = false;
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
  std::vector<NodeId> before;
  for (const RoundMember& member : round_.members) before.push_back(member.id);
  std::vector<NodeId> after;
  for (const Node* node : by_rank) after.push_back(node->info.id);
  for (auto* ids : {&before, &after}) std::sort(ids->begin(), ids->end());
  if (!round_.is_first && after != before) ++membership_changes_;

  for (auto& [id, node] : nodes_) {
    node.rank = -1;
    node.deadline = {};
  }
  // Before the end of the round is forgotten.
  round_.cause =
      round_.is_first ? nullptr : std::make_shared<const RoundCause>(round_.next_cause());
  round_.begin(++highest_seen_, by_rank, stored(now_));
  progress_.step = -1;
  round_.record.term = std::max(round_.record.term, succession_.term);
  round_.record.restarts = restarts_;
  round_.record.membership_changes = membership_changes_;
  round_.record.resume = plan_resume(by_rank);
  // A node of an earlier round that resumes now finds a newer one: no further wait for it.
  if (now_ < round_.at(Timer::kStart)) arm(Timer::kStart, now_);
  recount();
}

ResumePoint RendezvousMachine::plan_resume(const std::vector<Node*>& by_rank) const {
  if (resume_plan_ == nullptr) return {};
  std::vector<NodeHoldings> holdings;
  for (std::size_t i = 0; i < by_rank.size(); ++i) {
    const NodeInfo& info = by_rank[i]->info;
    holdings.push_back(
        {round_.ranks[i].base_rank, info.local_world_size, &info.held, &info.copies_address});
  }
  return resume_plan_(holdings, round_.record.world_size);
}

// Of the members that are still known: a node whose source is gone finds out at once.
std::vector<HeldSource> RendezvousMachine::sources_for(const Node& node) const {
  if (resume_sources_ == nullptr || round_.record.resume.step < 0) return {};
  std::vector<NodeHoldings> holdings;
  for (std::size_t i = 0; i < round_.members.size(); ++i) {
    const Node* const member = find(round_.members[i].id);
    NodeHoldings one{round_.ranks[i].base_rank, round_.members[i].local_world_size};
    if (member != nullptr) {
      one.held = &member->info.held;
      one.address = &member->info.copies_address;
    }
    holdings.push_back(one);
  }
  return resume_sources_(holdings, round_.record.world_size, round_.record.resume,
                         static_cast<std::size_t>(node.rank));
}

rdzv::Round RendezvousMachine::round_for(const Node& node,
                                         std::shared_ptr<const RoundRecord> record) const {
  return {node.info.id, std::move(record), round_.assignment_of(node), round_.cause,
          sources_for(node)};
}

void RendezvousMachine::send_round(const std::vector<Node*>& by_rank) const {
  const auto record = std::make_shared<const RoundRecord>(round_.record);
  for (const Node* node : by_rank) {
    emit(round_for(*node, record));
  }
  for (const auto& [id, node] : nodes_) {
    if (node.phase == NodePhase::kJoined) send_waiting(node);
  }
}

bool RendezvousMachine::may_grow() const {
  const bool has_changes_left = settings_.max_membership_changes < 0 ||
                                membership_changes_ < settings_.max_membership_changes;
  const bool is_complete = round_.missing == 0 && round_.tally.awaited == 0;
  return round_.is_running && is_complete && round_.tally.done == 0 &&
         round_.finishers_departed == 0 && has_changes_left && !holds_growth_ &&
         ((round_.tally.joined_ready > 0 && round_.size() < settings_.max_nodes) ||
          may_replace_excluded());
}

bool RendezvousMachine::may_replace_excluded() const {
  const Tally& tally = round_.tally;
  const int staying = tally.unfinished - tally.excluded_members;
  return tally.excluded_members > 0 && staying + tally.joined_ready >= settings_.min_nodes;
}

Duration RendezvousMachine::growth_delay() const {
  if (!is_flapping()) return settings_.settle;
  const Duration base = std::max<Duration>(settings_.settle, std::chrono::seconds(1));
  if (base >= kGrowthDelayMax) return base;
  return std::min<Duration>(base * (1LL << std::min(round_.flaps - 1, kFlapDoublingsMax)),
                            kGrowthDelayMax);
}

void RendezvousMachine::check_growth() {
  if (!may_grow()) {
    round_.disarm(Timer::kGrowth);
    round_.is_growth_due = false;
    return;
  }
  if (round_.is_growth_due) return;
  const Duration delay = growth_delay();
  const bool is_filled =
      round_.size() + round_.tally.joined_ready >= settings_.max_nodes && !is_flapping();
  // Further joins extend the wait up to a limit.
  Instant due = std::min(
      add_saturating(round_.last_waiting_at.at, delay),
      add_saturating(round_.first_waiting_at.at, std::max(delay, settings_.last_call_timeout)));
  if (is_filled || may_replace_excluded()) due = now_;
  due = std::max(due, growth_from_);
  if (now_ < due) {
    if (round_.at(Timer::kGrowth) != due) arm(Timer::kGrowth, due);
    return;
  }
  round_.disarm(Timer::kGrowth);
  round_.is_growth_due = awaits_grow_;
  if (!awaits_grow_) grow();
}

std::string RendezvousMachine::replacement_text() const {
  if (!may_replace_excluded()) return "";
  const int count = round_.tally.excluded_members;
  return count == 1 ? "1 node of an excluded host leaves"
                    : std::to_string(count) + " nodes of excluded hosts leave";
}

void RendezvousMachine::grow(const std::string& why) {
  const int count = waiting_nodes();
  std::string reason =
      std::to_string(count) + (count == 1 ? " more node has joined" : " more nodes have joined");
  if (const std::string leaving = replacement_text(); !leaving.empty()) {
    reason = leaving + (count > 0 ? ", " + reason : "");
  }
  if (!why.empty()) reason += ", without an agreed step: " + why.substr(0, kMessageBytesMax);
  const auto cause = count > 0 ? rdzv::RestartCause::kGrowth : rdzv::RestartCause::kMemberLeft;
  end_round({.cause = cause, .reason = std::move(reason)});
}

int RendezvousMachine::waiting_nodes() const {
  if (!may_grow()) return 0;
  const int leaving = may_replace_excluded() ? round_.tally.excluded_members : 0;
  return std::min(round_.tally.joined_eligible, settings_.max_nodes - round_.size() + leaving);
}

int RendezvousMachine::spare_nodes() const {
  return round_.is_running ? round_.tally.joined - waiting_nodes() : 0;
}

int RendezvousMachine::replacements() const {
  return round_.is_running ? round_.tally.joined - round_.tally.joined_suspect : 0;
}

void RendezvousMachine::close_with_success() {
  JobResult result;
  result.lost = round_.lost_names();
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
  bad_host_.clear();
  result.message.resize(std::min(result.message.size(), 2 * kMessageBytesMax));
  result.node.resize(std::min(result.node.size(), kNodeTextBytesMax));
  result.lost.resize(std::min(result.lost.size(), kLostNamesMax));
  for (std::string& name : result.lost) name.resize(std::min(name.size(), kNodeTextBytesMax));
  round_.is_running = false;
  result_ = std::make_shared<const JobResult>(std::move(result));
  const bool is_of_earlier_job = round_.is_adopted() && result_->outcome == JobOutcome::kSucceeded;
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
  const bool has_workers = round_.has_workers();
  if (round_.is_running || has_workers || round_.end.is_round_over_sent || round_.members.empty())
    return;
  round_.end.is_round_over_sent = true;
  const Node* host = find(round_.members.front().id);
  if (host != nullptr && host->rank == 0) emit(rdzv::RoundOver{host->info.id, round_.record.round});
}

}  // namespace elastic::core
