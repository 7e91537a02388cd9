#pragma once

// Decides about one generation after another of a node's workers: when to signal, when to kill,
// when nothing of them is left.
//
// Pure: no I/O, clock, threads or logging; the same calls in the same order give the same actions.
// Not thread-safe; the owner serialises calls. WorkerGroup (elastic/worker_group.h) runs it.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/workers/guardian_protocol.h"
#include "elastic/time.h"
#include "elastic/worker_group.h"

namespace elastic {

// A fork that the kernel refuses for now (EAGAIN, ENOMEM) is tried again after this time, which
// doubles up to the second.
inline constexpr Duration kRetryPauseFirst = std::chrono::milliseconds(100);
inline constexpr Duration kRetryPauseMax = std::chrono::seconds(2);

// After SIGKILL, the time in which the kernel should have ended everything.
inline constexpr Duration kKillTimeout = std::chrono::seconds(10);

enum class GroupState : std::uint8_t {
  kIdle,      // no generation lives
  kRunning,   // started; nobody asked for the end
  kStopping,  // signalled; SIGKILL follows at the deadline
  kSweeping,  // SIGKILL was sent to everything; waiting until the last process is reaped
  kStuck,     // as kSweeping, and it has taken longer than kKillTimeout
  kLost,      // the guardian is gone; nothing happens any more
};
inline constexpr std::size_t kGroupStateCount = 6;

// What a group is told, by its owner and by the guardian. The numbers are the table's columns.
namespace group_event {
struct Start {
  int workers = 0;
  Duration timeout = Duration::max();  // until every worker must have executed its program
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
struct Ended {
  int local_rank = 0;
  Instant at;
  WorkerExit exit;
};
struct KillSent {
  int refused_pid = 0;  // a process that may not be killed; 0: none
};
struct Swept {};
struct Tick {};  // time has passed; also by any other event
struct GuardianLost {
  std::string message;
};
}  // namespace group_event

using GroupEvent = std::variant<group_event::Start, group_event::Stop, group_event::Forward,
                                group_event::Started, group_event::Ended, group_event::KillSent,
                                group_event::Swept, group_event::Tick, group_event::GuardianLost>;
inline constexpr std::size_t kGroupEventCount = std::variant_size_v<GroupEvent>;

// What must now happen, in order.
namespace group_action {
struct StartAll {};  // sends one start request per worker
struct StartAgain {  // sends that of one worker
  int local_rank = 0;
};
struct Signal {
  guardian::SignalRequest request;
};
struct CancelStarts {};  // sends a request to cancel the starts that have not succeeded yet
struct Sweep {};         // sends a sweep request
struct Emit {
  WorkerEvent event;
};
struct CloseLink {};  // closes the link, as the guardian said what it cannot have meant; the owner
                      // tells when it is gone
}  // namespace group_action

using GroupAction = std::variant<group_action::StartAll, group_action::StartAgain,
                                 group_action::Signal, group_action::CancelStarts,
                                 group_action::Sweep, group_action::Emit, group_action::CloseLink>;

// What an event means in a state. docs/supervision.md shows the table.
enum class GroupReaction : std::uint8_t {
  kIgnore,         // it came too late to matter
  kRefuse,         // the caller may not do this now
  kBegin,          // start every worker
  kSignalAll,      // begin to stop
  kShorten,        // bring the deadline forward
  kForward,        // forward the signal
  kRunning,        // one worker runs
  kEnded,          // one worker ended; the last one begins the sweep
  kNoteKill,       // SIGKILL was sent
  kGone,           // the generation is over
  kExpire,         // look at the deadline
  kGuardianLost,   // the guardian is gone
  kProtocolError,  // the guardian cannot have meant this: give it up
};

using GroupTable = std::array<std::array<GroupReaction, kGroupEventCount>, kGroupStateCount>;
extern const GroupTable kGroupTable;

const char* to_string(GroupState state);
const char* to_string(GroupReaction reaction);

class WorkerGroupMachine {
 public:
  // Feeds one event and appends, in the order of execution, what must now happen. `now` must not be
  // earlier than in any previous call. False: refused (kRefuse); nothing has changed.
  bool step(const GroupEvent& event, Instant now, std::vector<GroupAction>* out);

  // The time by which step(Tick) must be called; nullopt while no timer is pending.
  std::optional<Instant> next_deadline() const;
  GroupState state() const { return state_; }
  // True while a generation has not ended.
  bool live() const { return state_ != GroupState::kIdle && state_ != GroupState::kLost; }

 private:
  // kDelayed: the kernel refused the fork for now.
  enum class Phase : std::uint8_t { kStarting, kDelayed, kRunning, kEnded };
  struct Worker {
    Phase phase = Phase::kStarting;
    int pid = -1;
    WorkerExit refusal;  // kDelayed: why
  };

  void begin(const group_event::Start& event, Instant now, std::vector<GroupAction>* out);
  void stop(const group_event::Stop& event, Instant now, std::vector<GroupAction>* out);
  void shorten(const group_event::Stop& event, Instant now, std::vector<GroupAction>* out);
  void worker_started(const group_event::Started& event, std::vector<GroupAction>* out);
  void worker_ended(const group_event::Ended& event, Instant now, std::vector<GroupAction>* out);
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
  bool delay_told_ = false;
  bool kill_sent_ = false;
  int refused_pid_ = 0;
};

}  // namespace elastic
