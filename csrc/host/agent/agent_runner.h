#pragma once

// The agent of one node: executes the actions of the policy machine, and feeds events to it.
//
// Loop thread only. Agent wraps it with a thread and a queue.

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/agent/agent_policy.h"
#include "core/agent/round_marks.h"
#include "core/drain/drain_member.h"
#include "elastic/agent.h"
#include "elastic/observer.h"
#include "elastic/status.h"
#include "host/agent/failure_inquiry.h"
#include "host/agent/liveness_port.h"
#include "host/membership/membership.h"
#include "host/store/reach_probe.h"
#include "host/store/round_store.h"
#include "host/workers/output_capture.h"
#include "host/workers/supervisor.h"
#include "host/workers/worker_output.h"
#include "os/loop/event_loop.h"

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

  void request_stop(int signal);
  void request_drain(int signal, Duration limit);
  void forward(int signal);
  // Final once kFinished was delivered.
  const AgentResult& result() const { return result_; }

 private:
  AgentRunner(os::EventLoop* loop, const AgentOptions& options, Sink sink);
  void on_worker_event(const WorkerEvent& event);
  void on_worker_exit(const WorkerEvent& event);
  void on_group_ended();
  void on_membership_event(const MembershipEvent& event);
  void open_liveness_port();
  void on_membership_ready(const MembershipReady& ready);
  void begin_to_join();
  void on_coordinator(const MembershipCoordinator& now);
  void on_watch(bool is_on);
  void worker_changed(int local_rank, ObservedWorkerState state, int pid, int exit_code);
  void send_workers();
  void on_round(rdzv::Round round);
  void on_progress(const guardian::ProgressEvent& progress);
  void on_mark(const guardian::MarkEvent& mark);
  void on_stacks_wanted(const hang::StacksWanted& wanted);
  void on_verdict(const hang::Verdict& verdict);
  void begin_probe();
  void on_worker_finished(const WorkerEvent& event);
  void stop_group(const core::StopGroup& stop);
  void release_stop();
  void note_stacks(std::vector<core::WorkerEvidence> workers);
  void write_stacks(const std::string& reason);
  void on_drain_order(const drain::Order& order);
  void answer_drain(const core::DrainMember::Answer& answer);
  void give_up_drain();
  void end_round();
  void feed(const core::PolicyEvent& event);
  void execute(core::PolicyAction action);
  void send(NodeStatement statement);
  bool is_endpoint_port(std::uint16_t port) const;
  Result<std::uint16_t> port_for_next_round();
  void prepare_group();
  void start_group(std::shared_ptr<const RoundInfo> round);
  void continue_group(std::shared_ptr<const RoundInfo> round, const std::string& reason);
  void adopt_round(std::shared_ptr<const RoundInfo> round);
  void start_workers(const Status& files);
  void report_starting(const std::string& log_dir);
  void cancel_start();
  std::vector<std::string> rank_variables(std::size_t local_rank) const;
  std::vector<std::string> next_variables(std::size_t local_rank) const;
  WorkerCommand command_of(std::size_t local_rank) const;
  void report_message(AgentEvent::Kind kind, const std::string& message);
  void report(AgentEvent event);
  void finish(AgentResult result);
  // After the job ended: the time in which all other nodes stop their workers or are evicted.
  Duration shutdown_limit() const;
  void shut_down();
  void report_finished();

  os::EventLoop* const loop_;
  const AgentOptions options_;
  const Sink sink_;

  core::AgentPolicy policy_;
  std::deque<core::PolicyAction> actions_;  // not executed yet
  bool is_executing_ = false;
  bool is_finished_ = false;       // the result is fixed
  bool is_shutting_down_ = false;  // and the membership's shutdown was requested
  AgentResult result_;

  std::optional<core::RendezvousReady> ready_;  // this node has not begun to join yet
  std::string bind_host_;  // where the workers' store listens; "": every interface
  // Workers use the store at the endpoint: this process's coordinator empties it for each round.
  bool is_store_at_endpoint_ = false;
  std::shared_ptr<const RoundInfo> round_;
  // The worker of this node that was killed with a verdict, and the marks of its exit.
  struct Killed {
    int local_rank = -1;  // -1: none
    std::string verdict = {};
    bool ends_job = false;
    bool is_unreachable = false;
  };
  Killed killed_;
  void kill_worker(Killed killed);
  bool has_sent_finish_ = false;              // of the first worker of the round that exited with 0
  std::vector<core::WorkerEvidence> stacks_;  // the last ones of this node's workers
  bool may_hold_stop_ = false;                // no stop of the round's workers was requested yet
  std::optional<core::StopGroup> held_stop_;  // waits for stacks
  core::DrainMember drain_;
  core::RoundMarks marks_;
  RoundStore store_;
  ReachProbe probe_;
  WorkerOutput output_;
  const std::string host_name_;
  bool hosts_coordinator_ = false;
  std::shared_ptr<const CoordinatorInfo> coordinator_;  // null: there is none, or not known yet
  std::optional<OutputCapture> capture_;
  FailureInquiry inquiry_;
  bool is_stop_for_failure_ = false;     // of the current round's workers
  bool is_stop_for_loss_ = false;        // a node was lost
  std::vector<ObservedWorker> workers_;  // of the round
  bool is_watched_ = false;              // the coordinator requested reports of them
  os::EventLoop::Timer watch_timer_;
  bool is_opening_files_ = false;  // the round's workers start when its files exist
  os::EventLoop::Timer deadline_;  // of the policy
  os::EventLoop::Timer join_timer_;
  os::EventLoop::Timer shutdown_timer_;
  os::EventLoop::Timer drain_timer_;
  os::EventLoop::Timer held_stop_timer_;
  std::unique_ptr<LivenessPort> liveness_port_;  // null: no coordinator asks for it
  std::unique_ptr<Supervisor> supervisor_;
  std::unique_ptr<Membership> membership_;
};

}  // namespace elastic::host
