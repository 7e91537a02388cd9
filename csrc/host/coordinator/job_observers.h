#pragma once

// The observers of one job: the snapshots that they are sent, and their requests. Loop thread only.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/drain/drain_machine.h"
#include "core/gate/host_requests.h"
#include "core/session/session_wire.h"
#include "elastic/observer.h"
#include "host/coordinator/session_peer.h"
#include "os/loop/registration.h"

namespace elastic::host {

// The coordinator has no job of this id; "": it has several, or none.
Status no_such_job(const std::string& id, const std::vector<std::string>& jobs);

// What each observer has received, and what it receives next.
//
// Exists while the job has an observer. The nodes are copied into a table at most every
// kRefreshDelay, and less often if that takes long, so that observers use at most one hundredth of
// a core. Each entry has the number of its last change; an observer receives the entries that
// changed since its last pass, one page for each ObserverReady. So a slow observer skips states and
// needs no buffer.
class JobSnapshots {
 public:
  // What the job provides. `watch_workers` requests or ends the nodes' Workers messages.
  struct Source {
    std::function<ObservedJob()> facts;
    std::function<std::vector<ObservedNode>()> nodes;  // by id
    std::function<void(bool is_on)> watch_workers;
  };

  JobSnapshots(os::EventLoop* loop, Source source);
  JobSnapshots(const JobSnapshots&) = delete;
  JobSnapshots& operator=(const JobSnapshots&) = delete;

  void add(SessionPeer* peer, const session::ObserverRequest& request);
  void remove(SessionPeer* peer);
  bool empty() const { return observers_.empty(); }
  bool watches_workers() const { return num_watching_ > 0; }

  Status on_message(SessionPeer* peer, const session::ClientMessage& message);
  void job_changed();
  void on_report(const NodeId& node, WorkerReport report);
  // The job or the coordinator ends: the observers receive the final facts and the reason.
  void end(const std::string& reason);

 private:
  struct Entry {
    ObservedNode node;
    std::uint64_t changed = 0;
    bool is_removed = false;
  };
  struct Observer {
    SessionPeer* peer = nullptr;
    bool has_workers = false;
    bool is_ready = true;          // it has processed the last page
    bool has_table = false;        // it has received all nodes once
    std::uint64_t facts_sent = 0;  // the number of the newest facts that it received
    std::uint64_t has_until = 0;   // it has all changes up to this number
    // The current pass: the number of the last change when it began, and the last node that was
    // sent.
    std::optional<std::uint64_t> pass_until = {};
    std::optional<NodeId> position = {};
  };

  void request_refresh();
  void refresh();
  void update_table();
  void forget_removed();
  void serve(Observer* observer);
  void send_page(Observer* observer);
  void send_beats(Observer* observer);
  Observer* find(const SessionPeer* peer);

  os::EventLoop& loop_;
  const Source source_;
  std::vector<Observer> observers_;
  int num_watching_ = 0;  // observers with workers
  std::map<NodeId, Entry> table_;
  std::map<NodeId, WorkerReport> reports_;
  std::uint64_t changes_ = 0;  // numbers the changes of table_
  ObservedJob facts_;
  std::uint64_t facts_number_ = 0;
  bool is_changed_ = true;  // since the last refresh
  Instant next_refresh_;
  os::Timer refresh_timer_;
  os::Timer beats_timer_;
};

// The observers and their requests: snapshots, stacks, and a stop at one step.
class JobObservers {
 public:
  // What the job provides. A request has a number, with which reply() follows, perhaps at once.
  struct Job {
    JobSnapshots::Source source;
    std::function<void(std::uint64_t)> request_stacks;
    std::function<void(const session::RequestDrain&, std::uint64_t)> request_drain;
    std::function<void(const session::RequestHost&, std::uint64_t)> request_host;
  };

  JobObservers(os::EventLoop* loop, Job job) : loop_(loop), job_(std::move(job)) {}
  JobObservers(const JobObservers&) = delete;
  JobObservers& operator=(const JobObservers&) = delete;

  // A session that observes the job. It is not a node's.
  void add(SessionPeer* peer, const session::ObserverRequest& request);
  void remove(SessionPeer* peer);
  // An error ends the session.
  Status on_message(SessionPeer* peer, const session::ClientMessage& message);
  void reply(std::uint64_t request, std::string stacks);
  void reply(const core::drain_action::Inform& answer);
  void reply(const core::gate_action::Inform& answer);
  void job_changed();
  bool watches_workers() const { return snapshots_ != nullptr && snapshots_->watches_workers(); }
  // REQUIRES: watches_workers()
  void on_report(const NodeId& node, WorkerReport report);
  // Sends the final facts and the reason to the observers, and detaches them.
  void end(const std::string& reason);

 private:
  Status on(SessionPeer* peer, const session::RequestDrain& request);
  Status on(SessionPeer* peer, const session::RequestHost& request);
  // Why it may not change the job now; "": it may.
  std::string why_refused(const SessionPeer& peer) const;
  std::size_t num_asked(const SessionPeer* peer) const;

  os::EventLoop* const loop_;
  const Job job_;
  std::unique_ptr<JobSnapshots> snapshots_;             // null: there are none
  std::map<std::uint64_t, SessionPeer*> stacks_asked_;  // observers that wait for stacks
  std::map<std::uint64_t, SessionPeer*> drain_asked_;   // observers that wait for the agreed step
  std::map<std::uint64_t, SessionPeer*> host_asked_;    // for a change about a host
  std::uint64_t requests_ = 0;
};

}  // namespace elastic::host
