#pragma once

// A coordinator on a loop that its owner runs: sessions and jobs behind a listening socket, which
// also serves the users' key-value store.
//
// elastic::Coordinator runs it on a separate thread. Loop thread only.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/session/session_wire.h"
#include "core/succession/succession_machine.h"
#include "elastic/coordinator.h"
#include "elastic/status.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

// Passes events to the succession machine of a job, which may run on another loop. Its actions come
// back later, never inside the call. Empty: the job has one voter, and ends with its coordinator
// unless that is started again.
using SuccessionFeed = std::function<void(succession::Event)>;

// Why a coordinator ends before its jobs.
struct CoordinatorEnd {
  std::string reason = {};  // "": no reason is sent
  bool gave_up = false;     // too few nodes joined the job of its host
};

// The agent in whose process a coordinator runs.
struct CoordinatorHost {
  std::string job = {};  // "": a separate program
  // To the succession machine of that job, which runs in the agent. Empty: the job has one voter.
  // Called on the coordinator's loop.
  SuccessionFeed feed = {};
  // It coordinates no job until succeed(), and directs the nodes of that job to its coordinator.
  bool is_standby = false;
  // Voters keep no larger record.
  std::size_t record_bytes_max = reg::kContentBytesMax;
};

class CoordinatorService {
 public:
  // Binds and listens; see Coordinator::start for the errors. `loop` outlives the service.
  static Result<std::unique_ptr<CoordinatorService>> open(os::EventLoop* loop,
                                                          const CoordinatorOptions& options,
                                                          CoordinatorHost host = {});
  CoordinatorService(const CoordinatorService&) = delete;
  CoordinatorService& operator=(const CoordinatorService&) = delete;
  ~CoordinatorService();  // closes every session and connection

  std::uint16_t port() const;
  const std::string& host() const;
  CoordinatorStats stats() const;  // any thread
  std::string describe() const;

  // Continues a job whose coordinator was lost. `self`: the node in whose process this is.
  // REQUIRES: the job is that of the host
  Status succeed(const succession::StartCoordinator& start, const NodeId& self);
  // Keeps a job that its ending coordinator has sent here (OfferedJob). Nodes that were not sent
  // here are turned away until it begins. True: it has begun, since no other node can have been
  // asked. `on_named`: called, on the loop, when a node that was sent here has begun it.
  // REQUIRES: the job is that of the host, and does not run here
  Result<bool> keep_offer(const succession::StartCoordinator& start, const NodeId& self,
                          std::function<void()> on_named);
  // The ending coordinator has named this process. Without an offer nothing happens.
  void begin_offer();
  // It has named another one, or none. False: the job has begun here, or was never offered.
  bool drop_offer();
  // The coordinator of the host's job, to which a standby directs nodes: host:port.
  void direct_to(const std::string& address);
  // An action of the host's succession machine that concerns its job here: InForce, Inform,
  // MajorityLost, MajorityRegained, StopCoordinator, Displaced, Follow.
  void on_succession(const succession::Action& action);
  // The former coordinator of the host's job, which has handed it over, names nodes that left.
  void note_left(const std::vector<session::LateLeave>& left);

  // As Coordinator::close, but first asks other nodes to take unfinished jobs over; then calls
  // `done` from the loop, which may destroy the service. A service that is destroyed before that
  // does not call it. `end`: sent to the nodes of jobs that have not ended.
  void drain(Duration limit, std::function<void()> done, const CoordinatorEnd& end = {});

 private:
  class Impl;
  explicit CoordinatorService(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace elastic::host
