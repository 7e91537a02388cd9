#pragma once

// One job of a coordinator: the sessions of its nodes, and core::Job, which decides.
//
// Passes the messages of sessions to the machine, in the order in which they are read, and sends
// the machine's actions. Loop thread only.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/job/ended_jobs.h"
#include "core/job/job.h"
#include "core/job/job_history.h"
#include "core/rendezvous/rendezvous_machine.h"
#include "core/session/coordinator_state.h"
#include "core/session/session_wire.h"
#include "core/succession/early_joins.h"
#include "core/succession/succession_events.h"
#include "host/coordinator/end_proofs.h"
#include "host/coordinator/job_observers.h"
#include "host/coordinator/session_peer.h"
#include "host/gate/ended_hosts.h"
#include "host/gate/exclude_command.h"
#include "host/succession/job_voter.h"
#include "os/loop/registration.h"

namespace elastic::host {

// Why a coordinator ends before its jobs.
struct CoordinatorEnd {
  std::string reason = {};  // "": no reason is sent
  bool gave_up = false;     // too few nodes joined the job of its host
};

// What a job needs of its coordinator; outlives the job.
struct CoordinatorContext {
  os::EventLoop* loop = nullptr;
  std::uint16_t port = 0;
  std::string address;  // at which other hosts reach it: host:port; "": unknown
  std::uint64_t incarnation = 0;
  bool needs_token = false;
  std::size_t record_bytes_max = 0;
  Instant began;                              // when the coordinator started
  std::function<void(std::string_view)> log;  // may be empty
  std::function<void()> reset_store;
  std::function<void()> process_received;  // handles messages that were read and not yet handled
  // What waits at this coordinator for other jobs, as RendezvousMachine::set_neighbours() takes it.
  std::function<std::string(const class CoordinatorJob&)> describe_neighbours;
  std::function<void(class CoordinatorJob*)> on_changed;  // once until settle()
  std::string on_exclude;  // a command for each excluded host; "": none
  EndedHosts hosts;
  // Writes the state file, and then calls `written` on the loop; unless the job leaves the file
  // meanwhile. Empty: no file is kept.
  std::function<void(const std::string& job, std::function<void()> written)> store;
  core::EndedJobs ended;
};

class CoordinatorJob {
 public:
  // `beginner`: the address of the client whose hello began it; "": this process began it.
  CoordinatorJob(CoordinatorContext* context, std::string id, SuccessionFeed feed = {},
                 std::string beginner = {});
  CoordinatorJob(const CoordinatorJob&) = delete;
  CoordinatorJob& operator=(const CoordinatorJob&) = delete;
  ~CoordinatorJob();  // never inside a call of this object

  std::uint64_t serial = 0;  // in the order in which the service's jobs began
  // Until then its first round is not complete below max_nodes.
  void hold_start(Instant until) { start_hold_until_ = until; }

  // Restores a stored state. A node that has not resumed is not lost before store_grace.
  Status load(const core::StoredJob& stored);
  // REQUIRES: rendezvous() is not null
  core::StoredJob stored() const;

  // ---- Succession (coordinator_job_succession.cc).

  // Continues the job of a coordinator that was lost or has handed it over.
  Status succeed(const succession::StartCoordinator& start, const NodeId& self);
  // Voters, or a store, keep the record: from now on a round is sent when it is in force there.
  void begin_record();
  // The proposal is in force: what was held back is sent.
  void in_force(std::uint64_t number);
  void inform(const succession::Incumbent& incumbent);
  // The coordinator reaches a majority of its voters (the default), or does not.
  void set_majority(bool has_majority);
  // This coordinator has lost the authority over the job: its sessions end, and their nodes connect
  // to the successor.
  void stop(const succession::StopCoordinator& stop);
  // `by` coordinates a job with the same id, which continues: the nodes of this job join it.
  void displace(const succession::Incumbent& by);
  // An elected coordinator of a job of the same id has announced itself. REQUIRES: a feed
  void meet(const succession::Incumbent& theirs) { feed_(succession::Met{theirs}); }
  // This coordinator, once the lineage has begun.
  const std::optional<succession::Incumbent>& incumbent() const { return incumbent_; }
  // An error if this node looks for the job at other endpoints than the job's first nodes.
  Status check_endpoints(const session::ClientHello& hello) const;
  void note_endpoints(const session::ClientHello& hello);
  // The node of this hello names the job's witness.
  void note_witness(const session::ClientHello& hello);
  // The node of this hello may know a later coordinator.
  void note_term(const session::ClientHello& hello);
  // Hands the job over to another node; stop() follows, with it or without. Nothing happens if no
  // node can take the job over.
  void resign();
  bool is_resigning() const { return is_resigning_ && !is_over(); }
  bool has_succession() const { return feed_ != nullptr; }
  // Voters or a store keep the record: a state file gives no authority over the job.
  bool is_recorded() const { return keeper() == core::RecordKeeper::kSuccession; }
  std::uint64_t term() const { return term_; }

  // Whether the hello may begin a session: the first hello of a node sets the secret that later
  // ones must repeat, and a hello that arrives after its successor is rejected.
  Status admit(const session::ClientHello& hello);
  // The session's hello was accepted. An older session of the same node is closed and ignored.
  void add(SessionPeer* peer);
  void remove(SessionPeer* peer);
  // An error ends the session.
  Status on_message(SessionPeer* peer, session::ClientMessage& message);
  void on_stall(const os::Stall& stall);
  JobObservers& observers() { return observers_; }
  // For members without a session, which have reconnect_grace to learn of the successor here.
  Duration time_to_return() const;
  // Sends the reason to the job's sessions and detaches them.
  void announce_end(const CoordinatorEnd& end, bool is_host_job);
  // Ends all sessions with this error. REQUIRES: rendezvous() is null
  void reject(const Status& why);
  // Called at the end of an iteration in which on_changed was called: sends the messages that cover
  // all of its changes at once.
  void publish_changes();

  const std::string& id() const { return id_; }
  const std::string& beginner() const { return beginner_; }
  // Null before the first join.
  const core::RendezvousMachine* rendezvous() const { return job_ ? &job_->rendezvous() : nullptr; }
  bool is_over() const { return job_ == nullptr || job_->is_over(); }
  bool is_removable() const {
    return !is_kept_ && job_ == nullptr && sessions_.empty() && early_findings_.empty();
  }
  bool is_kept() const { return is_kept_; }  // a store keeps the record

 private:
  void begin(const succession::StartCoordinator& start, const NodeId& self);
  template <typename Entry>
  bool must_wait_for_resumes(const Entry& entry);  // a Join or a Resume
  void end_wait_for_resumes();
  void begin_anew(const JobSettings& settings);
  void leave_job();
  void end_job();
  core::RecordKeeper keeper() const {
    return job_ == nullptr ? core::RecordKeeper::kOneVoter : job_->gate().keeper();
  }
  std::unique_ptr<core::Job> make_job(const JobSettings& settings, Duration start_hold);
  void announce(const drain::News& news);  // to the nodes of the job
  void keep_hosts();                       // for the next job of the id
  void pass_early_findings();              // once the job is made
  void request_host(const session::RequestHost& request, std::uint64_t number);
  void admit_early_joins();
  Status on(SessionPeer* peer, session::ClientHello& hello);
  Status on(SessionPeer* peer, session::Heartbeat& beat);
  Status on(SessionPeer* peer, rdzv::Join& join);
  Status on(SessionPeer* peer, rdzv::Resume& resume);
  Status on(SessionPeer* peer, rdzv::Leave& leave);
  Status on(SessionPeer* peer, rdzv::Close& close);
  Status on(SessionPeer* peer, session::OpenedPorts& opened);
  Status on(SessionPeer* peer, session::Workers& workers);
  Status on(SessionPeer* peer, session::ObserverReady& ready);
  Status on(SessionPeer* peer, hang::NodeProgress& progress);
  Status on(SessionPeer* peer, hang::NodeStacks& stacks);
  Status on(SessionPeer* peer, hang::NodeSignatures& signatures);
  Status on(SessionPeer* peer, hang::RankFinished& finished);
  Status on(SessionPeer* peer, gate::Finding& finding);
  Status on(SessionPeer* peer, gate::ProbeReport& report);
  Status on(SessionPeer* peer, session::RequestStacks& request);
  Status on(SessionPeer* peer, drain::Notice& notice);
  Status on(SessionPeer* peer, drain::Reply& reply);
  Status on(SessionPeer* peer, snapshot::CopyReport& report);
  Status on(SessionPeer* peer, session::RequestDrain& request);
  Status on(SessionPeer* peer, session::RequestHost& request);
  template <typename Report>
  Status on(SessionPeer* peer, Report& report);  // Failed, Gone, Done
  void request_ports();
  void forget_request(const NodeId& node);
  bool needs_ports() const;
  bool may_succeed(const NodeId& node) const;
  bool has_other_nodes() const;
  void feed_resign();

  JobObservers::Job observed_job();
  ObservedJob observed_facts();
  void forget_secrets(const NodeId& admitted);
  template <typename Entry>
  Status enter(SessionPeer* peer, Entry& entry);
  session::HeartbeatReply heartbeat_reply(Instant sent) const;
  bool is_of_another_job(const SessionPeer& peer, const rdzv::Resume& resume) const;
  void send_timings(SessionPeer* peer);
  Status correct_address(SessionPeer* peer, core::NodeInfo* node) const;
  void publish_address(const SessionPeer& remote);
  void correct_joins();
  void note_voter(const SessionPeer& peer, const std::string& node_address,
                  const std::string& topology);
  void feed_nodes();
  void acknowledge_leaves();
  void feed_timings();
  void propose();
  void propose_later();
  std::string check_record(std::size_t bytes) const;
  void close_unrecorded(const std::string& fault);
  void tick();
  void step(const core::JobEvent& event);
  void after_step();
  void execute_all();
  void execute(const core::RendezvousAction& action);
  void execute(const core::hang_action::Ask& action) { send_to_members(action.wanted); }
  void execute(const core::hang_action::Publish& action);
  void execute(const core::hang_action::Reply& action);
  void execute(const core::drain_action::Send& action);
  void execute(const core::job_action::OrderCopy& action);
  void execute(const core::drain_action::Announce& action);
  void execute(const core::drain_action::Inform& action) { observers_.reply(action); }
  void execute(const gate::HostAction& action);
  void execute(const gate::NetworkAction& action);
  void execute(const core::gate_action::Inform& action) { observers_.reply(action); }
  void prepare_round(const rdzv::Round& round);
  void send_store_clients(SessionPeer* peer) const;
  void send_to_connected(const rdzv::Closed& closed);
  template <typename Message>
  void send_to_members(const Message& message);
  template <typename Action>
  void log_action(const Action& action, const SessionPeer* peer);
  std::string name_of(const NodeId& node) const;
  SessionPeer* session_of(const NodeId& node) const;  // null: it has none
  void arm();
  void mark_changed();
  Duration interval() const;
  void send_counts();
  void log(const std::string& message) const;

  CoordinatorContext& context_;
  const std::string id_;
  const std::string beginner_;
  std::unique_ptr<core::Job> job_;  // null before the first join
  Instant start_hold_until_ = Instant::min();
  std::map<NodeId, SessionPeer*> sessions_;
  struct Credentials {
    session::NodeSecret secret;
    std::uint64_t attempt = 0;  // of the last hello
  };
  std::map<NodeId, Credentials> credentials_;
  std::size_t secrets_kept_ = 0;   // when unneeded ones were removed last
  std::string published_address_;  // at which other hosts reach nodes on this host; "": unknown
  JobObservers observers_{context_.loop, observed_job()};
  // Before the first node has joined, when each came. The job waits for that node.
  std::vector<std::pair<Instant, core::job_event::Found>> early_findings_;
  ExcludeCommand exclude_command_{context_.loop, context_.on_exclude,
                                  [this](const std::string& line) { log(line); }};
  os::Timer timer_;
  int deferred_ticks_ = 0;
  bool has_changes_ = false;
  session::Counts counts_;  // as last sent
  os::Timer counts_timer_;
  std::uint64_t logged_round_ = 0;  // a round is sent to each member and logged once
  std::uint64_t logged_end_ = 0;
  bool is_result_logged_ = false;
  std::vector<core::JobAction> actions_;          // scratch
  std::shared_ptr<const JobResult> sent_result_;  // to sessions whose nodes have not joined

  SuccessionFeed feed_;
  bool is_kept_ = false;  // a store keeps the record, from the job's first node on
  std::shared_ptr<bool> written_ = std::make_shared<bool>(true);  // of job_
  succession::EarlyJoins early_joins_;
  os::Timer resumes_timer_;
  std::string unrecorded_;  // why the job ends as soon as a node has joined; "": it does not
  std::uint64_t term_ = 1;
  std::optional<Instant> alone_since_;              // without a majority of its voters
  std::optional<succession::Incumbent> incumbent_;  // this coordinator, once the lineage has begun
  struct VoterPort {
    std::string address;
    std::string host;
    std::string topology;
  };
  std::map<NodeId, VoterPort> voter_ports_;
  bool is_resigning_ = false;
  enum class Ports : std::uint8_t { kRequested, kOpen, kNone };
  std::map<NodeId, Ports> ports_;  // of the nodes that may succeed this coordinator
  bool awaits_nodes_ = false;      // as last fed
  std::vector<succession::KnownNode> known_nodes_;  // as last fed
  std::string witness_;                             // as last fed
  std::vector<std::string> endpoints_;              // of the first node that named several; sorted
  os::Timer nodes_timer_;
  os::Timer proposal_timer_;
  EndProofs end_proofs_;
  bool is_stepping_ = false;  // the actions of a step are being executed
  bool is_ticking_ = false;   // tick() is running
};

}  // namespace elastic::host
