#pragma once

// The agent of one node: executes the actions of core::AgentMachine, and feeds events to it.
//
// Loop thread only. Agent wraps it with a thread and a queue.

#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/agent/agent_machine.h"
#include "core/agent/round_marks.h"
#include "core/hang/idle_workers.h"
#include "elastic/agent.h"
#include "elastic/observer.h"
#include "elastic/status.h"
#include "host/agent/failure_inquiry.h"
#include "host/agent/liveness_port.h"
#include "host/base/action_queue.h"
#include "host/gate/check_runner.h"
#include "host/gate/network_prober.h"
#include "host/membership/membership.h"
#include "host/snapshot/copies.h"
#include "host/store/round_store.h"
#include "host/workers/supervisor.h"
#include "host/workers/worker_output.h"
#include "os/loop/registration.h"

namespace elastic::host {

class AgentRunner {
 public:
  // Receives every event in order; the last one is kFinished. Must not destroy the runner.
  using Sink = std::function<void(AgentEvent)>;

  // Starts the guardian and connects to the rendezvous. `loop` outlives the runner.
  static Result<std::unique_ptr<AgentRunner>> start(os::EventLoop* loop,
                                                    const AgentOptions& options, Sink sink);
  AgentRunner(const AgentRunner&) = delete;
  AgentRunner& operator=(const AgentRunner&) = delete;
  ~AgentRunner();  // kills the workers, and removes the temporary directory

  void request_stop(int signal) { feed(core::StopRequested{signal}); }
  void advise(std::uint64_t round, int local_rank, std::optional<FailureAdvice> advice) {
    feed(core::agent_event::Advised{round, local_rank, std::move(advice)});
  }
  void request_drain(int signal, Duration limit) {
    feed(core::agent_event::DrainRequested{signal, limit});
  }
  void forward(int signal) { supervisor_->forward(signal, SignalScope::kLeader); }
  // Final once kFinished was delivered.
  const AgentResult& result() const { return result_; }

 private:
  AgentRunner(os::EventLoop* loop, const AgentOptions& options, Sink sink);
  void on_worker_event(const WorkerEvent& event);
  void report_late(int local_rank, const std::string& error);
  void on_worker_exit(const WorkerEvent& event);
  void on_group_ended();
  struct Reader;
  void on_membership_event(const MembershipEvent& event);
  void on_extension(const snapshot::HeldEvent& event);
  void on_extension(const drain::StopStepEvent& event) { feed(event); }
  SnapshotCopies* copies();  // null: they are off, or cannot be used
  void begin_copies();
  snapshot::MemoryUse snapshot_memory() const;
  std::uint16_t probe_port();
  void on_network_finding(const gate::Finding& finding);
  void on_membership_ready(const MembershipReady& ready);
  void on_coordinator(const MembershipCoordinator& now);
  void worker_changed(int local_rank, ObservedWorkerState state, int pid, int exit_code);
  void send_workers();
  void send_workers_soon();
  void on_round(rdzv::Round round);
  void on_progress(const guardian::ProgressEvent& progress);
  void on_mark(const guardian::MarkEvent& mark);
  void on_stacks_wanted(const hang::StacksWanted& wanted);
  void on_signatures(std::vector<core::WorkerEvidence> workers);
  void measure_work(const hang::StacksWanted& wanted);
  void collect_stacks(std::function<void(bool any)> done);  // stacks_ has them
  void feed(const core::AgentInput& event);
  void execute(core::Send action);
  void execute(core::StartGroup action);
  void execute(core::PrepareGroup action);
  void execute(core::CutGroup action);
  void execute(core::ContinueGroup action);
  void execute(core::Report action) { report(std::move(action.event)); }
  void execute(core::Finish action);
  void execute(core::CorrectResult action);
  void execute(core::agent_action::AwaitTemplate) {
    supervisor_->when_warm([this] { feed(core::agent_event::TemplateReady{}); });
  }
  void execute(core::agent_action::OpenStore) {
    feed(core::agent_event::StoreOpened{port_for_next_round()});
  }
  void execute(core::agent_action::StartWorkers action);
  void execute(core::agent_action::CancelStart) {
    if (copies_ != nullptr) copies_->cancel_fetch();
    output_.cancel_round();
    feed(core::agent_event::StartCancelled{});
  }
  void execute(core::agent_action::ProbeStore action) {
    probe_.begin(round_->master_addr, round_->master_port, action.limit,
                 [this](const auto& why) { feed(core::agent_event::StoreUnreachable{why}); });
  }
  void execute(core::agent_action::EndRound) { store_.end_round(); }
  void execute(core::agent_action::EndExamination) { inquiry_.end_examination(); }
  void execute(core::agent_action::CollectStacks action);
  void execute(core::agent_action::WriteStacks action);
  void execute(core::agent_action::StopWorkers action);
  void execute(core::agent_action::KillWorker action) {
    supervisor_->forward(SIGKILL, SignalScope::kGroup, action.local_rank);
  }
  void execute(core::agent_action::Observe action);
  void execute(const core::agent_action::ReportOnly& action) {
    if (membership_ != nullptr) membership_->report_only(action.node);
  }
  void execute(core::agent_action::RequestDrain action) { membership_->report(action.notice); }
  void execute(snapshot::node_action::Keep action) {
    supervisor_->request(action.request);
    if (action.request.world_size == 0 && copies_ != nullptr) copies_->begin_round(0, 0, {});
  }
  void execute(snapshot::node_action::Fetch action);
  void execute(core::agent_action::SetStopStep action) {
    if (action.why) supervisor_->set_stop_reason(action.why->describe());
    supervisor_->request(action.request);
  }
  void execute(gate::check_action::Run action) { checks_.run(supervisor_.get(), action); }
  void execute(gate::check_action::Kill action) { checks_.kill(supervisor_.get(), action.run); }
  void execute(core::agent_action::Flush action);
  void execute(core::agent_action::Close action);
  bool is_endpoint_port(std::uint16_t port) const;
  Result<std::uint16_t> port_for_next_round();
  void adopt_round(std::shared_ptr<const RoundInfo> round);
  void open_files(std::shared_ptr<const RoundInfo> round);
  void report_starting();
  std::vector<std::string> rank_variables(std::size_t local_rank) const;
  std::vector<std::string> next_variables(std::size_t local_rank) const;
  WorkerCommand command_of(std::size_t local_rank) const;
  AgentEvent make_event(AgentEvent::Kind kind) const;
  void report_message(AgentEvent::Kind kind, const std::string& message);
  void report(AgentEvent event);
  void report_finished();

  os::EventLoop* const loop_;
  const AgentOptions options_;
  const Sink sink_;

  const std::string host_name_;
  core::AgentMachine machine_;
  ActionQueue<core::AgentAction> actions_;
  AgentResult result_;

  std::string address_;    // at which other nodes reach this one
  std::string bind_host_;  // where the workers' store listens; "": every interface
  // Workers use the store at the endpoint: this process's coordinator empties it for each round.
  bool is_store_at_endpoint_ = false;
  std::shared_ptr<const RoundInfo> round_;
  std::vector<core::WorkerEvidence> stacks_;  // the last ones of this node's workers
  core::IdleWorkers idle_;
  core::RoundMarks marks_;
  RoundStore store_;
  ReachProbe probe_;
  WorkerOutput output_;
  bool hosts_coordinator_ = false;
  std::shared_ptr<const CoordinatorInfo> coordinator_;  // null: there is none, or not known yet
  FailureInquiry inquiry_;
  std::vector<ObservedWorker> workers_;  // of the round
  bool is_watched_ = false;              // the coordinator requested reports of them
  os::Timer watch_timer_;
  os::Timer deadline_;  // of the machine
  CheckRunner checks_;
  std::unique_ptr<LivenessPort> liveness_port_;  // null: no coordinator asks for it
  std::unique_ptr<Supervisor> supervisor_;
  std::unique_ptr<Membership> membership_;
  bool has_tried_prober_ = false;
  std::unique_ptr<NetworkProber> prober_;  // null: this node is not measured, or no longer
  bool has_tried_copies_ = false;
  snapshot::MemoryUse memory_;              // as of the last report of the guardian
  std::unique_ptr<SnapshotCopies> copies_;  // null: no snapshot is copied from or to here
};

}  // namespace elastic::host
