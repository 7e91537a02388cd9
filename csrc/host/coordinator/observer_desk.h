#pragma once

// The observers of one job and their requests: snapshots, stacks, and a stop at one step.
//
// Loop thread only.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "core/drain/drain_machine.h"
#include "core/session/session_wire.h"
#include "host/coordinator/job_observers.h"
#include "host/coordinator/session_peer.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

class ObserverDesk {
 public:
  // What the job provides. A request has a number, with which reply() follows, perhaps at once.
  struct Job {
    JobObservers::Source source;
    std::function<void(std::uint64_t)> request_stacks;
    std::function<void(const session::RequestDrain&, std::uint64_t)> request_drain;
  };

  ObserverDesk(os::EventLoop* loop, Job job) : loop_(loop), job_(std::move(job)) {}
  ObserverDesk(const ObserverDesk&) = delete;
  ObserverDesk& operator=(const ObserverDesk&) = delete;

  // A session that observes the job. It is not a node's.
  void add(SessionPeer* peer, const session::ObserverRequest& request);
  void remove(SessionPeer* peer);
  // An error ends the session.
  Status on_message(SessionPeer* peer, const session::ClientMessage& message);
  void reply(std::uint64_t request, std::string stacks);
  void reply(const core::drain_action::Inform& answer);
  void job_changed();
  bool watches_workers() const { return observers_ != nullptr && observers_->watches_workers(); }
  // REQUIRES: watches_workers()
  void on_report(const NodeId& node, WorkerReport report);
  // Sends the final facts and the reason to the observers, and detaches them.
  void end(const std::string& reason);

 private:
  Status on(SessionPeer* peer, const session::RequestDrain& request);

  os::EventLoop* const loop_;
  const Job job_;
  std::unique_ptr<JobObservers> observers_;             // null: there are none
  std::map<std::uint64_t, SessionPeer*> stacks_asked_;  // observers that wait for stacks
  std::map<std::uint64_t, SessionPeer*> drain_asked_;   // observers that wait for the agreed step
  std::uint64_t requests_ = 0;
};

}  // namespace elastic::host
