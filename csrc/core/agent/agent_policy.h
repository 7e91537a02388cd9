#pragma once

// The decisions of one node's agent: when to join a round, start and stop its workers, report how
// they ended, and with which result to finish.
//
// It follows the rendezvous (rendezvous_machine.h), which alone decides about rounds, restarts and
// the job's result. Pure: the same calls in the same order give the same actions. Not thread-safe;
// the owner serialises calls and executes the actions in order. If an action fails, the owner feeds
// LocalFault or SupervisionLost.

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/agent/kept_workers.h"
#include "core/agent/launcher_rules.h"
#include "core/agent/policy_events.h"
#include "core/rendezvous/failure_policy.h"
#include "core/rendezvous/participant.h"
#include "core/rendezvous/rendezvous_events.h"
#include "elastic/agent.h"

namespace elastic::core {

// The states of the policy: those of AgentState, divided by what the workers do.
enum class PolicyState : std::uint8_t {
  // INIT
  kInit,        // no workers
  kPreparing,   // the workers were started before this node joins
  kUnprepared,  // the same, and they are being stopped
  kWaiting,     // the workers have left their round, and wait for the next one
  kDropping,    // the same, and they are being stopped
  // HEALTHY
  kHealthy,
  // UNHEALTHY
  kUnhealthy,
  kCutting,   // the workers were told to leave the round
  kStopping,  // the workers are being stopped
  // SUCCEEDED
  kDone,       // the workers have, and this node waits for the other nodes
  kSucceeded,  // the job has
  // STOPPED, FAILED
  kStopped,
  kFailed,
  kFinished,  // the result was delivered, and has the state
};
inline constexpr std::size_t kPolicyStates = 14;
// REQUIRES: not kFinished
AgentState agent_state(PolicyState state);

// What an event means, given the policy's data: the columns of the transition table.
enum class PolicyInput : std::uint8_t {
  kReady,
  kReadyToPrepare,  // and the workers are started before this node joins
  kProgress,
  kRound,            // a new round
  kStale,            // of a round that is over, a repetition, or too early
  kStopOrdered,      // an order to stop the workers (restart, eviction), while some exist
  kStopOrderedIdle,  // the same order, while no worker of a round exists
  kCutOrdered,       // an order to end the round, and every worker can continue in the next one
  kSuccess,          // the job succeeded; every node receives this
  kEnd,              // the job, or this node's membership, ended without success
  kEndAtStep,        // the job ended, and this node's workers have stopped at an agreed step
  kWorkerStarted,
  kWorkerDone,      // exited with code 0
  kWorkerFailed,    // ended otherwise, and the agent had not stopped it
  kNodeBad,         // the same, with a code that means that the node is bad
  kWorkerStopped,   // ended after the agent had stopped it
  kWorkerUnranked,  // ended before its first round
  kFailureFound,
  kWorkerCapable,
  kWorkerLeft,
  kAllLeft,          // the last worker has left the round that was cut, or waits for its first one
  kGroupEnded,       // and no order to join again was received
  kGroupGoneToJoin,  // and an order to join again was received
  kStopRequested,
  kStopAfterExits,  // the same, when every worker has exited
  kSupervisionLost,
  kTick,      // the deadline passed
  kReleased,  // the node leaves at an agreed step
  kStartAbandoned,

  // Raised by a step:
  kStopSent,        // the workers are being stopped
  kWaitingFailed,   // a worker had ended while it waited for the round that has begun
  kWaitingNodeBad,  // the same, with a code that means that the node is bad
  kBarrierOver,     // the workers have succeeded, and this node waits for no other
  kOver,            // the outcome is fixed, and no worker is left
  kOverAtStep,      // the same, and the workers have stopped at an agreed step
};
inline constexpr std::size_t kPolicyInputs = 35;

// After a node reported a failed worker it waits this long for an order. Then it stops its other
// workers without one: their collectives are broken anyway.
inline constexpr Duration kOrderTimeout = std::chrono::seconds(1);

struct AgentPolicyOptions {
  NodeInfo node;  // without name, address and store_port
  JobSettings settings;
  AgentOptions agent = {};  // REQUIRES: inplace_grace, if inplace_prepare is set
};

class AgentPolicy {
  struct Turn;

 public:
  using Out = std::vector<PolicyAction>;

  explicit AgentPolicy(const AgentPolicyOptions& options)
      : settings_(options.settings),
        agent_(options.agent),
        launcher_rules_(launcher_rules(options.agent)),
        participant_(options.node, options.settings) {}

  // Handles one event and appends the actions to execute, in order. After Finish, only a
  // result of the job can have an effect.
  template <typename Event>
  void on(const Event& event, Instant now, Out* out) {
    Turn turn{.now = now, .out = out, .from = state_};
    run(read(event, &turn), &turn);
  }
  void step(const PolicyEvent& event, Instant now, Out* out) {
    std::visit([&](const auto& one) { on(one, now, out); }, event);
  }
  // When PolicyTick must be fed; nullopt: never.
  std::optional<Instant> next_deadline() const { return deadline_; }

  AgentState state() const {
    return state_ == PolicyState::kFinished ? result_.state : agent_state(state_);
  }
  const NodeId& node() const { return self().id; }
  // Whether processes of this node's workers exist, or may.
  bool has_processes() const { return has_processes(state_); }
  // And its workers have not ended yet.
  bool is_evicted() const {
    return participant_.state() == ParticipantState::kReleased && participant_.must_rejoin();
  }
  // Every worker runs, and can take part in another round.
  bool can_continue() const { return can_cut(); }
  // Its workers have succeeded, and it waits for the workers of the other nodes.
  bool is_done() const { return state_ == PolicyState::kDone; }
  // The failure of this worker that has ended the round; null: there is none.
  const WorkerFailure* failure_of(int local_rank) const;
  // By a signal, or because the job is over.
  bool is_being_stopped() const {
    return stop_requests_ > 0 || state() == AgentState::kFailed || result_.job;
  }

  // An entry of the transition table.
  struct Edge {
    void (AgentPolicy::*run)(Turn*) = nullptr;  // null: the input has no effect
    PolicyState next = PolicyState::kInit;
    bool is_loss = false;  // the agent ends in UNKNOWN: the workers must not keep running
  };
  static const Edge& edge_of(PolicyState state, PolicyInput input);

 private:
  struct Table;

  // An order to end the round.
  struct Order {
    ParticipantEvent event;
    std::string reason;
    std::string cause;
    std::optional<Duration> grace;  // nullopt: this node's
    StopReason why = {};
  };
  // The end of this node's part in the job.
  struct End {
    std::vector<ParticipantEvent> events = {};
    int exit_code = 0;
    std::string message = {};
    std::shared_ptr<const JobResult> job = {};  // null: the job may continue
    bool is_unstarted = false;                  // no worker was started
    StopCause why = StopCause::kJobEnded;
    bool follows_failure = false;  // of a worker of this node
    bool follows_job = false;      // a result of the job that crosses it decides about the code
  };
  struct Raised {
    PolicyInput input;
    std::optional<WorkerExited> exited = {};
  };
  // One event, and what the steps need of it.
  struct Turn {
    Instant now;
    Out* out;
    PolicyState from;  // the state before the step
    const RendezvousReady* ready = nullptr;
    const Progress* progress = nullptr;
    const rdzv::Round* round = nullptr;
    const WorkerStarted* started = nullptr;
    const WorkerExited* exited = nullptr;
    const WorkerExited* found = nullptr;
    int local_rank = -1;  // of the worker that declared something
    std::int64_t step = -1;
    int signal = 0;         // of the stop request
    std::string lost = {};  // how supervision was lost; "": the input contradicts the state
    std::optional<Order> order = {};
    std::optional<End> end = {};
    std::vector<Raised> raised = {};  // inputs that the steps add, in order

    template <typename Action>
    void act(Action action) const {
      out->emplace_back(std::in_place_type<Action>, std::move(action));
    }
    void report(AgentEvent::Kind kind, AgentState state, std::string message) const {
      AgentEvent event = event_of(kind, state, now);
      event.message = std::move(message);
      act(Report{std::move(event)});
    }
    bool has_sent_stop() const {
      return std::any_of(raised.begin(), raised.end(),
                         [](const Raised& one) { return one.input == PolicyInput::kStopSent; });
    }
    void raise(PolicyInput input) { raised.push_back({input}); }
  };

  // What an event means, given the policy's data. Also fills in the turn.
  PolicyInput read(const RendezvousReady& event, Turn* turn) const;
  PolicyInput read(const Progress& event, Turn* turn) const;
  PolicyInput read(const RendezvousLost& event, Turn* turn) const;
  PolicyInput read(const LocalFault& event, Turn* turn) const;
  PolicyInput read(const NodeUnfit& event, Turn* turn) const;
  PolicyInput read(const rdzv::Round& event, Turn* turn) const;
  PolicyInput read(const rdzv::Restart& event, Turn* turn) const;
  PolicyInput read(const rdzv::Evicted& event, Turn* turn) const;
  PolicyInput read(const rdzv::Refused& event, Turn* turn) const;
  PolicyInput read(const rdzv::TimedOut& event, Turn* turn) const;
  PolicyInput read(const rdzv::Closed& event, Turn* turn) const;
  PolicyInput read(const WorkerStarted& event, Turn* turn) const;
  PolicyInput read(const WorkerExited& event, Turn* turn) const;
  PolicyInput read(const FailureFound& event, Turn* turn) const;
  PolicyInput read(const WorkerCapable& event, Turn* turn) const;
  PolicyInput read(const WorkerLeft& event, Turn* turn) const;
  PolicyInput read(const LeaveAtStep& event, Turn* turn) const;
  PolicyInput read(const StartAbandoned&, Turn*) const { return PolicyInput::kStartAbandoned; }
  PolicyInput read(const GroupGone& event, Turn* turn) const;
  PolicyInput read(const StopRequested& event, Turn* turn) const;
  PolicyInput read(const SupervisionLost& event, Turn* turn) const;
  PolicyInput read(const PolicyTick& event, Turn* turn) const;
  PolicyInput ordered() const;
  void run(PolicyInput input, Turn* turn);

  // ---- The steps of the table.
  void report_progress(Turn* turn);
  void join(Turn* turn);
  void request_join(Turn* turn);
  void join_ordered(Turn* turn);
  void join_after_failure(Turn* turn);
  void join_when_done(Turn* turn);
  void start_group(Turn* turn);
  void stop_workers(Turn* turn);
  void stop_unordered(Turn* turn);
  void end(Turn* turn);
  void count_started(Turn* turn);
  void count_exit(Turn* turn);
  void add_first_failure(Turn* turn);
  void add_failure(Turn* turn);
  void leave_bad_node(Turn* turn);
  void add_evidence(Turn* turn);
  void send_done(Turn* turn);
  void send_gone(Turn* turn);
  void rejoin(Turn* turn);
  void leave(Turn* turn);
  void leave_done(Turn* turn);
  void finish_done_at_step(Turn* turn);
  void leave_at_step(Turn* turn);
  void kill(Turn* turn);
  void lose(Turn* turn);
  void finish(Turn* turn);
  void finish_gone(Turn* turn);
  void adopt_job_code(Turn* turn);
  // Of workers that are kept for another round: agent_kept.cc.
  void count_capable(Turn* turn);
  void count_left(Turn* turn);
  void cut_workers(Turn* turn);
  void note_order(Turn* turn) { follow_order(turn); }
  void abandon_late_cut(Turn* turn);
  void keep_workers(Turn* turn);
  void continue_group(Turn* turn);
  void note_waiting_exit(Turn* turn);
  void fail_waiting(Turn* turn);
  void drop_group(Turn* turn);
  // Of workers that are started before this node joins: agent_kept.cc.
  void prepare_group(Turn* turn);
  void note_unprepared_exit(Turn* turn);
  void abandon_late_preparation(Turn* turn);
  void join_unprepared(Turn* turn);

  // ---- Parts of steps.
  void update(const ParticipantEvent& event, Turn* turn);
  void begin_round(Turn* turn);
  std::string follow_order(Turn* turn);
  void report_failure(Turn* turn);
  void stop_group(Duration grace, const std::string& why, Turn* turn);
  void abandon_cut(const std::string& why, Turn* turn);
  void abandon_preparation(const std::string& why, Turn* turn);
  StopReason own_failure() const;
  void set_result(const JobResult& job);
  void set_stopped_at_step();
  void count_one_exit(const WorkerExited& event, Turn* turn);
  void note_failure(Turn* turn);
  WorkerFailure failure_of(const WorkerExited& event);
  WorkerFailure waiting_failure_of(const WorkerExited& event);
  void await_order(Turn* turn);
  WorkerFailure take_failure(int local_rank, int pid);
  void insert_failure(WorkerFailure failure);
  void update_failure(WorkerFailure* failure, const WorkerExited& event);
  int cause_rank() const;
  void send_cause_after(int changed, int before, Turn* turn);
  void send_cause(Turn* turn);
  void send_failure(const WorkerFailure& failure, Turn* turn);
  const FailureRule* own_rule(const WorkerExit& exit) const;
  bool means_bad_node(const WorkerExit& exit) const;
  static bool is_failure(const WorkerExit& exit);
  static bool has_stopped_at_step(const WorkerExit& exit);
  const char* why_final(const WorkerFailure& failure) const;
  std::string repetition_of(const WorkerFailure& failure) const;
  void end_streak();
  void deliver(AgentState state, Turn* turn);
  void note_failed_leave(PolicyState state, const std::string& what, int exit_code);
  bool has_processes(PolicyState state) const;
  static bool is_kept(PolicyState state) {
    return state == PolicyState::kWaiting || state == PolicyState::kDropping;
  }
  static bool is_stopping(PolicyState state) {
    return state == PolicyState::kStopping || state == PolicyState::kDropping ||
           state == PolicyState::kUnprepared || state == PolicyState::kSucceeded;
  }
  bool all_ended() const;
  bool can_cut() const;
  const NodeInfo& self() const { return participant_.node(); }
  // The node's periods as the rendezvous knows them include the time of a cut.
  Duration without_cut(Duration grace) const {
    return std::max(grace - agent_.inplace_grace.value_or(Duration::zero()), Duration::zero());
  }
  Duration stop_grace() const { return without_cut(self().stop_grace); }
  Duration failure_grace() const { return without_cut(self().failure_grace); }
  // The failure that ended the round on this node. REQUIRES: there is one.
  const WorkerFailure& cause() const;
  std::string restart_text(const RoundRecord& record, bool is_continued) const;

  const JobSettings settings_;
  const AgentOptions agent_;
  const std::vector<FailureRule> launcher_rules_;

  PolicyState state_ = PolicyState::kInit;
  Participant participant_;
  std::optional<Instant> deadline_;
  AgentResult result_;        // reported when the workers' processes have ended
  bool follows_job_ = false;  // it has left with a code that the job may replace
  int stop_requests_ = 0;
  int stop_signal_ = 0;  // of the last stop request

  // ---- The current round.
  std::shared_ptr<const RoundInfo> round_;
  std::size_t started_ = 0;
  std::size_t ended_ = 0;
  std::vector<WorkerFailure> failures_;
  std::int64_t stop_step_ = -1;  // at which a worker was told to stop, and has exited
  std::string end_reason_;
  StopReason stop_reason_;      // for the workers
  bool is_own_reason_ = false;  // the reason is a failure on this node
  AgentRoundEnd round_end_;
  Instant round_began_;

  KeptWorkers kept_;

  // Rounds in a row that ended by the same failure on this node.
  std::string last_fingerprint_;
  int same_failures_ = 0;
  Duration longest_round_{};
};

}  // namespace elastic::core
