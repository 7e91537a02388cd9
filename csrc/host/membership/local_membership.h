#pragma once

// The coordinator of a job with one node: core::Job runs in the agent's process, without a network.
// Observers connect to a Unix-domain socket, if there is one.
//
// Loop thread only.

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/job/job.h"
#include "host/coordinator/observer_desk.h"
#include "host/membership/local_observers.h"
#include "host/membership/membership.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

class LocalMembership final : public Membership {
 public:
  struct Options {
    JobSettings settings;
    std::string address;
    std::string job_id = {};
    std::string observer_socket = {};  // "": nobody can observe the job
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
  void execute(core::drain_action::Announce& action) { receive(drain::News{action.text}); }
  void execute(core::drain_action::Inform& action) { observers_.reply(action); }
  void tick();
  void receive(MembershipEvent event);
  void deliver();
  ObserverDesk::Job observed_job();
  ObservedJob facts();
  void listen(const std::string& path);

  os::EventLoop* const loop_;
  const std::string id_;
  const Sink sink_;
  core::Job job_;
  std::deque<MembershipEvent> received_;
  std::function<void()> drained_;
  ObserverDesk observers_;
  std::unique_ptr<LocalObservers> sessions_;  // null: there is no socket
  NodeId node_;                               // that has joined
  bool is_waiting_ = false;                   // from its join until a round or the end
  os::EventLoop::Timer delivery_;
  os::EventLoop::Timer tick_;
};

}  // namespace elastic::host
