#pragma once

// One node: carries out what the policy machine decides, and tells it what happens.
//
// Loop thread only. Agent wraps it with a thread and a queue.

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/agent/agent_policy.h"
#include "elastic/agent.h"
#include "elastic/status.h"
#include "host/membership/membership.h"
#include "host/store/round_store.h"
#include "host/workers/output_capture.h"
#include "host/workers/supervisor.h"
#include "host/workers/worker_output.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

class AgentRunner {
 public:
  // Told of every event in order; the last one is kFinished. Must not destroy the node.
  using Sink = std::function<void(AgentEvent)>;

  // Starts the guardian and goes to the rendezvous. `loop` outlives the node.
  static Result<std::unique_ptr<AgentRunner>> start(os::EventLoop* loop,
                                                    const AgentOptions& options, Sink sink);
  AgentRunner(const AgentRunner&) = delete;
  AgentRunner& operator=(const AgentRunner&) = delete;
  ~AgentRunner();  // kills what runs, and removes the temporary directory

  void request_stop(int signal);
  // Final once kFinished was told.
  const AgentResult& result() const { return result_; }

 private:
  AgentRunner(os::EventLoop* loop, const AgentOptions& options, Sink sink);
  void on_worker_event(const WorkerEvent& event);
  void on_worker_exit(const WorkerEvent& event);
  void on_membership_event(const MembershipEvent& event);
  void on_membership_ready(const MembershipReady& ready);
  void on_round(rdzv::Round round);
  void end_round();
  void feed(const core::PolicyEvent& event);
  void execute(core::PolicyAction action);
  void send(NodeStatement statement);
  bool is_endpoint_port(std::uint16_t port) const;
  Result<std::uint16_t> port_for_next_round();
  void start_group(std::shared_ptr<const RoundInfo> round);
  void start_workers(const Status& files);
  void report_starting(const std::string& log_dir);
  void cancel_start();
  WorkerCommand command_of(std::size_t local_rank) const;
  void report(AgentEvent event);
  void finish(AgentResult result);
  // When the job is over: until the others, too, have stopped their workers or were given up.
  Duration shutdown_limit() const;
  void shut_down();
  void report_finished();

  os::EventLoop* const loop_;
  const AgentOptions options_;
  const Sink sink_;

  core::AgentPolicy policy_;
  std::deque<core::PolicyAction> actions_;  // decided and not yet carried out
  bool is_executing_ = false;
  bool is_finished_ = false;       // the result is settled
  bool is_shutting_down_ = false;  // and the rendezvous is asked to let us go
  AgentResult result_;

  std::string bind_host_;  // where the workers' store listens; "": every interface
  // The workers meet at the endpoint itself: the coordinator here empties its store for each round.
  bool is_store_at_endpoint_ = false;
  std::shared_ptr<const RoundInfo> round_;
  RoundStore store_;
  WorkerOutput output_;
  const std::string host_name_;
  bool hosts_coordinator_ = false;
  std::optional<OutputCapture> capture_;
  bool is_opening_files_ = false;  // the round's workers start when its files exist
  os::EventLoop::Timer deadline_;  // of the policy
  os::EventLoop::Timer shutdown_timer_;
  std::unique_ptr<Supervisor> supervisor_;
  std::unique_ptr<Membership> membership_;
};

}  // namespace elastic::host
