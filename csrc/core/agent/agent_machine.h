#pragma once

// What the agent of a node does next: the policy of its rounds, its part of an agreed step, the
// verdicts about its workers, the order of their stop and of its own end, with every deadline; and
// what it reports of a round's first step.
//
//   core::AgentMachine agent(options);
//   std::vector<core::AgentAction> actions;
//   agent.step(rdzv::Round{...}, now, &actions);
//   // execute the actions in order; call step(PolicyTick{}) at agent.next_deadline()
//
// Pure: the same calls in the same order give the same actions. Not thread-safe. Where a comment
// names a follow-up event, the owner feeds it, unless a later action cancels the request.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "core/agent/advice_questions.h"
#include "core/agent/agent_policy.h"
#include "core/base/node_events.h"
#include "core/base/parts.h"
#include "core/base/timings.h"
#include "core/drain/drain_member.h"
#include "core/drain/node_notice.h"
#include "core/gate/node_checks.h"
#include "core/hang/hang_types.h"
#include "core/snapshot/node_snapshots.h"
#include "elastic/agent.h"
#include "elastic/time.h"

namespace elastic::core {

namespace agent_event {
// The template of the workers can fork, or will not.
struct TemplateReady {};
// The answer to OpenStore.
struct StoreOpened {
  Result<std::uint16_t> port;
};
// The answer to StartGroup and PrepareGroup: whether the files of the workers exist.
struct FilesOpened {
  Status status;
};
// The answer to CancelStart.
struct StartCancelled {};
// The answer to CollectStacks: whether a worker has written its stack.
struct StacksCollected {
  bool any = false;
};
// This node does not reach the workers' store of the round.
struct StoreUnreachable {
  std::string why;
};
// The user, or the node's scheduler, wants the job to stop at an agreed step, or the node to leave
// at one, within the limit.
struct DrainRequested {
  int signal = 0;
  Duration limit{};
};
// No process of the round's workers is left. FailuresExamined follows.
struct ProcessesEnded {};
// What can be found out about the failures of those workers is known.
struct FailuresExamined {};
// The answer to Finish: whether this node still serves a store that workers may use.
struct ResultFixed {
  bool serves_store = false;
};
// The answer to node_action::Fetch.
struct SnapshotsFetched {
  Status status;
};
// The answer to Flush.
struct Flushed {};
using NodeStarted = node_event::Started;
// The answer to the event kAdviceAsked.
struct Advised {
  std::uint64_t round = 0;
  int local_rank = 0;
  std::optional<FailureAdvice> advice;
};
using gate::CheckEnded;
}  // namespace agent_event

// Each event of the policy, and what only the machine and its parts receive.
using AgentInput = JoinedVariant<
    PolicyEvent,
    std::variant<rdzv::RoundOver, hang::Verdict, drain::Order, drain::StopStepEvent,
                 snapshot::HeldEvent, snapshot::CopiesEvent, agent_event::SnapshotsFetched,
                 agent_event::TemplateReady, agent_event::StoreOpened, agent_event::FilesOpened,
                 agent_event::StartCancelled, agent_event::StacksCollected,
                 agent_event::StoreUnreachable, agent_event::DrainRequested,
                 agent_event::ProcessesEnded, agent_event::FailuresExamined,
                 agent_event::ResultFixed, agent_event::Flushed, agent_event::NodeStarted,
                 agent_event::CheckEnded, agent_event::Advised>>;

namespace agent_action {
struct AwaitTemplate {};  // TemplateReady follows
struct OpenStore {};      // a port for it, if this node is rank 0 of the next round: StoreOpened
struct StartWorkers {};   // the workers of StartGroup or PrepareGroup; their files exist
struct CancelStart {};    // instead: StartCancelled follows
struct ProbeStore {       // of the round, from this node: StoreUnreachable may follow
  Duration limit{};
};
struct EndRound {};        // of the workers of all nodes: its store is no longer needed
struct EndExamination {};  // what is found later is of no round
struct CollectStacks {};   // of the workers, before they are stopped: StacksCollected follows
struct WriteStacks {       // that were collected last
  std::string reason;
};
struct StopWorkers {
  StopGroup how;
  bool after_failure = false;  // of a worker of the round, on any node
};
struct KillWorker {
  int local_rank = 0;
};
struct Observe {  // to the coordinator
  std::variant<drain::Reply, hang::RankFinished, gate::Finding> message;
};
struct ReportOnly {  // to the coordinator, what was observed: the node does not join
  NodeId node;
};
struct RequestDrain {  // to the coordinator
  drain::Notice notice;
};
struct SetStopStep {  // to the guardian, whose answers are events
  drain::StopStepRequest request;
  std::optional<StopReason> why = {};  // the workers stop there
};
// Send what waits for the rendezvous, and wait until no node needs a coordinator in this process:
// Flushed follows.
struct Flush {
  Duration limit{};
  bool is_supervision_lost = false;  // close the link to the guardian, which kills what is left
};
struct Close {};  // the rest, and report the end
}  // namespace agent_action

using AgentAction =
    std::variant<Send, StartGroup, PrepareGroup, CutGroup, ContinueGroup, Report, Finish,
                 CorrectResult, agent_action::AwaitTemplate, agent_action::OpenStore,
                 agent_action::StartWorkers, agent_action::CancelStart, agent_action::ProbeStore,
                 agent_action::EndRound, agent_action::EndExamination, agent_action::CollectStacks,
                 agent_action::WriteStacks, agent_action::StopWorkers, agent_action::KillWorker,
                 agent_action::Observe, agent_action::ReportOnly, agent_action::RequestDrain,
                 agent_action::SetStopStep, agent_action::Flush, agent_action::Close,
                 snapshot::node_action::Keep, snapshot::node_action::Fetch, gate::check_action::Run,
                 gate::check_action::Kill>;

// The longest delay of a stop for the sake of stacks.
inline constexpr Duration kHeldStopLimit = std::chrono::seconds(2);
// How long the end of a round waits for what is found out about its failures.
inline constexpr Duration kExaminationTimeout = std::chrono::seconds(2);
// The time to flush this node's leave to the rendezvous while the job continues.
inline constexpr Duration kLeaveLimit = std::chrono::seconds(5);
// How long a join waits for a descriptor for the next round's store, and between two attempts.
inline constexpr Duration kPortLimit = std::chrono::seconds(2);
inline constexpr Duration kPortPause = std::chrono::milliseconds(100);
// How long rank 0 tests whether its own store is reached: no packet leaves the host.
inline constexpr Duration kOwnReachTimeout = std::chrono::seconds(2);

// How long a bad node waits until the rendezvous has what was found.
inline constexpr Duration kFindingLimit = std::chrono::seconds(5);

struct AgentMachineOptions {
  AgentPolicyOptions policy;
  std::string host_name;      // in messages
  bool keeps_stacks = false;  // also writes the stacks of a hang
  // The node joins when the template of its workers is ready, or after this; nullopt: at once.
  std::optional<Duration> template_limit;
  gate::NodeCheckOptions checks = {};
  std::uint16_t endpoint_port = 0;  // a store there is not tested: the session reaches it
};

// The parts, in the order in which they receive an event:
//
//   part          of         receives
//   drain_        drain      RoundBegan WorkerEnded; drain::Order drain::StopStepEvent
//   snapshots_    snapshot   RoundBegan WorkerEnded; snapshot::HeldEvent snapshot::CopiesEvent
//   checks_       gate       Started WorkerFailed Ended PartTick; gate::CheckEnded
//   questions_    launcher   RoundBegan PartTick
//   notice_       drain      RoundBegan WorkerEnded PartTick; drain::Order
//
// What they ask for has an apply(). A part is added with a member, its name in parts_of(), and what
// it receives besides in AgentInput. The policy receives each PolicyEvent; what also has an effect
// on something else has an on() of its own.
class AgentMachine : private PartOwner<AgentMachine> {
 public:
  explicit AgentMachine(AgentMachineOptions options);

  void step(const AgentInput& input, Instant now, std::vector<AgentAction>* out);
  // When step(PolicyTick{}) must be called; nullopt: never.
  std::optional<Instant> next_deadline() const;

  AgentState state() const { return policy_.state(); }
  // The newest step of which every rank of this node has a snapshot; -1: none. When it was known.
  std::int64_t saved_step() const { return snapshots_.saved_step(); }
  Instant saved_at() const { return snapshots_.saved_at(); }
  // The exit of a worker that this machine has killed says why.
  WorkerExit explain(int local_rank, WorkerExit exit) const;
  // A worker may fail because others did not enter a collective operation.
  WorkerExited explain(WorkerExited failed) const;

 private:
  template <typename Event>  // only of the policy, or only of parts
  void on(const Event& event) {
    if constexpr (is_alternative_of<Event, PolicyEvent>) {
      decide(event);
    } else {
      feed(event);
    }
  }
  void on(const PolicyTick& event);
  void on(const RendezvousReady& event);
  void on(const RendezvousLost& event);
  void on(const WorkerStarted& event);
  void on(const WorkerExited& event);
  void on(const FailureFound& event) {
    note_cause(event.worker);
    decide(event);
    ask_for_advice(event.worker);
  }
  void on(const rdzv::Refused& event);
  void on(const rdzv::Restart& event);
  void on(const rdzv::Evicted& event);
  void on(const rdzv::Closed& event);
  void on(const StopRequested& event);
  void on(const hang::Verdict& verdict);
  void on(const agent_event::SnapshotsFetched& event);
  void on(const rdzv::Round& event) {
    snapshots_.set_sources(event.sources);
    decide(event);
  }
  void on(const agent_event::TemplateReady&) { join_late(); }
  void on(const agent_event::StoreOpened& event);
  void on(const agent_event::FilesOpened& event);
  void on(const agent_event::StartCancelled&);
  void on(const agent_event::StacksCollected& event);
  void on(const agent_event::StoreUnreachable& event);
  void on(const agent_event::DrainRequested& event);
  void on(const agent_event::ProcessesEnded&);
  void on(const agent_event::FailuresExamined&);
  void on(const agent_event::ResultFixed& event);
  void on(const rdzv::RoundOver& event);
  void on(const agent_event::Flushed&) { shutdown_at_ = now_; }
  void on(const agent_event::Advised& event);

  // ---- The parts.
  friend class PartOwner<AgentMachine>;
  template <typename Self>
  static auto parts_of(Self* agent) {
    return std::tie(agent->drain_, agent->snapshots_, agent->checks_, agent->questions_,
                    agent->notice_);
  }
  void apply(const DrainMember::Answer& answer);
  void apply(const drain::GiveUp& action) { give_up_drain(action.why); }
  void apply(const snapshot::node_action::Say& action) {
    report(action.is_wait ? AgentEvent::Kind::kProgress : AgentEvent::Kind::kNotice,
           action.message);
  }
  void apply(const snapshot::node_action::Abandon& action) { abandon_start(action.why); }
  void apply(const gate::check_action::Report& action);
  void apply(const gate::check_action::Admit&) { join(); }
  void apply(const gate::check_action::Reject& action);
  void apply(const Unanswered& action);
  template <typename Other>
  void apply(Other action) {
    act(std::move(action));
  }

  template <typename Event>
  void decide(const Event& event) {
    std::vector<PolicyAction> decided;
    policy_.on(event, now_, &decided);
    follow(std::move(decided));
  }
  void follow(std::vector<PolicyAction> decided);
  void follow(Send action);
  void follow(StartGroup action);
  void follow(PrepareGroup action);
  void follow(ContinueGroup action);
  void follow(StopGroup action);
  void follow(Finish action);
  template <typename Other>
  void follow(Other action) {
    act(std::move(action));
  }

  void begin_round(std::shared_ptr<const RoundInfo> round);
  void abandon_start(const std::string& why);
  void start_workers();
  void note_cause(const WorkerExited& event) {
    if (event.evidence.cause == FailureCause::kOutOfMemory) snapshots_.note_out_of_memory();
  }
  void join();
  void join_late() {  // the template of the workers is ready, or is not waited for any longer
    join_at_.reset();
    join();
  }
  void open_store();
  // Of checks: agent_checks.cc.
  void end_checks();
  void report_findings();
  void report_unfit();
  bool serves_others() const;
  void leave_unfit();
  // Of advice: agent_advice.cc.
  void ask_for_advice(const WorkerExited& found);
  void drop_questions();
  void end_examined_round();
  // Of the agreed step: agent_drain.cc.
  void give_up_drain(const std::string& why);
  void end_by_notice(WorkerExited event);
  void leave_if_done();
  bool can_leave_alone() const;
  void note_exit(const WorkerExited& event);
  void note_finished(const WorkerExited& event);
  void kill(int local_rank, std::string verdict, bool ends_job, bool is_unreachable);
  void release_stop();
  void end_examination();
  void probe_store();
  void end_round();
  void shut_down();
  Duration shutdown_limit() const;
  void report(AgentEvent::Kind kind, std::string message);
  template <typename Action>
  void act(Action action) {
    out_->emplace_back(std::in_place_type<Action>, std::move(action));
  }

  struct Timers;

  const AgentMachineOptions options_;
  AgentPolicy policy_;
  DrainMember drain_;
  drain::NodeNotice notice_;
  snapshot::NodeSnapshots snapshots_;
  gate::NodeChecks checks_;
  AdviceQuestions questions_;
  std::vector<gate::Finding> unsent_findings_;  // the rendezvous was not reached yet
  bool is_reached_ = false;
  bool hosts_coordinator_ = false;  // when it was reached
  bool has_joined_ = false;
  std::optional<std::string> unfit_;      // this node is bad: why; it has not left yet
  std::optional<Instant> unfit_until_;    // it waits no longer for the reply to its report
  std::optional<RendezvousReady> ready_;  // this node has not begun to join yet
  std::optional<Instant> join_at_;
  std::optional<rdzv::Join> unsent_join_;  // waits for a port
  Instant port_limit_;
  std::optional<Instant> port_at_;  // the next attempt
  bool is_opening_files_ = false;   // the workers start when their files exist
  bool are_files_open_ = false;
  bool is_abandoning_ = false;

  // ---- The round. Null before the first one.
  std::shared_ptr<const RoundInfo> round_;
  std::vector<bool> has_started_;  // by local rank
  std::vector<bool> has_ended_;    // likewise
  bool has_sent_finish_ = false;   // of the first worker that exited with 0
  bool may_hold_stop_ = false;     // no stop was requested yet
  bool is_stop_for_failure_ = false;
  bool is_stop_for_loss_ = false;       // a node was lost
  std::optional<StopGroup> held_stop_;  // waits for stacks
  std::optional<Instant> held_until_;
  std::optional<Instant> examined_until_;  // no process is left, and the failures are examined
  bool is_examined_ = false;               // they were, and advice about them is awaited
  // A worker that was killed with a verdict, and the marks of its exit.
  struct Killed {
    int local_rank = -1;
    std::string verdict;
    bool ends_job = false;
    bool is_unreachable = false;
  };
  std::vector<Killed> killed_;
  std::string stall_;  // ranks of the round wait for one that does nothing: the line about it

  // The end.
  bool is_finished_ = false;  // the result is fixed
  bool ends_job_ = false;     // the job has ended, not only this node's part
  bool is_flushing_ = false;
  bool is_closed_ = false;
  std::optional<Instant> shutdown_at_;

  // During a step.
  std::vector<AgentAction>* out_ = nullptr;
};

}  // namespace elastic::core
