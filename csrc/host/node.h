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

#include "core/agent_policy.h"
#include "elastic/agent.h"
#include "elastic/status.h"
#include "host/run_files.h"
#include "host/store_service.h"
#include "host/supervisor.h"
#include "host/tee.h"
#include "os/event_loop.h"

namespace elastic::host {

class Node {
 public:
  // Told of every event in order; the last one is kFinished. Must not destroy the node.
  using Sink = std::function<void(AgentEvent)>;

  // Starts the guardian and begins the first round. `loop` outlives the node.
  static Result<std::unique_ptr<Node>> start(os::EventLoop* loop, const AgentOptions& options,
                                             Sink sink);
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  ~Node();  // kills what runs, and removes the temporary directory

  void request_stop(int signal);
  // Final once kFinished was told.
  const AgentResult& result() const { return result_; }

 private:
  struct RetiredStore {
    Instant close_at;
    std::unique_ptr<StoreService> service;
  };

  Node(os::EventLoop* loop, const AgentOptions& options, Sink sink);
  void on_worker_event(const WorkerEvent& event);
  void feed(const core::PolicyEvent& event);
  void execute(core::PolicyAction action);
  void join(const core::Join& action);
  Status open_store();
  Status prepare_files();
  Status show(const std::string& path, int console, const WorkerAssignment& worker);
  void retire_store();
  void close_retired_stores();
  void start_group(const RoundInfo& round);
  WorkerCommand command_of(const RoundInfo& round, std::size_t local_rank) const;
  void report(AgentEvent event);
  void finish(AgentResult result);
  void let_go();
  void tell_finished();

  os::EventLoop* const loop_;
  const AgentOptions options_;
  const Sink sink_;

  core::AgentPolicy policy_;
  std::deque<core::PolicyAction> actions_;  // decided and not yet carried out
  bool is_executing_ = false;
  AgentResult result_;

  std::shared_ptr<const RoundInfo> round_;
  std::optional<RunFiles> run_files_;  // created with the first round
  AttemptFiles attempt_;
  std::unique_ptr<Tee> tee_;  // null while nothing is shown
  std::unique_ptr<StoreService> store_;
  std::deque<RetiredStore> retired_stores_;  // the earliest to close in front
  os::EventLoop::Timer retirement_;
  os::EventLoop::Timer ending_;
  std::unique_ptr<Supervisor> supervisor_;
};

}  // namespace elastic::host
