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

#include "core/session/coordinator_loss.h"
#include "core/session/session_wire.h"
#include "core/succession/admission.h"
#include "core/succession/succession_events.h"
#include "elastic/coordinator.h"
#include "elastic/status.h"
#include "host/base/admission.h"
#include "host/base/memory_return.h"
#include "host/base/settled_line.h"
#include "host/coordinator/coordinator_job.h"
#include "host/coordinator/session_peer.h"
#include "host/store/store_service.h"
#include "host/succession/file_keeper.h"
#include "host/succession/job_voter.h"
#include "os/file/file.h"
#include "os/loop/registration.h"

namespace elastic::host {

// The succession machines of jobs whose agents all run in other processes. They propose records and
// have no voter port.
class JobVoters {
 public:
  using Sink = std::function<void(const std::string& job, const succession::Action&)>;

  // `sink` is called from the loop, never inside of a feed. `loop` outlives the object.
  JobVoters(os::EventLoop* loop, int voters, std::shared_ptr<Tokens> tokens,
            std::function<void(std::string_view)> log, Sink sink)
      : loop_(loop),
        voters_(voters),
        tokens_(std::move(tokens)),
        log_(std::move(log)),
        sink_(std::move(sink)) {}
  JobVoters(const JobVoters&) = delete;
  JobVoters& operator=(const JobVoters&) = delete;

  // A machine for the job, whose coordinator listens at this address. Empty: the job has one voter.
  SuccessionFeed open(const std::string& job, const std::string& address);
  void close(const std::string& job) { jobs_.erase(job); }
  // Logs what the job survives, when that has changed and settled.
  void log_survival(const std::string& job);

 private:
  struct Job {
    std::unique_ptr<JobVoter> voter;
    std::unique_ptr<SettledLine> survival;
  };

  os::EventLoop* const loop_;
  const int voters_;
  const std::shared_ptr<Tokens> tokens_;
  const std::function<void(std::string_view)> log_;
  const Sink sink_;
  std::map<std::string, Job, std::less<>> jobs_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
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
  // Keeps a job that its ending coordinator has sent here (OfferedJob). Nodes that were not sent
  // here are turned away until it begins. True: it has begun, since no other node can have been
  // asked. `on_named`: called, on the loop, when a node that was sent here has begun it.
  // REQUIRES: the job is the host's own, and does not run here
  Result<bool> keep_offer(const succession::StartCoordinator& start, const NodeId& self,
                          std::function<void()> on_named);
  // The ending coordinator has named this process. Without an offer nothing happens.
  void begin_offer();
  // It has named a different process, or none. False: the job has begun here, or was never offered.
  bool drop_offer();
  // The coordinator of the host's job, to which a standby directs nodes: host:port.
  void direct_to(const std::string& address) { admission_.set_own({.address = address}); }
  // An action of the host's succession machine that concerns its job here: InForce, Inform,
  // MajorityLost, MajorityRegained, StopCoordinator, Displaced, Follow.
  void on_succession(const succession::Action& action) { on_succession(host_job_, action); }
  // The former coordinator of the host's job, which has handed it over, names nodes that left.
  void note_left(const std::vector<session::LateLeave>& left);

  // As Coordinator::close, but first asks other nodes to take unfinished jobs over; then calls
  // `done` from the loop, which may destroy the service. A service that is destroyed before that
  // does not call it. `end`: sent to the nodes of jobs that have not ended.
  void drain(Duration limit, std::function<void()> done, const CoordinatorEnd& end = {});

 private:
  CoordinatorService(os::EventLoop* loop, const CoordinatorOptions& options, CoordinatorHost host,
                     std::unique_ptr<StoreService> store, std::shared_ptr<Tokens> tokens);
  Status load();
  void on_succession(const std::string& job_id, const succession::Action& action);
  void adopt(os::DetachedStream connection);
  Status on_message(SessionPeer* peer, session::ClientMessage& message);
  Status greet(SessionPeer* peer, const session::ClientHello& hello);
  Status greet_node(SessionPeer* peer, const session::ClientHello& hello);
  Status greet_coordinator(SessionPeer* peer, const session::ClientHello& hello);
  Status greet_observer(SessionPeer* peer, const session::ClientHello& hello);
  static std::optional<succession::Admission::Here> standing_of(const CoordinatorJob& job);
  CoordinatorJob* find_job(std::string_view id) const;
  CoordinatorJob* find_observed_job(const std::string& id);
  std::string describe_neighbours(const CoordinatorJob& of) const;
  bool has_nodes() const { return peers_.size() > num_observers_; }
  void log_fault(const std::string& message);
  Result<CoordinatorJob*> begin_job(const std::string& id, const std::string& beginner,
                                    Duration hold);
  void remove_idle_job(const std::string& id);
  SuccessionFeed feed_of(const std::string& id);
  void direct(SessionPeer* peer, const succession::Incumbent& incumbent);
  void stop_job(const std::string& id, const succession::StopCoordinator& stop);
  void turn_on(const std::string& id);
  void displace_job(const std::string& id, const succession::Incumbent& by);
  void remove_job(const std::string& id, const std::string& why);
  void go_on_handing_over();
  bool is_any_handed_over() const;
  bool may_offer(const CoordinatorJob& job) const;
  void hurry_hand_over();
  void end_jobs();
  void on_stall(const os::Stall& stall);
  void mark_changed(CoordinatorJob* job);
  void process_pending();
  void publish_job_changes();
  void remove(SessionPeer* peer);
  std::string encode() const;
  bool all_jobs_are_over() const;
  std::size_t bytes_held() const;
  void finish_drain();
  void finish_drain_without_nodes();

  os::EventLoop& loop_;
  const CoordinatorOptions options_;
  const std::string host_job_;  // the job whose agent runs this; "": a separate program
  const SuccessionFeed host_feed_;
  succession::Admission admission_;
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
  // The host's job, before this process may coordinate it.
  std::optional<core::OfferedJob> offer_;
  std::function<void()> on_named_;
  JobVoters voters_;
  std::vector<std::unique_ptr<SessionPeer>> peers_;
  std::size_t num_observers_ = 0;  // of peers_
  std::vector<CoordinatorJob*> has_changes_;
  Counter num_sessions_, sessions_total_, sessions_rejected_, num_jobs_;

  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::optional<os::FileLock> state_lock_;   // of the state file
  std::unique_ptr<FileKeeper> file_keeper_;  // null: without a state file

  MemoryReturn memory_return_;
  std::size_t faults_ = 0;  // in the interval that ends then
  Instant faults_end_;
  Duration drain_limit_{};
  CoordinatorEnd end_;                      // of the drain
  bool is_handing_over_ = false;            // before the drain's other steps
  Instant hand_over_until_;                 // at the latest
  Instant returns_until_ = Instant::min();  // members that are to learn of the successor of a job
  std::function<void()> on_drained_;        // set while draining
  os::StallWatch stall_watch_;
  os::Timer processing_timer_;
  os::Timer drain_timer_;
};

}  // namespace elastic::host
