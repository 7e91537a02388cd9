#pragma once

// The keeper of a job's record that its nodes and witnesses are: it has the register
// (core/register), which decides by votes, proposes there what the coordinator in this process
// decides, announces an elected coordinator to the nodes of the record, and directs this process's
// own session. succession_machine.h is its upper half.
//
// One object for each job of a process: in an agent on the agent's loop; in a separate coordinator
// program on the coordinator's loop. With voters=1 only the process that runs the coordinator has
// one, and a node that may succeed it (session::OpenPorts).
//
// The life of an agent's machine:
//   1. Its session receives session::Incumbent -> Informed. The machine knows lineage and voters.
//   2. The coordinator proposes a record that names this node: frames of the voter port, Received.
//   3. The session ends and is not resumed in time -> IncumbentLost. A voter stands as a candidate;
//      any node asks the voters until one of them names the new coordinator -> Follow.
//   4. Elected -> StartCoordinator. The owner opens a coordinator service on a port of its own,
//      restores the job (RendezvousMachine::succeed), and feeds
//      CoordinatorStarted. The machine announces the address to the nodes of the record and to this
//      node's own session.
//   5. Another coordinator was elected -> StopCoordinator, and Follow.
//   6. The elected coordinator announces itself at the job's endpoints, again and again. Where
//      another job of the same id has begun, one of both dissolves (meeting.h) -> Displaced.
//
// The life of a hosting agent's machine, or of a separate coordinator's: CoordinatorStarted with
// `is_first` when its service listens, Nodes whenever its nodes change. BeginRecord when the
// job has candidates for several voters: the owner feeds Propose for each proposal of its gate from
// now on. The first Propose begins the lineage.

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/random.h"
#include "core/register/register_machine.h"
#include "core/succession/succession_events.h"
#include "core/succession/succession_machine.h"
#include "core/succession/succession_types.h"
#include "core/succession/voter_wire.h"
#include "elastic/time.h"

namespace elastic::succession {

struct Settings {
  std::string job_id;
  reg::Voter self;             // this life of the process, and its voter port; "": it has none
  bool is_standalone = false;  // a separate coordinator: it proposes and is no candidate
  // The process has left another lineage for this one, and votes in no other one; nullopt: it
  // learns the lineage of its job from the coordinator, or from a record that names it.
  std::optional<reg::LineageId> lineage = {};
  reg::RegisterSettings reg = {};
  // A node that was directed to a new coordinator and has no session with it after this long counts
  // it as lost; the job's node_timeout.
  Duration node_timeout = std::chrono::seconds(5);
  // How often a node is announced to, probed, or asked again.
  Duration repeat_interval = std::chrono::milliseconds(100);
  Duration repeat_interval_max = std::chrono::seconds(2);
  // How long a deposed coordinator waits for the address of its successor. One that ends waits
  // twice as long for a node that may succeed it.
  Duration handover_timeout = std::chrono::seconds(1);
};

class VoterKeeper final : public Machine {
 public:
  // `seed`: random; also the source of the lineage.
  VoterKeeper(Settings settings, std::uint64_t seed);

  bool is_coordinator() const override { return register_.role() == reg::Role::kCoordinator; }
  const reg::Register& job_register() const { return register_; }
  // Voter ports of nodes, and witnesses, that this coordinator has not reached; lists for messages.
  std::string unreached_voters() const;
  std::string unreached_witnesses() const;
  bool has_witness() const { return !witnesses_.empty(); }
  // Voters of the record that this coordinator does not reach.
  std::size_t num_lost_voters() const;

 private:
  // A frame that is sent to a node again and again.
  struct Repeated {
    std::string address;
    bool is_done = false;
    Instant next;
    Duration wait{};
  };
  using RepeatedTo = std::map<NodeId, Repeated>;

  void receive(const Event& event) override;
  void follow_failed() override;
  void settle() override { resign(); }
  std::optional<Instant> keeper_deadline() const override;
  // The nodes of a job that has ended are not to be joined by those of the next one.
  bool may_meet() const override { return !has_result(); }
  bool has_record() const override;
  void met_successor(const Incumbent& incumbent) override { follow(incumbent); }
  void stopped() override { peers_ = {}; }

  void on(const Informed& event);
  void on(const IncumbentLost& event);
  void on(const IncumbentReturned& event);
  void on(const Received& event);
  void on(const ConnectionEnded& event);
  void on(const Unreachable& event);
  void on(const CoordinatorStarted& event);
  void on(const CoordinatorFailed& event);
  void on(const Nodes& event);
  void on(const Timings& event);
  void on(const Witnesses& event);
  void on(const Propose& event);
  void on(const LaterTermSeen& event);
  void on(const Resign& event);
  void on(const Met&) {}  // the upper half's
  void on(const EndpointsAreHere& event);
  void on(const Tick& event);

  void receive(const VoterFrame& frame, const reg::Message& message);
  void receive(const VoterFrame& frame, const Probe& message);
  void receive(const VoterFrame& frame, const ProbeReply& message);
  void receive_from_witness(const std::string& address, const NodeId& node);
  std::optional<reg::LineageId> own_lineage() const;
  void receive(const VoterFrame& frame, const Announce& message);
  void receive(const VoterFrame& frame, const Query& message);

  void feed(const reg::Event& event);
  void execute(reg::Send& action);
  void execute(const reg::Elected& action);
  void execute(const reg::Deliver& action);
  void execute(const reg::Deposed& action);
  void execute(const reg::MajorityLost& action);
  void execute(const reg::MajorityRegained& action);
  void execute(const reg::AuthorityExpired& action);
  void execute(const reg::VoterSilent& action);

  reg::RegisterSettings register_settings() const;

  // As the coordinator.
  void begin(const Propose& event);
  void propose();
  void choose_probed();
  void probe_nodes();
  void update_candidates();
  std::vector<reg::VoterCandidate> candidates() const;
  void add_former_incumbent(std::vector<reg::VoterCandidate>* all) const;
  void begin_record_as_needed();
  void probe_witnesses();
  void announce_to(const JobRecord& record);
  void announce_at_endpoints();
  bool has_result() const;
  void resign();
  std::optional<reg::Voter> choose_successor() const;

  void start_elected(const reg::Record& record, JobRecord job, const NodeId& former,
                     const NodeId& lost);

  void log_stranded();

  // As a node.
  void note_incumbent(const Incumbent& incumbent);
  void follow(const Incumbent& incumbent);
  void follow();
  void set_lost(bool is_lost);
  void watch_elected();
  void ask_voters();

  Repeated repeated(std::string address) const;
  Instant repeat(RepeatedTo& all, const VoterBody& body);
  void send(const NodeId& to, const std::string& address, VoterBody body);

  Settings settings_;  // constant after construction, but for the job's timings

  reg::Register register_;
  std::deque<reg::Action> register_actions_;  // not executed yet
  bool is_executing_ = false;
  Rng rng_;

  VoterConnections connections_;
  // The first record's, if the coordinator of this process proposes it.
  reg::LineageId first_lineage_;

  // What the coordinator of this process knows of the nodes, until it ends.
  struct Peers {
    std::vector<KnownNode> nodes;
    std::vector<KnownNode> candidates;  // those of the nodes that may vote: few
    RepeatedTo probed;                  // done: the node answered at its voter port
    std::set<NodeId> silent;            // did not answer while others could be asked
    RepeatedTo announced;               // until the node has resumed
    Instant announce_next;              // the earliest of these
    // When the elected coordinator announces itself at the endpoints again.
    std::optional<Instant> announce_at;
    // After an election the voters of its record count as reachable until then, or until their
    // sessions are known here.
    Instant resume_until = Instant::min();
    std::optional<Instant> majority_log_at;
    // This coordinator ends: until then a node that may succeed it may answer.
    struct Resigning {
      Instant until;
      bool awaits_nodes = false;
    };
    std::optional<Resigning> resigning;
  };
  Peers peers_;
  std::set<NodeId> foreign_;  // nodes that cannot read the record, and were logged
  Instant announce_until_;
  // By address. The coordinator probes them again and again: so they notice when it is lost.
  struct WitnessPeer {
    NodeId node;  // zero: it has not answered yet
    bool is_reachable = false;
    int unanswered = 0;  // probes since the last reply
    Instant next;
    Duration wait{};
  };
  std::map<std::string, WitnessPeer> witnesses_;
  bool was_turned_on_ = false;
  std::set<NodeId> resumed_;  // voters that have answered since its election
  NodeId former_incumbent_;
  std::string former_address_;    // its voter port; "": unknown
  bool is_former_there_ = false;  // it ended in order, and its voter port has not ended yet
  std::string unreachable_;

  // A node and its session.
  NodeId session_with_;         // the coordinator that informed it last
  std::uint64_t followed_ = 0;  // the last term of a Follow
  struct Watched {
    NodeId node;
    std::uint64_t term = 0;
    bool operator==(const Watched&) const = default;
  };
  Watched watched_;
  std::optional<Instant> ask_at_;
  Duration ask_wait_{};

  std::optional<Instant> stranded_log_at_;  // no coordinator was elected until then
};

}  // namespace elastic::succession
