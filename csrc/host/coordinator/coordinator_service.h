#pragma once

// A coordinator on a loop that its owner runs: sessions and jobs behind a listening socket, which
// also serves the users' key-value store.
//
// elastic::Coordinator runs it on a separate thread. Loop thread only.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/session/session_wire.h"
#include "elastic/coordinator.h"
#include "elastic/status.h"
#include "host/base/admission.h"
#include "host/base/memory_return.h"
#include "host/base/tokens.h"
#include "host/coordinator/coordinator_job.h"
#include "host/coordinator/session_peer.h"
#include "host/store/store_service.h"
#include "os/loop/registration.h"

namespace elastic::host {

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

// How long workers may connect to the store at the coordinator's port after the last session of
// their host has ended: its agent may be about to resume.
inline constexpr Duration kStoreLinger = std::chrono::minutes(1);

class CoordinatorService {
 public:
  // Binds and listens; see Coordinator::start for the errors. `loop` outlives the service.
  static Result<std::unique_ptr<CoordinatorService>> open(os::EventLoop* loop,
                                                          const CoordinatorOptions& options,
                                                          CoordinatorHost host = {});
  CoordinatorService(const CoordinatorService&) = delete;
  CoordinatorService& operator=(const CoordinatorService&) = delete;
  ~CoordinatorService();  // closes every session and connection

  std::uint16_t port() const { return store_->port(); }
  const std::string& host() const { return store_->host(); }
  CoordinatorStats stats() const;  // any thread
  std::string describe() const;

  // Continues a job whose coordinator was lost. `self`: the node in whose process this is.
  // REQUIRES: the job is the host's own
  Status succeed(const succession::StartCoordinator& start, const NodeId& self);
  // The coordinator of the host's job, to which a standby directs nodes: host:port.
  void direct_to(const std::string& address);
  // An action of the host's succession machine that concerns its job here: InForce, Inform,
  // MajorityLost, MajorityRegained, StopCoordinator, Displaced, Follow.
  void on_succession(const succession::Action& action) { on_succession(host_job_, action); }

  // As Coordinator::close, but first asks other nodes to take unfinished jobs over; then calls
  // `done` from the loop, which may destroy the service. A service that is destroyed before that
  // does not call it. `end`: sent to the nodes of jobs that have not ended.
  void drain(Duration limit, std::function<void()> done, const CoordinatorEnd& end = {});

 private:
  CoordinatorService(os::EventLoop* loop, const CoordinatorOptions& options, CoordinatorHost host,
                     std::unique_ptr<StoreService> store, std::shared_ptr<Tokens> tokens);

  // ---- Which process coordinates a job, and what keeps its record
  // (coordinator_service_succession.cc, which alone knows the types of that).

  struct Succession;
  std::shared_ptr<Succession> make_succession(bool is_standby, std::shared_ptr<Tokens> tokens);
  // Where a client's session with its job begins.
  struct Placement {
    // At another process: the client is sent there, or without an address continues its search.
    // nullopt: here.
    std::optional<succession::Incumbent> elsewhere = {};
    Duration hold{};  // if the client begins the job: CoordinatorJob::hold_start()
  };
  Placement place_node(const session::ClientHello& hello);
  // `job`: null: it is not coordinated here.
  Placement place_observer(const session::ClientHello& hello, const CoordinatorJob* job);
  Status greet_coordinator(SessionPeer* peer, const session::ClientHello& hello);
  // This process coordinates the job from now on, or no longer.
  SuccessionFeed begin_succession(const std::string& id);
  void end_succession(const std::string& id);
  // From the state file, and to it, if there is one.
  Status load();
  void store_jobs();
  void store_jobs_later();
  std::string encode() const;
  void on_succession(const std::string& job_id, const succession::Action& action);
  void follow(const std::string& id, CoordinatorJob* job, const succession::BeginRecord&);
  void follow(const std::string& id, CoordinatorJob* job, const succession::InForce& action);
  void follow(const std::string& id, CoordinatorJob* job, const succession::Inform& action);
  void follow(const std::string& id, CoordinatorJob* job, const succession::MajorityLost&);
  void follow(const std::string& id, CoordinatorJob* job, const succession::MajorityRegained&);
  void follow(const std::string& id, CoordinatorJob* job, const succession::StopCoordinator& stop);
  void follow(const std::string& id, CoordinatorJob* job, const succession::Displaced& action);
  void follow(const std::string& id, CoordinatorJob* job, const succession::Log& action);
  template <typename OfAnother>
  void follow(const std::string&, CoordinatorJob*, const OfAnother&) {}
  void displace_job(const std::string& id, const succession::Incumbent& by);

  void adopt(os::DetachedStream connection);
  Status on_message(SessionPeer* peer, session::ClientMessage& message);
  Status greet(SessionPeer* peer, const session::ClientHello& hello);
  Status greet_node(SessionPeer* peer, const session::ClientHello& hello);
  Status greet_observer(SessionPeer* peer, const session::ClientHello& hello);
  CoordinatorJob* find_job(std::string_view id) const;
  CoordinatorJob* find_observed_job(const std::string& id);
  std::string describe_neighbours(const CoordinatorJob& of) const;
  bool has_nodes() const { return peers_.size() > num_observers_; }
  void log_fault(const std::string& message);
  Result<CoordinatorJob*> begin_job(const std::string& id, const std::string& beginner,
                                    Duration hold);
  void remove_idle_job(const std::string& id);
  void direct(SessionPeer* peer, const succession::Incumbent& incumbent);
  void remove_job(const std::string& id, const std::string& why);
  void go_on_handing_over();
  bool is_any_handed_over() const;
  bool may_hand_over(const CoordinatorJob& job) const;
  void end_jobs();
  void on_stall(const os::Stall& stall);
  void mark_changed(CoordinatorJob* job);
  void process_pending();
  void publish_job_changes();
  void remove(SessionPeer* peer);
  bool all_jobs_are_over() const;
  std::size_t bytes_held() const;
  void finish_drain();
  void finish_drain_without_nodes();

  os::EventLoop& loop_;
  const CoordinatorOptions options_;
  const std::string host_job_;  // the job whose agent runs this; "": a separate program
  const SuccessionFeed host_feed_;
  const std::unique_ptr<StoreService> store_;
  const std::uint64_t incarnation_;
  CoordinatorContext context_;
  SessionContext sessions_;
  PendingConnections pending_;
  RefusalLog refusals_;
  AddressFence fence_{kStoreLinger};
  std::map<std::string, std::unique_ptr<CoordinatorJob>, std::less<>> jobs_;
  std::uint64_t jobs_begun_ = 0;
  // Removed jobs, until the end of the iteration: their members may be running.
  std::vector<std::unique_ptr<CoordinatorJob>> removed_;
  const std::shared_ptr<Succession> succession_;  // not shared: destroyed without its definition
  std::vector<std::unique_ptr<SessionPeer>> peers_;
  std::size_t num_observers_ = 0;  // of peers_
  std::vector<CoordinatorJob*> has_changes_;
  Counter num_sessions_, sessions_total_, sessions_rejected_, num_jobs_;

  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);

  MemoryReturn memory_return_;
  std::size_t faults_ = 0;  // in the interval that ends then
  Instant faults_end_;
  Duration drain_limit_{};
  CoordinatorEnd end_;                      // of the drain
  bool is_handing_over_ = false;            // before the drain's other steps
  Instant returns_until_ = Instant::min();  // members that are to learn of the successor of a job
  std::function<void()> on_drained_;        // set while draining
  os::StallWatch stall_watch_;
  os::Timer processing_timer_;
  os::Timer drain_timer_;
};

}  // namespace elastic::host
