#pragma once

// A job with one node: its coordinator, core::Job in the agent's process, without a network.
// Observers connect to a Unix-domain socket, if there is one. Loop thread only.

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/job/job.h"
#include "core/session/session_wire.h"
#include "elastic/status.h"
#include "host/base/action_queue.h"
#include "host/base/admission.h"
#include "host/coordinator/job_observers.h"
#include "host/coordinator/session_peer.h"
#include "host/membership/membership.h"
#include "os/loop/registration.h"
#include "os/net/local_socket.h"

namespace elastic::host {

// The sessions of the observers at the socket. It serves what a coordinator serves observers, and
// no nodes. Until the first of them connects it is a listening socket only.
class LocalObservers final : public os::FdHandler {
 public:
  // `loop` and `observers` outlive it.
  static Result<std::unique_ptr<LocalObservers>> open(os::EventLoop* loop, const std::string& path,
                                                      std::string job_id, JobObservers* observers);
  LocalObservers(const LocalObservers&) = delete;
  LocalObservers& operator=(const LocalObservers&) = delete;
  ~LocalObservers() override;  // closes the sessions, and removes the socket

  std::uint64_t incarnation() const { return incarnation_; }
  const std::string& path() const { return listener_.path(); }

  void on_ready(std::uint32_t events) override;

 private:
  LocalObservers(os::EventLoop* loop, os::LocalListener listener, std::string job_id,
                 JobObservers* observers);
  void adopt(os::UniqueFd connection);
  Status on_message(SessionPeer* peer, const session::ClientMessage& message);
  Status greet(SessionPeer* peer, const session::ClientHello& hello);
  void remove(SessionPeer* peer);

  os::EventLoop& loop_;
  const std::string job_id_;
  JobObservers& observers_;
  const std::uint64_t incarnation_;
  os::LocalListener listener_;
  PendingConnections pending_;
  std::unique_ptr<SessionContext> sessions_;  // null: no observer has connected yet
  std::vector<std::unique_ptr<SessionPeer>> peers_;
  os::Timer pause_;  // armed: no descriptor is free for a connection
  os::Watch watch_;
};

class LocalMembership final : public Membership {
 public:
  struct Options {
    JobSettings settings;
    std::string address;
    std::string job_id = {};
    std::string observer_socket = {};  // "": the job cannot be observed
  };
  // `loop` outlives the membership. The job has one node, whatever the settings allow.
  LocalMembership(os::EventLoop* loop, Options options, Sink sink);
  ~LocalMembership() override;

  void send(const core::NodeStatement& statement) override;
  void send_workers(const WorkerReport& report) override;
  void report(const core::NodeReport& report) override;
  int waiting_nodes() const override { return job_.rendezvous().waiting_nodes(); }
  void drain(Duration limit, std::function<void()> done) override;

 private:
  void step(const core::JobEvent& event);
  void execute(core::RendezvousAction& action);
  void execute(core::hang_action::Ask& action) { receive(action.wanted); }
  void execute(core::hang_action::Publish& action) { receive(std::move(action.verdict)); }
  void execute(core::hang_action::Reply& action);
  void execute(core::drain_action::Send& action) { receive(action.order); }
  void execute(core::job_action::OrderCopy&) {}  // the job has one node
  void execute(core::drain_action::Announce& action) { receive(drain::News{action.text}); }
  void execute(core::drain_action::Inform& action) { observers_.reply(action); }
  void execute(gate::HostAction& action);
  void execute(gate::NetworkAction&) {}  // the job has one node
  void execute(core::gate_action::Inform& action) { observers_.reply(action); }
  void tick();
  void receive(MembershipEvent event);
  void deliver();
  JobObservers::Job observed_job();
  ObservedJob facts();
  void listen(const std::string& path);

  os::EventLoop* const loop_;
  const std::string id_;
  const Sink sink_;
  core::Job job_;
  std::deque<MembershipEvent> received_;
  bool is_delivering_ = false;
  ActionQueue<core::JobAction> actions_;
  std::function<void()> drained_;
  JobObservers observers_;
  std::unique_ptr<LocalObservers> sessions_;  // null: there is no socket
  NodeId node_;                               // that has joined
  bool is_waiting_ = false;                   // from its join until a round or the end
  os::Timer delivery_;
  os::Timer tick_;
};

}  // namespace elastic::host
