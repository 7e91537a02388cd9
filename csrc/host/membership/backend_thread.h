#pragma once

// The thread on which one node reads and writes the shared state of its job, its heartbeats
// included: every call of the backend is made here.
//
// Every member may be called from any thread. The sink is called on this thread. A call of the
// backend may never return: then the thread is left to itself, with everything that it uses.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/rendezvous/shared_state_machine.h"
#include "elastic/rendezvous_options.h"
#include "host/membership/membership.h"
#include "os/loop/detachable_thread.h"
#include "os/loop/notifier.h"

namespace elastic::host {

// What the thread calls, until the owner ends.
struct BackendSinks {
  std::function<void(MembershipEvent)> event;
  // Called once, after flush(), when nothing is left to be written.
  std::function<void()> flushed;
  // A call of the backend that may last this long has begun; nullopt: it has returned.
  std::function<void(std::optional<Duration> allowed)> call;
};

// The thread, and what it uses; shared with the owner.
class BackendRunner {
 public:
  BackendRunner(const RendezvousOptions& options, os::Notifier notifier, BackendSinks sinks);
  BackendRunner(const BackendRunner&) = delete;
  BackendRunner& operator=(const BackendRunner&) = delete;

  void run();  // until stop()
  void stop();
  // No sink is called from now on.
  void abandon();
  void send(const NodeStatement& statement);
  // Leaves a job that is over, and reports when every statement was written.
  void flush();
  int waiting_nodes() const { return waiting_nodes_.load(std::memory_order_relaxed); }

 private:
  // Used by the thread alone.
  void notify(const MembershipEvent& event);
  void call_begins(Duration allowed);
  void call_ends();
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
  std::mutex sinks_mutex_;  // held while a sink is called
  BackendSinks sinks_;      // guarded by sinks_mutex_; empty after abandon()

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
};

class BackendThread {
 public:
  static Result<std::unique_ptr<BackendThread>> start(const RendezvousOptions& options,
                                                      BackendSinks sinks);
  BackendThread(const BackendThread&) = delete;
  BackendThread& operator=(const BackendThread&) = delete;
  ~BackendThread();  // waits for a call of the backend that has begun, for a short time

  void send(const NodeStatement& statement) { runner_->send(statement); }
  void flush() { runner_->flush(); }
  int waiting_nodes() const { return runner_->waiting_nodes(); }

 private:
  BackendThread(std::shared_ptr<BackendRunner> runner, os::DetachableThread thread)
      : runner_(std::move(runner)), thread_(std::move(thread)) {}

  const std::shared_ptr<BackendRunner> runner_;
  os::DetachableThread thread_;
};

}  // namespace elastic::host
