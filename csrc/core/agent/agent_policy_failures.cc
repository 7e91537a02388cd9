// The failures of this node's workers: what is known about each, which one is the cause, and what
// the rendezvous hears of it. agent_policy.cc has the theory of operation.

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/agent/agent_policy.h"
#include "core/base/check.h"
#include "core/base/text.h"

namespace elastic::core {
namespace {

// No restart follows: the same worker would fail in the same way in every round, or a hang ends the
// job.
bool repeats(const WorkerExit& exit) {
  if (exit.ends_job) return true;
  if (exit.kind != ExitKind::kNotStarted) return false;
  return exit.error == ENOENT || exit.error == EACCES || exit.error == ENOEXEC;
}

}  // namespace

void AgentPolicy::note_failure(const WorkerExited& event, Context* context) {
  count_exit(event, context);
  insert_failure(failure_of(event));
}

// What is known about the worker's failure with its exit; not in the list.
WorkerFailure AgentPolicy::failure_of(const WorkerExited& event) {
  WorkerFailure failure = take_failure(event.local_rank, event.pid);
  failure.failed_at = std::min(failure.failed_at, event.exit.at);
  update_failure(&failure, event.exit, event.facts);
  return failure;
}

void AgentPolicy::add_failure(const WorkerExited& event, Context* context) {
  const int before = cause_rank();
  note_failure(event, context);
  send_cause_after(event.local_rank, before, context);
  if (context->from == AgentState::kHealthy) await_order(context);
}

// The failure of a worker that ended while it waited for a round.
WorkerFailure AgentPolicy::kept_failure_of(const WorkerExited& event) {
  WorkerFailure failure = failure_of(event);
  if (failure.exit_code == 0) failure.exit_code = 1;
  failure.message += " while it waited for the round";
  return failure;
}

void AgentPolicy::fail_kept(const WorkerExited& event, Context* context) {
  if (state_ == AgentState::kFailed) return count_exit(event, context);  // it leaves already
  if (is_failure(event.exit) && means_bad_node(event.exit)) {
    state_ = AgentState::kFailed;
    return leave_bad_node(event, context);
  }
  state_ = AgentState::kUnhealthy;
  count_exit(event, context);
  WorkerFailure failure = kept_failure_of(event);
  const int before = cause_rank();
  insert_failure(std::move(failure));
  send_cause_after(event.local_rank, before, context);
  await_order(context);
}

void AgentPolicy::await_order(Context* context) {
  end_reason_ = describe_failure(cause());
  deadline_ = add_saturating(context->now, kOrderTimeout);
}

// The job continues without this node: the rendezvous receives a leave, not a failure.
void AgentPolicy::leave_bad_node(const WorkerExited& event, Context* context) {
  note_failure(event, context);
  const auto failed =
      std::find_if(failures_.begin(), failures_.end(),
                   [&](const WorkerFailure& one) { return one.local_rank == event.local_rank; });
  result_.exit_code = failed->exit_code;
  result_.message = describe_failure(*failed) + "; that code means a bad node (--bad-node-codes)";
  deadline_.reset();
  update(LeaveRequested{result_.message}, context);
  context->report(AgentEvent::Kind::kNotice, state_,
                  result_.message + ": this node leaves the job");
  stop_group(failure_grace(), "leaving the job; stopping the other workers", context);
}

void AgentPolicy::add_evidence(const FailureFound& event, Context* context) {
  for (WorkerExited& exited : kept_exits_) {  // reported in the next round
    if (exited.local_rank == event.local_rank) exited.facts = event.facts;
  }
  if (!participant_.has_workers()) return;
  const int before = cause_rank();
  WorkerFailure failure = take_failure(event.local_rank, event.pid);
  update_failure(&failure, event.exit, event.facts);
  insert_failure(std::move(failure));
  send_cause_after(event.local_rank, before, context);
}

// The known failure of this worker, which is taken out of the list, or a new one.
WorkerFailure AgentPolicy::take_failure(int local_rank, int pid) {
  WorkerFailure failure;
  failure.local_rank = local_rank;
  failure.rank = round_->workers[static_cast<std::size_t>(local_rank)].rank;
  failure.pid = pid;
  failure.failed_at = Instant::max();
  const auto known =
      std::find_if(failures_.begin(), failures_.end(),
                   [local_rank](const WorkerFailure& one) { return one.local_rank == local_rank; });
  if (known != failures_.end()) {
    failure = std::move(*known);
    failures_.erase(known);
  }
  return failure;
}

void AgentPolicy::update_failure(WorkerFailure* failure, const WorkerExit& exit,
                                 const FailureFacts& facts) {
  if (exit.kind != ExitKind::kUnknown || failure->exit.kind == ExitKind::kUnknown) {
    failure->exit = exit;
  }
  if (exit.kind != ExitKind::kUnknown) failure->failed_at = std::min(failure->failed_at, exit.at);
  failure->failed_at = std::min(failure->failed_at, facts.reported_at.value_or(Instant::max()));
  failure->evidence = facts.evidence;
  if (!facts.output.empty()) failure->stderr_tail = facts.output;
  if (!facts.fingerprint.empty()) failure->fingerprint = facts.fingerprint;
  // An exit that our signal caused does not tell how the worker failed.
  const bool is_own_exit =
      exit.kind != ExitKind::kUnknown && !(exit.stopped_by_us && exit.kind == ExitKind::kSignaled);
  failure->exit_code = is_own_exit ? exit_code_of(exit) : 1;
  failure->message = is_own_exit ? exit.describe()
                     : facts.evidence.error.empty()
                         ? "reported an error and was stopped before it ended"
                         : "raised " + facts.evidence.error + ", and was stopped before it ended";
  failure->message += repetition_of(*failure);
}

// By time; but that a peer was lost follows the failure of the peer, whose exit may be known later:
// a process that is killed closes its connections before its memory is freed.
void AgentPolicy::insert_failure(WorkerFailure failure) {
  const auto place_of = [](const WorkerFailure& one) {
    return std::pair(is_lost_peer(one.evidence.error), one.failed_at);
  };
  const auto later = std::upper_bound(
      failures_.begin(), failures_.end(), failure,
      [&](const WorkerFailure& a, const WorkerFailure& b) { return place_of(a) < place_of(b); });
  failures_.insert(later, std::move(failure));
}

int AgentPolicy::cause_rank() const { return failures_.empty() ? -1 : cause().local_rank; }

// More is known about one failure: its cause, or that a different failure is the cause.
void AgentPolicy::send_cause_after(int changed, int before, Context* context) {
  const int now = cause_rank();
  if (now == changed || now != before) send_cause(context);
}

void AgentPolicy::send_cause(Context* context) {
  const bool is_awaited = participant_.state() == ParticipantState::kWorking;
  if (state_ == AgentState::kUnhealthy && is_awaited) send_failure(cause(), context);
}

// "; the same failure in 3 rounds in a row, …", or "".
std::string AgentPolicy::repetition_of(const WorkerFailure& failure) const {
  const bool is_same = same_failures_ > 0 && !failure.fingerprint.empty() &&
                       failure.fingerprint == last_fingerprint_;
  if (!is_same) return "";
  return "; the same failure in " + std::to_string(same_failures_ + 1) +
         " rounds in a row, each within " +
         duration_text(std::max(longest_round_, failure.failed_at - round_began_)) +
         " of its start";
}

void AgentPolicy::end_streak() {
  if (failures_.empty() || cause().fingerprint.empty()) {
    same_failures_ = 0;
    return;
  }
  const WorkerFailure& failure = cause();
  if (failure.fingerprint != last_fingerprint_) {
    last_fingerprint_ = failure.fingerprint;
    same_failures_ = 0;
    longest_round_ = {};
  }
  ++same_failures_;
  longest_round_ = std::max(longest_round_, failure.failed_at - round_began_);
}

// Neither success nor a stop.
bool AgentPolicy::is_failure(const WorkerExit& exit) {
  return !exit.succeeded() && !exit.stopped_by_us && !has_stopped_at_step(exit);
}

// The code of a worker that was killed by a verdict is the launcher's.
bool AgentPolicy::means_bad_node(const WorkerExit& exit) const {
  if (!exit.verdict.empty()) return false;
  return std::find(bad_node_codes_.begin(), bad_node_codes_.end(), exit_code_of(exit)) !=
         bad_node_codes_.end();
}

// Why no restart follows; null: one may.
const char* AgentPolicy::why_final(const WorkerFailure& failure) const {
  if (failure.exit.ends_job) return "; a hang ends the job (--hang-action)";
  if (repeats(failure.exit)) return "; a restart would not help";
  if (!failure.exit.verdict.empty()) return nullptr;
  const auto found =
      std::find(no_restart_codes_.begin(), no_restart_codes_.end(), failure.exit_code);
  return found == no_restart_codes_.end() ? nullptr
                                          : "; that code ends the job (--no-restart-codes)";
}

void AgentPolicy::send_failure(const WorkerFailure& failure, Context* context) {
  const std::string& how = failure.message;
  const char* final = why_final(failure);
  if (final == nullptr) {
    context->act(Send{rdzv::Failed{self().id,
                                   round_->round,
                                   {.local_rank = failure.local_rank,
                                    .rank = failure.rank,
                                    .exit_code = failure.exit_code,
                                    .message = how,
                                    .at = failure.failed_at,
                                    .evidence = failure.evidence}}});
    return;
  }
  JobResult result;
  result.outcome = JobOutcome::kFailed;
  result.cause = JobCause::kWorker;
  result.exit_code = failure.exit_code;
  result.rank = failure.rank;
  result.node = self().name;
  result.evidence = failure.evidence;
  result.message =
      "rank " + std::to_string(failure.rank) + " on " + self().name + " " + how + final;
  context->act(Send{rdzv::Close{self().id, std::move(result)}});
}

// A failure that would occur in every round takes precedence over one that may be transient;
// otherwise the first failure is the cause.
const WorkerFailure& AgentPolicy::cause() const {
  ELASTIC_CHECK(!failures_.empty());
  for (const WorkerFailure& failure : failures_) {
    if (why_final(failure) != nullptr) return failure;
  }
  return failures_.front();
}

std::string AgentPolicy::describe_failure(const WorkerFailure& failure) const {
  std::string who =
      "rank " + std::to_string(failure.rank) + " (local rank " + std::to_string(failure.local_rank);
  if (failure.pid > 0) who += ", pid " + std::to_string(failure.pid);
  return who + ") " + failure.message;
}

}  // namespace elastic::core
