#include "core/workers/worker_group.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "core/base/transitions.h"

// Theory of operation. All workers of a generation start together, and the generation ends as a
// whole: when the last worker has ended, or when the grace period of a stop is over, every process
// below the guardian is killed ("sweep"). The generation has ended when the guardian has reaped the
// last process. Only then can a new generation begin, so two generations never overlap.
//
//   kIdle -Start-> kRunning -Stop-> kStopping -deadline, last end-> kSweeping -Swept-> kIdle
//                      |\---------------- last end -------------------/
//                      \-last end-> kLeftovers -none is left, deadline, Stop-> kSweeping
//
// If all workers have succeeded, processes that they left running may have a grace period of their
// own to end by themselves (kLeftovers): they would be killed by the sweep.
//
// A start has a deadline: a worker that has not executed its program by then is blocked in the
// kernel, usually on an unresponsive mount. Its start is cancelled and fails like any other.
//
// A failed worker does not stop the others here: the caller decides that. A process that survives
// the sweep for kKillTimeout (in an uninterruptible wait, or of another user) is reported once
// (kStuck), and the machine keeps waiting.
//
// Whether a worker ended before or after a stop reached it is decided by the guardian, which
// processes requests and exits one by one; WorkerExit contains the answer.
//
// The table defines the reaction to each event in each state. It is total: an invalid event of the
// guardian (the exit of an unknown worker) closes the link, and a late call has no effect.
//
// The template process imports its modules, checks itself, and is then ready until it
// ends. It reports before it exits that it is unfit (final) or stale (a module was changed, so a
// new process is started). A process that is killed while it is ready is replaced. One that dies
// during an import would probably die again, so it is not replaced.

namespace elastic {

using enum GroupReaction;

namespace {

// The host is short of processes or memory, which may be temporary.
bool is_temporary(const WorkerExit& exit) {
  return exit.kind == ExitKind::kNotStarted &&
         exit.stage == guardian::to_string(guardian::Stage::kFork) &&
         (exit.error == EAGAIN || exit.error == ENOMEM);
}

}  // namespace

static_assert(kGroupStateCount == static_cast<std::size_t>(GroupState::kLost) + 1);
static_assert(kGroupEventCount == static_cast<std::size_t>(GroupInput::kGuardianLost) + 1);

namespace {

using S = GroupState;
using I = GroupInput;

constexpr core::EnumSet<S> kBusy = {S::kRunning,  S::kStopping, S::kLeftovers,
                                    S::kSweeping, S::kStuck,    S::kLost};
constexpr core::EnumSet<S> kUnswept = {S::kRunning, S::kStopping, S::kLeftovers};
constexpr core::EnumSet<S> kSwept = {S::kSweeping, S::kStuck};
constexpr core::EnumSet<S> kUnlost = {S::kIdle,      S::kRunning,  S::kStopping,
                                      S::kLeftovers, S::kSweeping, S::kStuck};

// A pair without a row: kIgnore.
constexpr core::Transition<S, I, GroupReaction> kRows[] = {
    {.in = {S::kIdle}, .on = {I::kStart}, .run = kBegin},
    {.in = kBusy, .on = {I::kStart}, .run = kRefuse},

    {.in = {S::kRunning}, .on = {I::kStop}, .run = kSignalAll},
    {.in = {S::kStopping}, .on = {I::kStop}, .run = kShorten},
    {.in = {S::kLeftovers}, .on = {I::kStop, I::kLeftoversGone}, .run = kSweep},
    {.in = kUnswept, .on = {I::kForward}, .run = kForward},

    {.in = {S::kRunning, S::kStopping}, .on = {I::kStarted}, .run = kRunning},
    {.in = {S::kRunning, S::kStopping}, .on = {I::kEnded}, .run = kEnded},
    {.in = kSwept, .on = {I::kStarted}, .run = kRunning},
    {.in = kSwept, .on = {I::kEnded}, .run = kEnded},
    {.in = kSwept, .on = {I::kKillSent}, .run = kNoteKill},
    {.in = kSwept, .on = {I::kSwept}, .run = kGone},
    {.in = {S::kIdle, S::kLeftovers}, .on = {I::kStarted, I::kEnded}, .run = kProtocolError},
    {.in = {S::kIdle, S::kRunning, S::kStopping}, .on = {I::kLeftoversGone}, .run = kProtocolError},
    {.in = {S::kIdle, S::kRunning, S::kStopping, S::kLeftovers},
     .on = {I::kKillSent, I::kSwept},
     .run = kProtocolError},

    {.in = kUnswept, .on = {I::kTick}, .run = kExpire},
    {.in = {S::kSweeping}, .on = {I::kTick}, .run = kExpire},
    {.in = kUnlost, .on = {I::kGuardianLost}, .run = kGuardianLost},
};

}  // namespace

constexpr GroupTable kGroupTable =
    core::make_responses<kGroupStateCount, kGroupEventCount>(kRows, kIgnore);

bool WorkerGroupMachine::step(const GroupEvent& event, Instant now, std::vector<GroupAction>* out) {
  switch (kGroupTable[static_cast<std::size_t>(state_)][event.index()]) {
    case kIgnore: return true;
    case kRefuse: return false;
    case kBegin: begin(std::get<group_event::Start>(event), now, out); return true;
    case kSignalAll: stop(std::get<group_event::Stop>(event), now, out); return true;
    case kShorten: shorten(std::get<group_event::Stop>(event), now, out); return true;
    case kForward: {
      const auto& forward = std::get<group_event::Forward>(event);
      guardian::SignalRequest request{.signal = forward.signal, .scope = forward.scope};
      if (forward.local_rank) request.id = static_cast<std::uint32_t>(*forward.local_rank);
      out->emplace_back(group_action::Signal{request});
      return true;
    }
    case kRunning: worker_started(std::get<group_event::Started>(event), out); return true;
    case kEnded: worker_ended(std::get<group_event::Ended>(event), now, out); return true;
    case kSweep: sweep(now, out); return true;
    case kNoteKill: {
      const auto& sent = std::get<group_event::KillSent>(event);
      kill_sent_ = true;
      refused_pid_ = sent.refused_pid;
      found_all_ = sent.found_all;
      return true;
    }
    case kGone: gone(now, out); return true;
    case kExpire: expire(now, out); return true;
    case kGuardianLost:
      guardian_lost(std::get<group_event::GuardianLost>(event), now, out);
      return true;
    case kProtocolError: out->emplace_back(group_action::CloseLink{}); return true;
  }
  return true;
}

void WorkerGroupMachine::begin(const group_event::Start& event, Instant now,
                               std::vector<GroupAction>* out) {
  ++generation_;
  workers_.assign(static_cast<std::size_t>(event.workers), Worker{});
  starting_ = workers_.size();
  ended_ = 0;
  state_ = GroupState::kRunning;
  retry_pause_ = kRetryPauseFirst;
  may_retry_ = true;
  delay_told_ = false;
  kill_sent_ = false;
  refused_pid_ = 0;
  found_all_ = true;
  leftover_grace_ = event.leftover_grace;
  has_succeeded_ = true;
  if (event.timeout != Duration::max()) deadline_ = add_saturating(now, event.timeout);
  out->emplace_back(group_action::StartAll{});
}

void WorkerGroupMachine::stop(const group_event::Stop& event, Instant now,
                              std::vector<GroupAction>* out) {
  end_delayed(true, now, out);
  const bool is_over = ended_ == workers_.size();
  if (is_over || event.signal == SIGKILL || event.grace <= Duration::zero()) return sweep(now, out);
  const auto signal_all = [&](int number) {
    out->emplace_back(group_action::Signal{
        {.signal = number, .scope = event.scope, .is_stop = true, .id = guardian::kEveryWorker}});
  };
  signal_all(event.signal);
  signal_all(SIGCONT);  // a stopped process handles the signal when it is continued
  state_ = GroupState::kStopping;
  deadline_ = add_saturating(now, event.grace);
}

// The signal itself is not sent again: a Python handler that is running would be entered twice.
void WorkerGroupMachine::shorten(const group_event::Stop& event, Instant now,
                                 std::vector<GroupAction>* out) {
  if (event.signal == SIGKILL || event.grace <= Duration::zero()) return sweep(now, out);
  deadline_ = std::min(*deadline_, add_saturating(now, event.grace));
}

void WorkerGroupMachine::worker_started(const group_event::Started& event,
                                        std::vector<GroupAction>* out) {
  if (!in_phase(event.local_rank, Phase::kStarting)) {
    out->emplace_back(group_action::CloseLink{});
    return;
  }
  Worker& worker = workers_[static_cast<std::size_t>(event.local_rank)];
  worker.phase = Phase::kRunning;
  worker.pid = event.pid;
  leave_starting();
  WorkerEvent emitted = make_event(WorkerEvent::Kind::kStarted, event.at);
  emitted.local_rank = event.local_rank;
  emitted.pid = event.pid;
  out->emplace_back(group_action::Emit{std::move(emitted)});
}

void WorkerGroupMachine::worker_ended(const group_event::Ended& event, Instant now,
                                      std::vector<GroupAction>* out) {
  const bool began = event.exit.kind != ExitKind::kNotStarted;
  const int local_rank = static_cast<int>(event.id);
  if (!in_phase(local_rank, began ? Phase::kRunning : Phase::kStarting)) {
    out->emplace_back(group_action::CloseLink{});
    return;
  }
  if (state_ == GroupState::kRunning && is_temporary(event.exit) && may_retry_) {
    return delay(event, now, out);
  }
  if (!began) leave_starting();
  end_worker(local_rank, event.exit, event.exit.at, out);
  const bool sweeps = state_ == GroupState::kSweeping || state_ == GroupState::kStuck;
  if (ended_ == workers_.size() && !sweeps) last_ended(now, out);
}

void WorkerGroupMachine::last_ended(Instant now, std::vector<GroupAction>* out) {
  const bool may_wait = state_ == GroupState::kRunning && has_succeeded_;
  if (!may_wait || leftover_grace_ <= Duration::zero()) return sweep(now, out);
  state_ = GroupState::kLeftovers;
  deadline_ = add_saturating(now, leftover_grace_);
  out->emplace_back(group_action::AwaitLeftovers{});
}

void WorkerGroupMachine::end_worker(int local_rank, const WorkerExit& exit, Instant at,
                                    std::vector<GroupAction>* out) {
  Worker& worker = workers_[static_cast<std::size_t>(local_rank)];
  worker.phase = Phase::kEnded;
  ++ended_;
  has_succeeded_ = has_succeeded_ && exit.succeeded() && !exit.stopped_by_us;
  WorkerEvent emitted = make_event(WorkerEvent::Kind::kExited, at);
  emitted.local_rank = local_rank;
  emitted.pid = worker.pid;
  emitted.exit = exit;
  out->emplace_back(group_action::Emit{std::move(emitted)});
}

// Without this, a short lack of processes on one host would cost the job a restart.
void WorkerGroupMachine::delay(const group_event::Ended& event, Instant now,
                               std::vector<GroupAction>* out) {
  Worker& worker = workers_[event.id];
  worker.phase = Phase::kDelayed;
  worker.refusal = event.exit;
  if (!retry_at_) retry_at_ = now + retry_pause_;
  if (std::exchange(delay_told_, true)) return;
  WorkerEvent emitted = make_event(WorkerEvent::Kind::kStartDelayed, event.exit.at);
  emitted.local_rank = static_cast<int>(event.id);
  emitted.exit = event.exit;
  emitted.message = "worker " + std::to_string(event.id) + " " + event.exit.describe() +
                    "; trying again until the start timeout";
  out->emplace_back(group_action::Emit{std::move(emitted)});
}

void WorkerGroupMachine::retry(Instant now, std::vector<GroupAction>* out) {
  if (!retry_at_ || now < *retry_at_) return;
  retry_at_.reset();
  retry_pause_ = std::min(2 * retry_pause_, kRetryPauseMax);
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].phase != Phase::kDelayed) continue;
    workers_[i].phase = Phase::kStarting;
    out->emplace_back(group_action::StartAgain{static_cast<int>(i)});
  }
}

void WorkerGroupMachine::end_delayed(bool stopped_by_us, Instant now,
                                     std::vector<GroupAction>* out) {
  retry_at_.reset();
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].phase != Phase::kDelayed) continue;
    leave_starting();
    workers_[i].refusal.stopped_by_us = stopped_by_us;
    end_worker(static_cast<int>(i), workers_[i].refusal, now, out);
  }
}

std::optional<Instant> WorkerGroupMachine::next_deadline() const {
  if (!retry_at_ || !deadline_) return retry_at_ ? retry_at_ : deadline_;
  return std::min(*retry_at_, *deadline_);
}

void WorkerGroupMachine::sweep(Instant now, std::vector<GroupAction>* out) {
  state_ = GroupState::kSweeping;
  deadline_ = add_saturating(now, kKillTimeout);
  out->emplace_back(group_action::Sweep{has_succeeded_ && ended_ == workers_.size()});
}

void WorkerGroupMachine::gone(Instant now, std::vector<GroupAction>* out) {
  if (ended_ != workers_.size()) {
    out->emplace_back(group_action::CloseLink{});
    return;
  }
  out->emplace_back(group_action::Emit{make_event(WorkerEvent::Kind::kGroupEnded, now)});
  state_ = GroupState::kIdle;
  deadline_.reset();
}

// Running workers have no deadline.
void WorkerGroupMachine::leave_starting() {
  --starting_;
  if (starting_ == 0 && state_ == GroupState::kRunning) deadline_.reset();
}

void WorkerGroupMachine::expire(Instant now, std::vector<GroupAction>* out) {
  if (state_ == GroupState::kRunning) retry(now, out);
  if (!deadline_ || now < *deadline_) return;
  if (state_ == GroupState::kStopping || state_ == GroupState::kLeftovers) return sweep(now, out);
  if (state_ == GroupState::kRunning) {
    const bool some_hang = std::any_of(workers_.begin(), workers_.end(), [](const Worker& one) {
      return one.phase == Phase::kStarting;
    });
    end_delayed(false, now, out);
    if (some_hang) out->emplace_back(group_action::CancelStarts{});
    deadline_.reset();
    may_retry_ = false;
    if (ended_ == workers_.size()) sweep(now, out);
    return;
  }
  out->emplace_back(group_action::Emit{make_stuck_event(now)});
  state_ = GroupState::kStuck;
  deadline_.reset();
}

void WorkerGroupMachine::guardian_lost(const group_event::GuardianLost& event, Instant now,
                                       std::vector<GroupAction>* out) {
  WorkerEvent emitted = make_event(WorkerEvent::Kind::kGuardianLost, now);
  emitted.message = event.message;
  out->emplace_back(group_action::Emit{std::move(emitted)});
  state_ = GroupState::kLost;
  deadline_.reset();
  retry_at_.reset();
}

bool WorkerGroupMachine::in_phase(int local_rank, Phase phase) const {
  const auto index = static_cast<std::size_t>(local_rank);
  return local_rank >= 0 && index < workers_.size() && workers_[index].phase == phase;
}

WorkerEvent WorkerGroupMachine::make_event(WorkerEvent::Kind kind, Instant at) const {
  WorkerEvent event;
  event.kind = kind;
  event.generation = generation_;
  event.at = at;
  return event;
}

WorkerEvent WorkerGroupMachine::make_stuck_event(Instant now) const {
  WorkerEvent emitted = make_event(WorkerEvent::Kind::kStuck, now);
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].phase == Phase::kEnded) continue;
    if (emitted.local_rank < 0) {
      emitted.local_rank = static_cast<int>(i);
      emitted.pid = workers_[i].pid;
    }
    emitted.message += (emitted.message.empty() ? "worker " : ", worker ") + std::to_string(i);
    if (workers_[i].pid > 0) emitted.message += " with pid " + std::to_string(workers_[i].pid);
  }
  emitted.kill_sent = kill_sent_;
  if (emitted.message.empty() && kill_sent_ && !found_all_) {
    emitted.message =
        "processes that the workers left behind cannot be found and killed: /proc is not mounted";
    return emitted;
  }
  if (emitted.message.empty()) emitted.message = "a process that the workers left behind";
  emitted.message += kill_sent_
                         ? " still lives after SIGKILL"
                         : " has not ended: the guardian does not confirm that it sent SIGKILL";
  if (refused_pid_ > 0) {
    emitted.message += "; process " + std::to_string(refused_pid_) +
                       " belongs to another user, and SIGKILL to it was refused";
  }
  return emitted;
}

WarmTemplate::Start WarmTemplate::begin_generation(std::size_t workers, Duration wait_max,
                                                   Instant now) {
  is_reported_ = false;
  if (state_ == State::kReady) return {guardian::StartKind::kFork, wait_max, ""};
  if (state_ != State::kImporting) return {};
  const bool is_ahead = std::exchange(is_ahead_, true);
  if (workers == 1 && !is_ahead) return {};
  const Duration age = now - importing_since_;
  std::string notice;
  if (is_ahead) {
    notice = "the workers wait for the template process, which imports " +
             (imported_.empty() ? "modules" : imported_);
  }
  return {guardian::StartKind::kFork, workers == 1 ? std::min(wait_max, age) : wait_max,
          std::move(notice)};
}

WarmTemplate::Reaction WarmTemplate::on(const guardian::TemplateEvent& event) {
  const std::string text(event.text);
  switch (event.news) {
    case guardian::TemplateNews::kImporting: imported_ = text; return {};
    case guardian::TemplateNews::kReady: state_ = State::kReady; return {};
    case guardian::TemplateNews::kUnfit:
      state_ = State::kUnfit;
      is_reported_ = true;
      return {.starts = false, .notice = "--warm is off, workers start as usual: " + text};
    case guardian::TemplateNews::kStale:
      state_ = State::kStale;
      is_reported_ = true;
      return {.starts = false,
              .notice = text +
                        " was changed: workers are executed until a new template process "
                        "has imported it"};
    case guardian::TemplateNews::kExecuted:
      if (std::exchange(is_reported_, true)) return {};
      return {
          .starts = false,
          .notice = "local rank " + std::to_string(event.id) + " is executed, not forked: " + text};
    case guardian::TemplateNews::kLeftOut:
      if (!left_out_.insert(text).second) return {};  // of a template that was replaced
      return {.starts = false,
              .notice = "--warm: each worker imports a module of the script itself: " + text};
  }
  return {};
}

WarmTemplate::Reaction WarmTemplate::on_end(const WorkerExit& exit) {
  const State before = std::exchange(state_, State::kNone);
  if (before == State::kNone || before == State::kUnfit) return {};
  const std::string verb = exit.kind == ExitKind::kSignaled ? "was " : "";
  const std::string what = "the template process " + verb + exit.describe();
  const std::string module = std::exchange(imported_, "");
  if (before == State::kImporting) {
    is_reported_ = true;
    return {.starts = false,
            .notice = "--warm is off, workers start as usual: " + what +
                      (module.empty() ? "" : " while it imported " + module)};
  }
  if (before == State::kReady && ++renewals_ > kRenewalsMax) {
    return {.starts = false,
            .notice = "--warm is off now, workers start as usual: " + what + " for the " +
                      std::to_string(renewals_) + "th time"};
  }
  state_ = State::kImporting;
  importing_since_ = exit.at;
  is_ahead_ = false;
  if (before == State::kStale) return {.starts = true, .notice = {}};
  return {.starts = true, .notice = what + "; a new one is started"};
}

}  // namespace elastic
