#pragma once

// The thread on which one node reads and writes the shared state of its job, its heartbeats
// included: every call of the backend is made here.
//
// Every member may be called from any thread. The sink is called on this thread.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/rendezvous/shared_state_machine.h"
#include "elastic/rendezvous_options.h"
#include "host/membership/membership.h"
#include "os/loop/notifier.h"

namespace elastic::host {

class BackendThread {
 public:
  using Sink = std::function<void(MembershipEvent)>;

  // `on_flushed` is called once, after flush(), when nothing is left to be written.
  static Result<std::unique_ptr<BackendThread>> start(const RendezvousOptions& options, Sink sink,
                                                      std::function<void()> on_flushed);
  BackendThread(const BackendThread&) = delete;
  BackendThread& operator=(const BackendThread&) = delete;
  ~BackendThread();  // waits for a call of the backend that has begun

  void send(const NodeStatement& statement);
  // Leaves a job that is over, and reports when every statement was written.
  void flush();
  int waiting_nodes() const { return waiting_nodes_.load(std::memory_order_relaxed); }

 private:
  BackendThread(const RendezvousOptions& options, os::Notifier notifier, Sink sink,
                std::function<void()> on_flushed);
  // Used by the thread alone.
  void run();
  bool take_requests();
  void poll_state();
  bool must_give_up(const Status& fault);
  void give_up_if_not_ok(const Status& status);
  void lose(int exit_code, const Status& why);
  void deliver(const std::vector<RendezvousAction>& delivered);
  void deliver_ready();
  void log_timings();
  void log_outage(const Status& cause, Instant now);
  void log_recovery(Instant now);
  void finish_flush();
  void wait();
  void wake();
  std::string published_address() const;

  // Constant after construction.
  const RendezvousOptions options_;
  const std::string store_name_;
  const Sink sink_;
  const std::function<void()> on_flushed_;

  os::Notifier notifier_;
  std::atomic<int> waiting_nodes_ = 0;
  std::mutex mutex_;
  std::vector<NodeStatement> outgoing_;  // guarded by mutex_
  bool is_flush_requested_ = false;      // guarded by mutex_
  bool is_stop_requested_ = false;       // guarded by mutex_

  // Used by the thread alone.
  core::SharedStateMachine member_;
  NodeId self_;
  bool is_ready_delivered_ = false;
  bool is_lost_ = false;
  bool has_left_ = false;
  bool is_flushing_ = false;
  bool is_flush_reported_ = false;
  bool is_watched_ = true;        // until the backend reports that it cannot push changes
  std::string reported_timings_;  // how the job's timings differ, as logged last
  std::optional<Instant> outage_began_;
  Instant next_log_;

  std::thread thread_;  // last: it uses the other members
};

}  // namespace elastic::host
