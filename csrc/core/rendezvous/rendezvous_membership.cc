// Nodes of the job: joins and their checks, reports, and nodes that leave or are lost.

#include <algorithm>
#include <utility>

#include "core/rendezvous/rendezvous_fields.h"
#include "core/rendezvous/rendezvous_machine.h"
#include "elastic/agent.h"

namespace elastic {
namespace {

// The rank of the command line, once given, stays.
void replace_info(core::Node& node, const core::NodeInfo& info) {
  const int static_rank = node.info.static_rank;
  node.info = info;
  node.info.static_rank = static_rank;
}

constexpr std::string_view kThisNode = "this node";
constexpr const char* kNotGiven = "(not given)";

Status invalid(std::string message) {
  return Status(StatusCode::kInvalidArgument, std::move(message));
}

Status not_agreed(const std::string& name, const std::string& node, const std::string& job) {
  return invalid(std::string(kThisNode) + " has " + name + "=" + node + ", the job has " + name +
                 "=" + job);
}

std::string limit_text(int limit) { return limit < 0 ? "(no limit)" : std::to_string(limit); }

const char* policy_text(LossPolicy policy) {
  return policy == LossPolicy::kFail ? "fail" : "replace";
}

// The settings that all nodes of a job must share, as (option, value).
std::vector<std::pair<std::string, std::string>> agreed_settings(const JobSettings& settings) {
  std::vector<std::pair<std::string, std::string>> pairs = {
      {"--nnodes", core::nnodes_text(settings)},
      {"--max-restarts", std::to_string(settings.max_restarts)},
      {"--max-membership-changes", limit_text(settings.max_membership_changes)},
      {"--rdzv-backend", settings.static_ranks ? "static" : "(not static)"},
      {"--on-node-loss", policy_text(settings.on_loss)},
  };
  for (const auto& pair : settings.extra) {
    if (pair.first == core::kProgramSetting) continue;
    pairs.emplace_back(pair.first, core::agreed_text(pair.first, pair.second));
  }
  return pairs;
}

std::string value_of(const std::vector<std::pair<std::string, std::string>>& pairs,
                     std::string_view name) {
  const auto found = std::find_if(pairs.begin(), pairs.end(),
                                  [&](const auto& pair) { return pair.first == name; });
  return found == pairs.end() ? kNotGiven : found->second;
}

}  // namespace

namespace core {

Status compare_settings(const JobSettings& job, const JobSettings& node) {
  const auto job_pairs = agreed_settings(job);
  const auto node_pairs = agreed_settings(node);
  for (const auto& [name, value] : node_pairs) {
    const std::string expected = value_of(job_pairs, name);
    if (value != expected) return not_agreed(name, value, expected);
  }
  for (const auto& [name, value] : job_pairs) {
    const std::string actual = value_of(node_pairs, name);
    if (value != actual) return not_agreed(name, actual, value);
  }
  return {};
}

Status RendezvousMachine::check_join(const NodeInfo& node, const JobSettings& settings) const {
  const bool is_new_job = begins_next_job(node);
  if (Status fault = settings.validate(); !fault.ok()) return fault;
  if (!is_new_job) {
    if (Status fault = compare_settings(settings_, settings); !fault.ok()) return fault;
  }
  for (const std::string* text : {&node.name, &node.address, &node.role, &node.topology}) {
    if (text->size() > kNodeTextBytesMax) {
      return invalid("join: a name, address, role or hint is longer than " +
                     std::to_string(kNodeTextBytesMax) + " bytes");
    }
  }
  if (node.local_world_size < 1 || node.local_world_size > kLocalWorldSizeMax) {
    return invalid("join: nproc_per_node must be 1 to " + std::to_string(kLocalWorldSizeMax) +
                   ", not " + std::to_string(node.local_world_size));
  }
  if (node.highest_round > std::min(kRoundMax, round_.record.round + kRoundLeadMax)) {
    return invalid("join: highest_round=" + std::to_string(node.highest_round) +
                   " is out of range: the job's is " + std::to_string(round_.record.round));
  }
  if (node.stop_grace < Duration::zero() || node.failure_grace < Duration::zero()) {
    return invalid("join: a stop grace must not be negative");
  }
  if (settings.static_ranks && (node.static_rank < 0 || node.static_rank >= settings.max_nodes)) {
    return invalid("join: node_rank must be 0 to " + std::to_string(settings.max_nodes - 1) +
                   ", not " + std::to_string(node.static_rank));
  }
  return {};
}

// Two jobs that share an endpoint and an id by mistake: without this the second one would wait as
// spares of the first, or receive its result, and exit with its success. A node that runs the job's
// program is a spare, and so is one that may replace a member that is just being lost. A job whose
// nodes run different programs says nothing about one more, and neither does a job of one node that
// takes further ones: their arguments may differ.
Status RendezvousMachine::check_surplus(const NodeInfo& node, const JobSettings& settings) const {
  const bool has_all = round_.is_running && round_.size() >= std::min(settings_.max_nodes, 2);
  const bool has_ended = is_closed() && !begins_next_job(node);
  if ((!has_all && !has_ended) || node.highest_round > 0 || find(node.id) != nullptr) return {};
  const std::string own = value_of(settings.extra, kProgramSetting);
  const std::string expected = value_of(settings_.extra, kProgramSetting);
  if (!is_one_program_ || own == kNotGiven || expected == kNotGiven || own == expected) return {};
  const bool is_any_suspect =
      std::any_of(nodes_.begin(), nodes_.end(), [](const auto& one) { return one.second.suspect; });
  if (is_any_suspect) return {};
  return invalid("all nodes of the job run " + expected + ", this node has " + own +
                 ": another job uses this endpoint; give each job its own --rdzv-id");
}

void RendezvousMachine::note_program(const NodeInfo& node, const JobSettings& settings) {
  const std::string own = value_of(settings.extra, kProgramSetting);
  if (own != value_of(settings_.extra, kProgramSetting)) is_one_program_ = false;
  if (refused_.starts_with(node.name + ": ")) refused_.clear();
}

void RendezvousMachine::refuse(const NodeInfo& node, Status fault) {
  if (!round_.is_running) {
    std::string why(fault.message());
    if (why.starts_with(kThisNode)) why.replace(0, kThisNode.size(), "it");
    refused_ = node.name + ": " + why.substr(0, kMessageBytesMax);
  }
  emit(rdzv::Refused{node.id, std::move(fault)});
  shorten_joins();
}

Status RendezvousMachine::check_static_rank(const NodeInfo& node, bool has_round) {
  if (!settings_.static_ranks) return {};
  const auto holder = static_rank_owners_.find(node.static_rank);
  if (holder == static_rank_owners_.end() || holder->second == node.id) return {};
  const Node& other = *find(holder->second);
  const std::string other_name = other.info.name;
  // A node with the rank of a node whose session is closed is its replacement.
  if (other.suspect) {
    depart(other.info.id, true, "its session was closed and " + node.name + " took its rank");
    return {};
  }
  Status fault = invalid("node_rank=" + std::to_string(node.static_rank) + " was given to both " +
                         other_name + " and " + node.name);
  // One that has the rank in a round has it first, though the other one reached this process first.
  if (!has_round || other.rank >= 0) return fault;
  const std::string why(fault.message());
  emit(rdzv::Refused{other.info.id, std::move(fault)});
  depart(other.info.id, false, why);
  return {};
}

// A node that has had a round is of the job that has ended, also if it comes after all others have
// left: it receives the result. A success that was rebuilt from resumes can be the end of an
// earlier job with this id. A node that no coordinator knew before belongs to the next job: it must
// not exit with that success.
bool RendezvousMachine::begins_next_job(const NodeInfo& info) const {
  const bool is_of_this_job = info.highest_round > 0 && info.highest_round <= round_.record.round;
  if (!is_closed() || is_of_this_job) return false;
  const bool is_anybody_here = std::any_of(nodes_.begin(), nodes_.end(),
                                           [](const auto& one) { return !one.second.is_awaited; });
  if (!is_anybody_here) return true;
  return round_.is_adopted() && result_->outcome == JobOutcome::kSucceeded &&
         info.highest_round == 0 && find(info.id) == nullptr;
}

// The next job has had no round yet.
bool RendezvousMachine::is_of_last_job(const NodeInfo& info) const {
  return previous_result_ != nullptr && !round_.may_adopt() && round_.record.round == 0 &&
         info.highest_round > 0;
}

// They have received the result.
void RendezvousMachine::dismiss_nodes_of_last_job() {
  std::vector<NodeId> informed;
  for (const auto& [id, node] : nodes_) {
    if (!node.is_newcomer) informed.push_back(id);
  }
  for (const NodeId& id : informed) depart(id, false, "the job has ended");
}

// The nodes that joined while an earlier job was rebuilt form their own.
void RendezvousMachine::begin_next_job() {
  is_next_job_due_ = false;
  dismiss_nodes_of_last_job();
  start_generation(JobSettings(settings_));
  for (auto& [id, node] : nodes_) {
    liveness_.record_activity(id, now_);
    if (node.suspect) liveness_.session_closed(id, now_);
    set_deadline(node, add_saturating(now_, settings_.join_timeout));
  }
  arm_after(Timer::kResend, kWaitingMessageInterval);
  advance();
}

void RendezvousMachine::start_generation(const JobSettings& settings) {
  settings_ = settings;
  rules_ = core::failure_rules(settings_);
  stop_without_progress_ = stop_without_progress(settings_);
  past_failures_.clear();
  progress_ = {};
  is_one_program_ = true;
  const std::uint32_t generation = round_.record.generation + 1;
  round_ = {};
  refused_.clear();
  round_.record.generation = generation;
  round_.origin = RoundOrigin::kOwn;
  restarts_ = membership_changes_ = 0;
  holds_growth_ = is_start_due_ = is_start_allowed_ = false;
  previous_result_ = std::exchange(result_, nullptr);
  arm(Timer::kStart, now_);
  for (FormerNode& node : former_nodes_) node.join_deadline = {};  // the waits of that generation
  liveness_ = Liveness(settings_.node_timeout, settings_.reconnect_grace);
  recount();
}

Node* RendezvousMachine::find(const NodeId& id) {
  const auto found = nodes_.find(id);
  return found == nodes_.end() ? nullptr : &found->second;
}

const Node* RendezvousMachine::find(const NodeId& id) const {
  const auto found = nodes_.find(id);
  return found == nodes_.end() ? nullptr : &found->second;
}

void RendezvousMachine::recount() {
  round_.tally = {};
  for (const auto& [id, node] : nodes_) round_.count(node, +1);
}

Node& RendezvousMachine::insert(const NodeInfo& info, NodePhase phase) {
  Node& node = nodes_[info.id];
  node.info = info;
  node.phase = phase;
  node.is_excluded = !why_excluded(info).empty();
  node.arrival = ++arrivals_;
  round_.count(node, +1);
  if (settings_.static_ranks) static_rank_owners_[info.static_rank] = info.id;
  liveness_.record_activity(info.id, now_);
  return node;
}

void RendezvousMachine::admit(const NodeInfo& info) {
  if (nodes_.size() >= static_cast<std::size_t>(settings_.max_nodes + kSparesMax)) {
    return refuse(info, Status(StatusCode::kResourceExhausted,
                               "join: the job has " + std::to_string(nodes_.size()) +
                                   " nodes, including spares, which is the limit"));
  }
  if (Status fault = check_static_rank(info); !fault.ok()) return refuse(info, std::move(fault));
  if (is_closed()) {  // the loss of its predecessor closed the job
    emit(rdzv::Closed{info.id, result_});
    return;
  }
  if (const std::string why = why_excluded(info);
      !why.empty() && round_.tally.eligible >= settings_.min_nodes) {
    return refuse_excluded(info, why);
  }
  // A node that knows a round was in one that this machine did not form: this is not the first.
  if (round_.may_adopt() && info.highest_round > 0) round_.is_first = false;
  Node& node = insert(info, NodePhase::kJoined);
  node.is_newcomer = info.highest_round == 0;
  if (round_.is_running) {
    round_.last_waiting_at = stored(now_);
    if (round_.tally.joined == 1) round_.first_waiting_at = round_.last_waiting_at;
  } else {
    if (round_.is_first) set_deadline(node, join_deadline(info.id));
    if (!round_.is_armed(Timer::kResend)) arm_after(Timer::kResend, kWaitingMessageInterval);
  }
  advance();
  if (!is_closed() && node.phase == NodePhase::kJoined) send_waiting(node);
}

std::string RendezvousMachine::why_excluded(const NodeInfo& info) const {
  return host_gate_ == nullptr ? "" : host_gate_->why_excluded(host_of(info));
}

void RendezvousMachine::refuse_excluded(const NodeInfo& info, const std::string& why) const {
  Status fault(StatusCode::kFailedPrecondition, "the job does without host " + host_of(info) +
                                                    " for a while: " + why +
                                                    "; elastic-launch readmit lets it in");
  emit(rdzv::Refused{info.id, std::move(fault), true});
}

void RendezvousMachine::mark_excluded() {
  for (auto& [id, node] : nodes_) {
    const bool is_excluded = !why_excluded(node.info).empty();
    if (node.is_excluded == is_excluded) continue;
    change(node, [&](Node& one) { one.is_excluded = is_excluded; });
  }
}

// When all nodes that may be of the next round are here. A node that has joined is of no round: its
// refusal ends nothing.
void RendezvousMachine::dismiss_excluded() {
  const Tally& tally = round_.tally;
  if (tally.joined == tally.joined_eligible) return;
  const bool are_all_here = round_.is_running || (tally.stopped == 0 && tally.joined_suspect == 0);
  const int others = round_.is_running ? tally.eligible : tally.joined_eligible;
  if (!are_all_here || others < settings_.min_nodes) return;
  std::vector<NodeInfo> dismissed;
  for (const auto& [id, node] : nodes_) {
    if (node.phase == NodePhase::kJoined && node.is_excluded) dismissed.push_back(node.info);
  }
  for (const NodeInfo& info : dismissed) {
    const std::string why = why_excluded(info);
    refuse_excluded(info, why);
    depart(info.id, false, "its host is excluded: " + why, true);
  }
}

// A node that was lost while it waited, and joins again, continues that wait: else a node that is
// slow compared to node_timeout would wait for ever.
StoredInstant RendezvousMachine::join_deadline(const NodeId& id) {
  const FormerNode* const known = former_nodes_.find(id);
  if (known != nullptr && known->join_deadline.is_set()) return known->join_deadline;
  return stored(add_saturating(now_, join_limit()));
}

void RendezvousMachine::enqueue(Node& node, const NodeInfo& info) {
  const NodeId id = info.id;
  const bool was_working = node.phase == NodePhase::kWorking;
  change(node, [&](Node& one) {
    replace_info(one, info);
    if (one.phase != NodePhase::kJoined) {
      one.phase = NodePhase::kJoined;
      one.deadline = {};
    }
  });
  if (was_working && round_.is_running) {
    end_round({.reason = info.name + " asked for a new round"});
  }
  if (!round_.is_armed(Timer::kResend)) arm_after(Timer::kResend, kWaitingMessageInterval);
  advance();
  const Node* const queued = find(id);  // it may have been refused
  if (!is_closed() && queued != nullptr && queued->phase == NodePhase::kJoined) {
    send_waiting(*queued);
  }
}

// A done node that joins again has received Restart: it was working when the round ended. It may
// not be needed in the next round; if it is, it waits already, and ignores a second Restart.
void RendezvousMachine::note_answer(const NodeInfo& info) {
  Node* const node = find(info.id);
  const bool has_ended = phase() == RendezvousPhase::kForming && round_.record.round > 0;
  if (node == nullptr || node->phase != NodePhase::kDone || !has_ended) return;
  if (info.highest_round < round_.record.round) return;
  change(*node, [&](Node& one) {
    replace_info(one, info);
    one.answered_round = round_.record.round;
  });
}

void RendezvousMachine::stop(Node& node) {
  if (node.phase != NodePhase::kWorking) return;
  change(node, [](Node& one) { one.phase = NodePhase::kStopped; });
  if (round_.is_running) {
    end_round({.reason = "the workers of " + node.info.name + " have ended"});
  }
  announce_round_over();
}

void RendezvousMachine::finish(Node& node) {
  change(node, [&](Node& one) {
    one.phase = NodePhase::kDone;
    one.done_round = round_.record.round;
    one.deadline = {};
  });
  if (round_.is_running && round_.has_succeeded()) close_with_success();
}

void RendezvousMachine::record_activity(Node& node) {
  liveness_.record_activity(node.info.id, now_);
  if (node.is_awaited) return_awaited(node);
  if (node.suspect) change(node, [](Node& one) { one.suspect = false; });
}

void RendezvousMachine::return_awaited(Node& node) {
  change(node, [](Node& one) { one.is_awaited = false; });
  if (node.rank >= 0) hold_growth_for_reports();
  if (!node.deadline.is_set()) return;
  // The time in which it could not report does not count.
  if (node.phase == NodePhase::kJoined) {
    deadline_check_ = std::min(deadline_check_, node.deadline.at);
  } else {
    set_deadline(node, add_saturating(add_saturating(now_, grace_of(node)), kStopMargin));
  }
}

void RendezvousMachine::suspect(Node& node, Duration least_grace) {
  liveness_.session_closed(node.info.id, now_, least_grace);
  if (!node.suspect) change(node, [](Node& one) { one.suspect = true; });
}

Node RendezvousMachine::take_out(Nodes::iterator found) {
  Node node = std::move(found->second);
  const NodeId id = found->first;
  round_.count(node, -1);
  nodes_.erase(found);
  const auto holder = static_rank_owners_.find(node.info.static_rank);
  if (holder != static_rank_owners_.end() && holder->second == id)
    static_rank_owners_.erase(holder);
  liveness_.forget(id);
  return node;
}

void RendezvousMachine::depart(NodeId id, bool lost, const std::string& reason, bool is_planned,
                               int exit_code) {
  const auto found = nodes_.find(id);
  if (found == nodes_.end()) return;
  const Node node = take_out(found);
  const auto former_max = std::max(kFormerNodesMin, static_cast<std::size_t>(settings_.max_nodes));
  FormerNode former{.id = id,
                    .name = node.info.name,
                    .reason = reason,
                    .lost = lost,
                    .round = node.rank >= 0 ? round_.record.round : 0,
                    .done_round = node.done_round};
  if (lost && node.phase == NodePhase::kJoined) former.join_deadline = node.deadline;
  if (lost) emit(rdzv::Evicted{id, former.round, reason});
  former_nodes_.add(std::move(former), former_max);
  if (node.rank >= 0) {
    round_.member(node.rank).fate = lost ? MemberFate::kLost : MemberFate::kLeft;
  }
  if (is_closed()) {
    announce_round_over();
    return;
  }
  // With min_nodes the last call ended the wait: without this node the others may be overdue.
  const bool ends_last_call =
      node.phase == NodePhase::kJoined && round_.tally.joined == settings_.min_nodes - 1;
  if (round_.is_first && ends_last_call) deadline_check_ = now_;
  if (node.rank < 0) return;
  // One that was called back is needed again, as every other member.
  if (node.phase == NodePhase::kDone && node.done_round == round_.record.round) {
    ++round_.finishers_departed;
    return;
  }
  member_departed(node.info.name, host_of(node.info), lost, reason, is_planned, exit_code);
}

void RendezvousMachine::member_departed(const std::string& name, const std::string& host, bool lost,
                                        const std::string& reason, bool is_planned, int exit_code) {
  const std::string what = name + (lost ? " was lost (" : " left (") + reason + ")";
  const auto cause = lost ? rdzv::RestartCause::kMemberLost : rdzv::RestartCause::kMemberLeft;
  // The code of a launcher that a signal has stopped is 128 and the signal.
  const bool is_excluded = host_gate_ != nullptr && !host_gate_->why_excluded(host).empty();
  const bool is_preempted = !is_excluded && (is_planned || exit_code > 128);
  const auto departed_as = lost           ? StopCause::kNodeLost
                           : is_preempted ? StopCause::kPreempted
                                          : StopCause::kNodeLeft;
  if (round_.is_running) {
    end_round({.cause = cause, .reason = what, .departed = name, .departed_as = departed_as},
              is_planned);
  } else {
    if (settings_.shrink_delay > Duration::zero() && !round_.is_armed(Timer::kShrink)) {
      arm_after(Timer::kShrink, settings_.shrink_delay);
    }
    if (!round_.end.verdict_pending && round_.end.cause != rdzv::RestartCause::kWorkerFailed) {
      round_.end.cause = cause;
      round_.end.reason = what;
      round_.end.departed = name;
      round_.end.departed_as = departed_as;
    }
  }
  const bool survives = available_nodes() >= settings_.min_nodes;
  if (available_nodes() == settings_.min_nodes - 1) {
    // To the other nodes it is lost: they are not on the bad host.
    round_.end.exit_code = exit_code == kExitBadHost ? 0 : exit_code;
  }
  if (round_.end.verdict_pending) {
    explain_failures(is_planned);
    round_.end.departed = name;
    round_.end.departed_as = departed_as;
    if (survives) {
      round_.end.cause = cause;
      round_.end.reason = what;
    }
  }
  const FailureKind kind = lost                        ? FailureKind::kNodeLost
                           : exit_code == kExitBadHost ? FailureKind::kCheck
                                                       : FailureKind::kNodeLeft;
  judge_loss(kind, name, host, what, survives);
}

std::string RendezvousMachine::name_of(const NodeId& id) const {
  if (const Node* const node = find(id)) return node->info.name;
  const FormerNode* const known = former_nodes_.find(id);
  return known == nullptr ? "" : known->name;
}

void RendezvousMachine::send_evicted(const NodeId& id) const {
  const FormerNode* known = former_nodes_.find(id);
  if (known == nullptr) {
    emit(rdzv::Evicted{id, 0,
                       "it is not known here: it was declared lost long ago, or never joined"});
  } else {
    emit(rdzv::Evicted{id, known->round, known->reason});
  }
}

int RendezvousMachine::available_nodes() const {
  return static_cast<int>(nodes_.size()) + round_.missing;
}

std::vector<NodeId> RendezvousMachine::lost_nodes() const {
  std::vector<NodeId> lost;
  for (const FormerNode& one : former_nodes_.all()) {
    if (one.lost && one.round > 0 && !has_node(one.id)) lost.push_back(one.id);
  }
  return lost;
}

bool RendezvousMachine::is_removable() const {
  if (!nodes_.empty()) return false;
  return is_closed() || (round_.record.round == 0 && round_.is_first);
}

}  // namespace core
}  // namespace elastic
