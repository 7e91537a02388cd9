#include "core/workers/worker_group.h"

#include <algorithm>
#include <csignal>
#include <utility>

// Theory of operation. A generation is started at once and ends as one: when its last worker has
// ended, or when the grace of a stop is over, everything below the guardian is killed ("sweep"),
// and only when the guardian has reaped the last process is the generation gone. A new one can
// begin only then, so that two never live at a time.
//
//   kIdle -Start-> kRunning -Stop-> kStopping -deadline, last end-> kSweeping -Swept-> kIdle
//                      \----------------- last end -------------------/
//
// A start has a deadline of its own: what has not executed its program by then hangs in the kernel,
// on a dead mount as a rule, and is cancelled, which ends it like any start that failed.
//
// A worker that fails does not stop the others here: that is the policy of whoever listens. What a
// sweep does not end in kKillTimeout the kernel holds (a process in an uninterruptible wait, one of
// another user): that is said once (kStuck), and the wait goes on.
//
// The guardian processes requests and exits one by one, so it, and not this machine, knows whether
// a worker ended before or after a stop had reached it; the mark comes with the exit.
//
// The table says what each event means in each state. It is total: what the guardian cannot have
// meant (an exit of nobody) ends the relation, and a call that comes too late changes nothing.

namespace elastic {

using enum GroupReaction;

static_assert(kGroupStateCount == static_cast<std::size_t>(GroupState::kLost) + 1);
static_assert(kGroupEventCount == 8, "a new event needs a column in every row");

constexpr GroupTable kGroupTable = {{
    // Start    Stop        Forward  Started   Ended    Swept    Tick     GuardianLost
    {kBegin, kIgnore, kIgnore, kBroken, kBroken, kBroken, kIgnore, kLose},      // kIdle
    {kRefuse, kSignalAll, kPassOn, kRunning, kEnded, kBroken, kExpire, kLose},  // kRunning
    {kRefuse, kHasten, kPassOn, kRunning, kEnded, kBroken, kExpire, kLose},     // kStopping
    {kRefuse, kIgnore, kIgnore, kRunning, kEnded, kGone, kExpire, kLose},       // kSweeping
    {kRefuse, kIgnore, kIgnore, kRunning, kEnded, kGone, kIgnore, kLose},       // kStuck
    {kRefuse, kIgnore, kIgnore, kIgnore, kIgnore, kIgnore, kIgnore, kIgnore},   // kLost
}};
// A row that is missing would be filled with zeros, kIgnore, and the last column shows it.
static_assert(kGroupTable[kGroupStateCount - 2][kGroupEventCount - 1] == kLose);

const char* to_string(GroupState state) {
  constexpr std::array<const char*, kGroupStateCount> kNames = {"idle",     "running", "stopping",
                                                                "sweeping", "stuck",   "lost"};
  return kNames[static_cast<std::size_t>(state)];
}

const char* to_string(GroupReaction reaction) {
  constexpr std::array<const char*, static_cast<std::size_t>(kBroken) + 1> kNames = {
      "ignore",  "refuse", "begin", "signal all", "hasten", "pass on",
      "running", "ended",  "gone",  "expire",     "lose",   "broken"};
  return kNames[static_cast<std::size_t>(reaction)];
}

bool WorkerGroupMachine::step(const GroupEvent& event, Instant now, std::vector<GroupAction>* out) {
  switch (kGroupTable[static_cast<std::size_t>(state_)][event.index()]) {
    case kIgnore: return true;
    case kRefuse: return false;
    case kBegin: begin(std::get<group_event::Start>(event), now, out); return true;
    case kSignalAll: stop(std::get<group_event::Stop>(event), now, out); return true;
    case kHasten: hasten(std::get<group_event::Stop>(event), now, out); return true;
    case kPassOn: {
      const auto& forward = std::get<group_event::Forward>(event);
      out->push_back(group_action::Signal{{forward.signal, forward.scope, false}});
      return true;
    }
    case kRunning: worker_started(std::get<group_event::Started>(event), out); return true;
    case kEnded: worker_ended(std::get<group_event::Ended>(event), now, out); return true;
    case kGone: gone(now, out); return true;
    case kExpire: expire(now, out); return true;
    case kLose: lose(std::get<group_event::GuardianLost>(event), now, out); return true;
    case kBroken: out->push_back(group_action::Abandon{}); return true;
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
  if (event.timeout != Duration::max()) deadline_ = add_saturating(now, event.timeout);
  out->push_back(group_action::StartAll{});
}

void WorkerGroupMachine::stop(const group_event::Stop& event, Instant now,
                              std::vector<GroupAction>* out) {
  if (event.signal == SIGKILL || event.grace <= Duration::zero()) return sweep(now, out);
  out->push_back(group_action::Signal{{event.signal, event.scope, true}});
  // A stopped process does not handle the signal until it is continued; SIGCONT hurts nobody else.
  out->push_back(group_action::Signal{{SIGCONT, event.scope, true}});
  state_ = GroupState::kStopping;
  deadline_ = add_saturating(now, event.grace);
}

// The signal itself is not sent again: a Python handler that is running would be entered twice.
void WorkerGroupMachine::hasten(const group_event::Stop& event, Instant now,
                                std::vector<GroupAction>* out) {
  if (event.signal == SIGKILL || event.grace <= Duration::zero()) return sweep(now, out);
  deadline_ = std::min(*deadline_, add_saturating(now, event.grace));
}

void WorkerGroupMachine::worker_started(const group_event::Started& event,
                                        std::vector<GroupAction>* out) {
  if (!in_phase(event.local_rank, Phase::kStarting)) {
    out->push_back(group_action::Abandon{});
    return;
  }
  Worker& worker = workers_[static_cast<std::size_t>(event.local_rank)];
  worker = {Phase::kRunning, event.pid};
  leave_starting();
  WorkerEvent told = make_event(WorkerEvent::Kind::kStarted, event.at);
  told.local_rank = event.local_rank;
  told.pid = event.pid;
  out->push_back(group_action::Emit{std::move(told)});
}

void WorkerGroupMachine::worker_ended(const group_event::Ended& event, Instant now,
                                      std::vector<GroupAction>* out) {
  const bool began = event.exit.kind != ExitKind::kNotStarted;
  if (!in_phase(event.local_rank, began ? Phase::kRunning : Phase::kStarting)) {
    out->push_back(group_action::Abandon{});
    return;
  }
  Worker& worker = workers_[static_cast<std::size_t>(event.local_rank)];
  worker.phase = Phase::kEnded;
  ++ended_;
  if (!began) leave_starting();
  WorkerEvent told = make_event(WorkerEvent::Kind::kExited, event.at);
  told.local_rank = event.local_rank;
  told.pid = worker.pid;
  told.exit = event.exit;
  out->push_back(group_action::Emit{std::move(told)});
  const bool sweeps = state_ == GroupState::kSweeping || state_ == GroupState::kStuck;
  if (ended_ == workers_.size() && !sweeps) sweep(now, out);
}

void WorkerGroupMachine::sweep(Instant now, std::vector<GroupAction>* out) {
  state_ = GroupState::kSweeping;
  deadline_ = add_saturating(now, kKillTimeout);
  out->push_back(group_action::Sweep{});
}

void WorkerGroupMachine::gone(Instant now, std::vector<GroupAction>* out) {
  if (ended_ != workers_.size()) {
    out->push_back(group_action::Abandon{});
    return;
  }
  out->push_back(group_action::Emit{make_event(WorkerEvent::Kind::kGroupGone, now)});
  state_ = GroupState::kIdle;
  deadline_.reset();
}

// While workers merely run there is no deadline.
void WorkerGroupMachine::leave_starting() {
  --starting_;
  if (starting_ == 0 && state_ == GroupState::kRunning) deadline_.reset();
}

void WorkerGroupMachine::expire(Instant now, std::vector<GroupAction>* out) {
  if (!deadline_ || now < *deadline_) return;
  if (state_ == GroupState::kStopping) return sweep(now, out);
  if (state_ == GroupState::kRunning) {
    out->push_back(group_action::CancelStarts{});
    deadline_.reset();
    return;
  }
  out->push_back(group_action::Emit{make_stuck_event(now)});
  state_ = GroupState::kStuck;
  deadline_.reset();
}

void WorkerGroupMachine::lose(const group_event::GuardianLost& event, Instant now,
                              std::vector<GroupAction>* out) {
  WorkerEvent told = make_event(WorkerEvent::Kind::kGuardianLost, now);
  told.message = event.message;
  out->push_back(group_action::Emit{std::move(told)});
  state_ = GroupState::kLost;
  deadline_.reset();
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
  WorkerEvent told = make_event(WorkerEvent::Kind::kStuck, now);
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].phase == Phase::kEnded) continue;
    if (told.local_rank < 0) {
      told.local_rank = static_cast<int>(i);
      told.pid = workers_[i].pid;
    }
    told.message += (told.message.empty() ? "worker " : ", worker ") + std::to_string(i);
    if (workers_[i].pid > 0) told.message += " with pid " + std::to_string(workers_[i].pid);
  }
  if (told.message.empty()) told.message = "a process that the workers left behind";
  told.message += " still lives after SIGKILL";
  return told;
}

}  // namespace elastic
