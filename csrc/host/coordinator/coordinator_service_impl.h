#pragma once

// The parts of a coordinator on its loop; coordinator_service.cc has the theory of operation.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/succession/meeting.h"
#include "core/succession/offered_job.h"
#include "elastic/coordinator.h"
#include "host/auth/refusal_log.h"
#include "host/base/memory_return.h"
#include "host/base/pending_connections.h"
#include "host/coordinator/coordinator_job.h"
#include "host/coordinator/coordinator_service.h"
#include "host/coordinator/job_voters.h"
#include "host/coordinator/session_peer.h"
#include "host/coordinator/state_file.h"
#include "host/store/address_fence.h"
#include "host/store/store_peer.h"
#include "host/store/store_service.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

// How long workers may connect to the store at the coordinator's port after the last session of
// their host has ended: its agent may be about to resume.
inline constexpr Duration kStoreLinger = std::chrono::minutes(1);

// At which other hosts reach a server that is bound to this address: host:port; "": unknown.
std::string reachable_address(const std::string& host, std::uint16_t port);

class CoordinatorService::Impl {
 public:
  Impl(os::EventLoop* loop, const CoordinatorOptions& options, CoordinatorHost host,
       std::unique_ptr<StoreService> store, std::shared_ptr<TokenSource> tokens);
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl();

  Status load();
  const StoreService& store() const { return *store_; }
  CoordinatorStats stats() const;
  std::string describe() const;
  void drain(Duration limit, const CoordinatorEnd& end, std::function<void()> done);
  Status succeed(const succession::StartCoordinator& start, const NodeId& self);
  Result<bool> keep_offer(const succession::StartCoordinator& start, const NodeId& self,
                          std::function<void()> on_named);
  void begin_offer();
  bool drop_offer();
  void on_succession(const std::string& job_id, const succession::Action& action);
  void note_left(const std::vector<session::LateLeave>& left);
  void direct_to(const std::string& address) { moved_[host_job_].address = address; }
  void on_host_succession(const succession::Action& action) { on_succession(host_job_, action); }

 private:
  void adopt(os::DetachedStream connection);
  Status on_message(SessionPeer* peer, session::ClientMessage& message);
  Status greet(SessionPeer* peer, const session::ClientHello& hello);
  Status greet_coordinator(SessionPeer* peer, const session::ClientHello& hello);
  Status greet_observer(SessionPeer* peer, const session::ClientHello& hello);
  CoordinatorJob* find_observed_job(const std::string& id);
  std::string describe_neighbours(const CoordinatorJob& of) const;
  bool has_nodes() const { return peers_.size() > num_observers_; }
  void log_fault(const std::string& message);
  Result<CoordinatorJob*> find_or_add_job(const std::string& id, const std::string& beginner);
  bool remove_idle_job(const std::string& beginner);
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
  void on_stall(const os::EventLoop::Stall& stall);
  void mark_changed(CoordinatorJob* job);
  void process_pending();
  void publish_job_changes();
  void remove(SessionPeer* peer);
  std::string encode() const;
  void store_state();
  bool all_jobs_are_over() const;
  std::size_t bytes_held() const;
  void finish_drain_without_nodes();
  void finish_drain();

  os::EventLoop& loop_;
  const CoordinatorOptions options_;
  const std::string host_job_;  // the job whose agent runs this; "": a separate program
  const SuccessionFeed host_feed_;
  const bool is_standby_;
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
  // Jobs that this process coordinated: their nodes are directed to the successor.
  std::map<std::string, succession::Incumbent, std::less<>> moved_;
  // The host's job, before this process may coordinate it.
  std::optional<succession::OfferedJob> offer_;
  std::function<void()> on_named_;
  // Elected coordinators that run elsewhere, of jobs that this process does not coordinate.
  succession::AnnouncedCoordinators announced_;
  // Jobs that are to have several voters, as soon as the state file shows them no more.
  std::set<std::string, std::less<>> leaving_file_;
  JobVoters voters_;
  std::vector<std::unique_ptr<SessionPeer>> peers_;
  std::size_t num_observers_ = 0;  // of peers_
  std::vector<CoordinatorJob*> has_changes_;
  Counter num_sessions_, sessions_total_, sessions_rejected_, num_jobs_;

  std::string stored_;  // the last state that was given to the file
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<StateFile> state_file_;  // null: no state is kept

  MemoryReturn memory_return_;
  std::size_t faults_ = 0;  // in the interval that ends then
  Instant faults_end_;
  Duration drain_limit_{};
  CoordinatorEnd end_;                      // of the drain
  bool is_handing_over_ = false;            // before the drain's other steps
  Instant hand_over_until_;                 // at the latest
  Instant returns_until_ = Instant::min();  // members that are to learn of the successor of a job
  std::function<void()> on_drained_;        // set while draining
  os::EventLoop::StallWatch stall_watch_;
  os::EventLoop::Timer processing_timer_;
  os::EventLoop::Timer state_timer_;
  os::EventLoop::Timer drain_timer_;
};

}  // namespace elastic::host
