#pragma once

// A node's membership over a state that all nodes share in a compare-and-set store.
//
// Loop thread only. The rules are in core/rendezvous/shared_state_machine.h; this class connects
// them to a RendezvousBackend, whose calls may block and are made on a separate thread
// (host/membership/backend_thread.h).

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "elastic/rendezvous_options.h"
#include "host/membership/backend_thread.h"
#include "host/membership/membership.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

class SharedStateMembership final : public Membership {
 public:
  // `loop` outlives the membership. REQUIRES: options have a backend, settings.validate().ok()
  static Result<std::unique_ptr<Membership>> open(os::EventLoop* loop,
                                                  const RendezvousOptions& options, Sink sink);
  SharedStateMembership(const SharedStateMembership&) = delete;
  SharedStateMembership& operator=(const SharedStateMembership&) = delete;
  ~SharedStateMembership() override;  // waits for a call of the backend, for a short time

  // If the backend does not return from a call, the membership ends with MembershipLost: within the
  // join timeout for a join, within store_grace later on.
  void send(const NodeStatement& statement) override;
  int waiting_nodes() const override { return thread_->waiting_nodes(); }
  void drain(Duration limit, std::function<void()> done) override;

 private:
  SharedStateMembership(os::EventLoop* loop, const RendezvousOptions& options, Sink sink);
  void deliver(const MembershipEvent& event);
  void await_answer();
  void watch_call(std::optional<Duration> allowed);
  void give_up(int exit_code, const std::string& limit);
  void finish_drain();

  os::EventLoop* const loop_;
  const Duration join_timeout_;
  const Duration store_grace_;
  const std::string store_name_;
  const Sink user_sink_;
  // Shared with the work that the thread has posted, which may outlive the membership; then empty.
  const std::shared_ptr<Sink> sink_;
  const std::shared_ptr<std::function<void()>> on_flushed_;
  const std::shared_ptr<std::function<void(std::optional<Duration>)>> on_call_;
  bool is_ready_ = false;
  std::function<void()> on_drained_;
  os::EventLoop::Timer drain_timer_;
  os::EventLoop::Timer answer_timer_;  // a call of the backend may never return
  os::EventLoop::Timer call_timer_;
  std::unique_ptr<BackendThread> thread_;
};

}  // namespace elastic::host
