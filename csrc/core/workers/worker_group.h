#pragma once

// The state machine of a node's worker group: when to start, signal and kill the workers of a
// generation, and when the generation has ended; and that of the template process that forks them.
//
// Pure: no I/O, clock, threads or logging; the same calls in the same order give the same actions.
// Not thread-safe; the owner serialises calls. WorkerGroup (elastic/worker_group.h) runs it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "core/workers/guardian_protocol.h"
#include "elastic/time.h"
#include "elastic/worker_group.h"

namespace elastic {

// A fork that fails with EAGAIN or ENOMEM is tried again after the first pause, which doubles up to
// the second one.
inline constexpr Duration kRetryPauseFirst = std::chrono::milliseconds(100);
inline constexpr Duration kRetryPauseMax = std::chrono::seconds(2);

// The time after SIGKILL within which every process should have ended.
inline constexpr Duration kKillTimeout = std::chrono::seconds(10);

enum class GroupState : std::uint8_t {
  kIdle,       // no generation
  kRunning,    // started, and no stop was requested
  kStopping,   // signalled; SIGKILL follows at the deadline
  kLeftovers,  // every worker has succeeded; waiting until the processes that they left have ended
  kSweeping,   // SIGKILL was sent to all processes; waiting until the last one is reaped
  kStuck,      // as kSweeping, for longer than kKillTimeout
  kLost,       // the guardian has ended; final
};
inline constexpr std::size_t kGroupStateCount = 7;

// The events of a group, from its owner and from the guardian.
namespace group_event {
struct Start {
  int workers = 0;
  Duration timeout = Duration::max();  // until every worker must have executed its program
  Duration leftover_grace{};           // for the processes that workers which succeeded have left
};
struct Stop {
  int signal = 0;
  Duration grace{};
  SignalScope scope = SignalScope::kGroup;
};
struct Forward {
  int signal = 0;
  SignalScope scope = SignalScope::kGroup;
  std::optional<int> local_rank = std::nullopt;  // nullopt: every worker
};
struct Started {
  int local_rank = 0;
  int pid = 0;
  Instant at;
};
using Ended = guardian::EndedEvent;
struct LeftoversGone {};  // or there is none
struct KillSent {
  int refused_pid = 0;    // a process that the guardian may not signal; 0: none
  bool found_all = true;  // false: no /proc, so processes may be left that got no signal
};
struct Swept {};
struct Tick {};  // time has passed; every other event advances the time as well
struct GuardianLost {
  std::string message;
};
}  // namespace group_event

using GroupEvent =
    std::variant<group_event::Start, group_event::Stop, group_event::Forward, group_event::Started,
                 group_event::Ended, group_event::LeftoversGone, group_event::KillSent,
                 group_event::Swept, group_event::Tick, group_event::GuardianLost>;
inline constexpr std::size_t kGroupEventCount = std::variant_size_v<GroupEvent>;

// The actions that the owner executes, in order.
namespace group_action {
struct StartAll {};  // sends one start request per worker
struct StartAgain {  // sends the start request of one worker again
  int local_rank = 0;
};
struct Signal {
  guardian::SignalRequest request;
};
struct CancelStarts {};    // sends a request to cancel the starts that have not succeeded yet
struct AwaitLeftovers {};  // sends a request to report when no process of the workers is left
struct Sweep {             // sends a sweep request
  bool reports_leftovers = false;  // all workers have succeeded: after a failure there are some as
                                   // a rule
};
struct Emit {
  WorkerEvent event;
};
struct CloseLink {};  // closes the link after an invalid event of the guardian; the owner feeds
                      // GuardianLost when the guardian has ended
}  // namespace group_action

using GroupAction =
    std::variant<group_action::StartAll, group_action::StartAgain, group_action::Signal,
                 group_action::CancelStarts, group_action::AwaitLeftovers, group_action::Sweep,
                 group_action::Emit, group_action::CloseLink>;

// The reaction to an event in a state. docs/supervision.md shows the table.
enum class GroupReaction : std::uint8_t {
  kIgnore,         // the event is late and has no effect
  kRefuse,         // the call is invalid in this state
  kBegin,          // start every worker
  kSignalAll,      // begin to stop
  kShorten,        // bring the deadline forward
  kForward,        // forward the signal
  kRunning,        // one worker has started
  kEnded,          // one worker ended; the last one begins the sweep, or the wait for leftovers
  kSweep,          // begin the sweep
  kNoteKill,       // SIGKILL was sent
  kGone,           // the generation has ended
  kExpire,         // check the deadline
  kGuardianLost,   // the guardian has ended
  kProtocolError,  // an invalid event of the guardian: close the link
};

// The events as columns of the table, in the order of GroupEvent.
enum class GroupInput : std::uint8_t {
  kStart,
  kStop,
  kForward,
  kStarted,
  kEnded,
  kLeftoversGone,
  kKillSent,
  kSwept,
  kTick,
  kGuardianLost,
};

using GroupTable = std::array<std::array<GroupReaction, kGroupEventCount>, kGroupStateCount>;
extern const GroupTable kGroupTable;

class WorkerGroupMachine {
 public:
  // Handles one event and appends the actions to execute, in order. `now` must not be earlier than
  // in any previous call. Returns false, without effect, if the call is invalid (kRefuse).
  bool step(const GroupEvent& event, Instant now, std::vector<GroupAction>* out);

  // The time by which step(Tick) must be called; nullopt while no timer is pending.
  std::optional<Instant> next_deadline() const;
  GroupState state() const { return state_; }
  // True while a generation has not ended.
  bool live() const { return state_ != GroupState::kIdle && state_ != GroupState::kLost; }

 private:
  // kDelayed: the fork failed and is tried again.
  enum class Phase : std::uint8_t { kStarting, kDelayed, kRunning, kEnded };
  struct Worker {
    Phase phase = Phase::kStarting;
    int pid = -1;
    WorkerExit refusal;  // kDelayed: the failure of the fork
  };

  void begin(const group_event::Start& event, Instant now, std::vector<GroupAction>* out);
  void stop(const group_event::Stop& event, Instant now, std::vector<GroupAction>* out);
  void shorten(const group_event::Stop& event, Instant now, std::vector<GroupAction>* out);
  void worker_started(const group_event::Started& event, std::vector<GroupAction>* out);
  void worker_ended(const group_event::Ended& event, Instant now, std::vector<GroupAction>* out);
  void last_ended(Instant now, std::vector<GroupAction>* out);
  void gone(Instant now, std::vector<GroupAction>* out);
  void expire(Instant now, std::vector<GroupAction>* out);
  void sweep(Instant now, std::vector<GroupAction>* out);
  void guardian_lost(const group_event::GuardianLost& event, Instant now,
                     std::vector<GroupAction>* out);
  void leave_starting();
  void delay(const group_event::Ended& event, Instant now, std::vector<GroupAction>* out);
  void retry(Instant now, std::vector<GroupAction>* out);
  void end_delayed(bool stopped_by_us, Instant now, std::vector<GroupAction>* out);
  void end_worker(int local_rank, const WorkerExit& exit, Instant at,
                  std::vector<GroupAction>* out);
  bool in_phase(int local_rank, Phase phase) const;
  WorkerEvent make_event(WorkerEvent::Kind kind, Instant at) const;
  WorkerEvent make_stuck_event(Instant now) const;

  GroupState state_ = GroupState::kIdle;
  std::uint32_t generation_ = 0;
  std::vector<Worker> workers_;
  std::size_t starting_ = 0;
  std::size_t ended_ = 0;
  std::optional<Instant> deadline_;  // of the state
  std::optional<Instant> retry_at_;  // of the delayed starts
  Duration retry_pause_ = kRetryPauseFirst;
  bool may_retry_ = true;  // the start timeout has not passed
  Duration leftover_grace_{};
  bool has_succeeded_ = true;  // no worker of the generation has ended otherwise
  bool delay_told_ = false;
  bool kill_sent_ = false;
  int refused_pid_ = 0;
  bool found_all_ = true;
};

// The state machine of a node's template process: when it is started again, which workers it forks,
// and the notices about it.
class WarmTemplate {
 public:
  // How many times a template process that was killed is replaced.
  static constexpr int kRenewalsMax = 8;

  struct Reaction {
    bool starts = false;  // the owner starts the template process
    std::string notice;   // for the log; "": none
  };

  // With `is_wanted`, the owner starts the process at once.
  explicit WarmTemplate(bool is_wanted, Instant now = {})
      : state_(is_wanted ? State::kImporting : State::kNone), importing_since_(now) {}

  // How a generation is started.
  struct Start {
    guardian::StartKind kind = guardian::StartKind::kExec;
    Duration wait{};     // kFork: for the process, before the workers are executed after all
    std::string notice;  // for the log; "": none
  };
  // Importing once and forking is faster than importing in each of several workers, so they wait
  // for the process, for `wait_max` at most. A single worker imports beside it in the first
  // generation. In a later one the process is ahead of it, the more so the longer it has imported
  // (on a busy host): it is waited for as long again.
  Start begin_generation(std::size_t workers, Duration wait_max, Instant now);
  // Whether it will fork workers, or say that it cannot.
  bool is_importing() const { return state_ == State::kImporting; }
  Reaction on(const guardian::TemplateEvent& event);
  // The process has ended, or could not be started.
  Reaction on_end(const WorkerExit& exit);

 private:
  enum class State : std::uint8_t { kNone, kImporting, kReady, kUnfit, kStale };

  State state_;
  std::string imported_;  // the module that it imports
  std::set<std::string> left_out_;
  Instant importing_since_;
  bool is_ahead_ = false;  // a generation has begun since then
  int renewals_ = 0;
  bool is_reported_ = false;  // why workers of this generation were executed
};

}  // namespace elastic
