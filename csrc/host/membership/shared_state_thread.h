#pragma once

// The thread on which one node looks at the shared state of its job: all calls of the backend come
// from here, the node's heartbeats with them.
//
// Any member from any thread. What it has to tell is told on its own thread.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/rendezvous/shared_member.h"
#include "elastic/rendezvous_options.h"
#include "host/membership/membership.h"
#include "os/loop/notifier.h"

namespace elastic::host {

class SharedStateThread {
 public:
  using Sink = std::function<void(MembershipEvent)>;

  // `on_settled` is called once, when settle() was and nothing is left to be written.
  static Result<std::unique_ptr<SharedStateThread>> start(const RendezvousOptions& options,
                                                          Sink sink,
                                                          std::function<void()> on_settled);
  SharedStateThread(const SharedStateThread&) = delete;
  SharedStateThread& operator=(const SharedStateThread&) = delete;
  ~SharedStateThread();  // waits for a call of the backend that has begun

  void say(const NodeStatement& statement);
  // Leaves a job that is over, and tells when everything that was said is written.
  void settle();
  int waiting_nodes() const { return waiting_nodes_.load(std::memory_order_relaxed); }

 private:
  SharedStateThread(const RendezvousOptions& options, os::Notifier notifier, Sink sink,
                    std::function<void()> on_settled);
  // The thread's own.
  void run();
  bool take_orders();
  void look();
  bool must_give_up(const Status& fault);
  void give_up_if_not_ok(const Status& status);
  void lose(int exit_code, const Status& why);
  void tell(const std::vector<RendezvousAction>& told);
  void tell_ready();
  void note_outage(const Status& cause, Instant now);
  void note_recovery(Instant now);
  void settle_if_possible();
  void wait();
  void wake();
  std::string published_address() const;

  // Constant after construction.
  const RendezvousOptions options_;
  const std::string store_name_;
  const Sink sink_;
  const std::function<void()> on_settled_;

  os::Notifier notifier_;
  std::atomic<int> waiting_nodes_ = 0;
  std::mutex mutex_;
  std::vector<NodeStatement> said_;  // guarded by mutex_
  bool shall_settle_ = false;        // guarded by mutex_
  bool shall_stop_ = false;          // guarded by mutex_

  // The thread's own.
  core::SharedMember member_;
  NodeId self_;
  bool was_ready_told_ = false;
  bool is_lost_ = false;
  bool has_left_ = false;
  bool is_settling_ = false;
  bool was_settled_told_ = false;
  bool is_watched_ = true;  // until the backend says that it cannot
  std::optional<Instant> outage_began_;
  Instant next_note_;

  std::thread thread_;  // last: it uses the others
};

}  // namespace elastic::host
