#pragma once

// One node's session with its coordinator: when to connect, what to send first on a new
// connection, whether the coordinator is alive, and when to give up.
//
// Pure: each call passes the time, random numbers come from a seed, and the same calls give the
// same actions. Not thread-safe; the owner serialises calls and executes the actions in order.
// Submit never leads to Deliver, Log or Lost, so the node receives no event inside its own call.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/rendezvous/rendezvous_events.h"
#include "core/session/node_reports.h"
#include "core/session/session_clock.h"
#include "core/session/session_connection.h"
#include "core/session/session_outbox.h"
#include "core/session/session_table.h"
#include "core/session/session_wire.h"
#include "elastic/agent.h"

namespace elastic::core {

class SessionMachine {
 public:
  // ---- Events.

  // The attempt has found a coordinator. Its connection replaces the current one, if there is one.
  struct Connected {};
  // The attempt is still pending: the error to report if it makes no further progress.
  struct AttemptDelayed {
    Status so_far;
  };
  // `exit_code`: every further attempt would fail too, unless a connection was made before.
  struct AttemptFailed {
    Status why;
    std::optional<int> exit_code;
    bool is_foreign = false;  // the process at the address is no coordinator
    bool has_others = false;  // the job may be at another address
  };
  // kPeerViolation before the coordinator's hello means an incompatible version.
  struct ConnectionLost {
    Status why;
  };
  // The coordinator's reply to SendHello; `time` is on its clock.
  struct HelloReceived {
    std::uint64_t incarnation = 0;
    Instant time;
    std::uint64_t term = 1;
  };
  // The job's timings. They replace this node's own.
  struct TimingsReceived {
    JobSettings settings;  // only its timings are used
  };
  // The coordinator will end before the job does.
  struct CoordinatorLeaves {
    std::string reason;
  };
  // The job's coordinator accepts sessions at `address` (host:port). "": the process at the other
  // end of this session does not coordinate the job, and the address is not known yet.
  struct CoordinatorMoved {
    std::string address;
  };
  // The coordinator in this process has lost its authority, and no other one can be elected; or the
  // store that keeps the job's record cannot be used.
  struct CoordinatorExpired {
    std::string reason;
    int exit_code = kExitCoordinatorLost;
  };
  // This process was stopped for `gap`, which is ignored if it is short. Fed before the messages
  // that arrived in that time.
  struct ClockGap {
    Duration gap{};
  };
  // The job of this node has dissolved: another job with the same id continues, whose coordinator
  // accepts sessions at `address`. The node stops its workers and joins it.
  struct Displaced {
    std::string address;
    std::string reason;
  };
  struct HeartbeatAcknowledged {
    Instant sent;
    Instant time;      // on the coordinator's clock
    Duration alone{};  // for how long the coordinator has reached no majority of its voters
  };
  struct Received {
    RendezvousAction action;
  };
  // Another message arrived: the coordinator is alive.
  struct Activity {};
  struct Submit {
    NodeStatement statement;
  };
  // Sent at once, or when a silent coordinator answers; dropped while none can be reached, except
  // for what KeptReports keeps for the next one.
  struct Report {
    NodeReport report;
  };
  // What the coordinator has said about the workers. The node may repeat it to the next one.
  struct Informed {
    session::AboutWorkers message;
  };
  // The node joins later: until then the coordinator knows that it is there.
  struct Introduce {
    NodeId node;
  };
  // The node's part in the job is over: the session ends within `limit`. `job`: its id, for
  // messages.
  struct End {
    Duration limit{};
    std::string job;
  };
  // The answer to EndCoordinator and to ReleaseRecord.
  struct EndStepDone {};
  struct Tick {};
  using Event =
      std::variant<Connected, AttemptDelayed, AttemptFailed, ConnectionLost, HelloReceived,
                   TimingsReceived, CoordinatorLeaves, CoordinatorMoved, CoordinatorExpired,
                   Displaced, HeartbeatAcknowledged, Received, Activity, Submit, Report, Informed,
                   Introduce, End, EndStepDone, ClockGap, Tick>;

  // ---- Actions.

  // Attempt to connect to a coordinator at this endpoint; an existing connection stays open. The
  // owner feeds Connected or AttemptFailed.
  struct Connect {
    std::size_t endpoint = 0;  // its index in the list
    std::string address = {};  // not empty: connect to this address instead (CoordinatorMoved)
  };
  // End the attempt. No event follows.
  struct CancelAttempt {};
  // Close the current connection. No event follows.
  struct Disconnect {
    bool is_loss = false;  // as ConnectionLost; false: its peer had not replied as a coordinator
  };
  // The first message of a new connection.
  struct SendHello {
    NodeId node;
    std::uint64_t attempt = 0;  // counts the hellos of this node
    std::uint64_t term = 0;     // the highest that the node received
  };
  struct Send {
    RendezvousEvent event;
  };
  struct SendReport {
    NodeReport report;
  };
  struct SendHeartbeat {
    Instant sent;
  };
  // Deliver the action to the node.
  struct Deliver {
    RendezvousAction action;
  };
  struct Log {
    std::string message;
    std::optional<Instant> deadline = {};  // the time that follows the message's ", gives up"
  };
  // The last action, except for the actions of the end.
  struct Lost {
    int exit_code = 0;
    std::string message;
  };
  // End the coordinator in this process, if there is one; its nodes receive the reason if their job
  // has not ended. EndStepDone follows.
  struct EndCoordinator {
    Duration limit{};
    std::string reason;
    bool gave_up = false;  // too few nodes joined the job of this node
  };
  // Give the role of the coordinator back to the keeper, if that is a store. EndStepDone follows.
  struct ReleaseRecord {};
  // The session has ended. The last action.
  struct Ended {};

  // ---- Actions that only receive() gives. They concern who coordinates the job.

  // The coordinator has sent something.
  struct CoordinatorActive {};
  // It has replied to the hello.
  struct CoordinatorFound {
    std::uint64_t incarnation = 0;
    std::uint64_t term = 1;
    std::optional<std::string> host_job = {};  // it runs in an agent of that job
  };
  // It has named itself and its voters.
  struct CoordinatorNamed {
    session::Incumbent it;
  };
  // The process at the other end does not coordinate the job. CoordinatorMoved follows.
  struct Directed {
    session::Incumbent to;
    bool was_coordinator = false;  // before
  };
  // The coordinator has dissolved the job, because `by` coordinates one of the same id.
  struct Dissolved {
    session::Incumbent by;
  };
  // It ends, and this node may succeed it: open the ports for that, and reply.
  struct PortsWanted {
    session::OpenPorts request;
  };
  // The job's timings, and how many nodes wait.
  struct JobTimings {
    Duration node_timeout{};
    Duration store_grace{};
  };
  struct JobCounts {
    session::Counts counts;
  };
  // Deliver what is about the workers to the node.
  struct Inform {
    session::AboutWorkers message;
  };
  using Action = std::variant<Connect, CancelAttempt, Disconnect, SendHello, Send, SendReport,
                              SendHeartbeat, Deliver, Log, Lost, EndCoordinator, ReleaseRecord,
                              Ended, CoordinatorActive, CoordinatorFound, CoordinatorNamed,
                              Directed, Dissolved, PortsWanted, JobTimings, JobCounts, Inform>;

  // `endpoints`: the possible addresses of a coordinator, as messages show them; tried in turn.
  // REQUIRES: !endpoints.empty()
  SessionMachine(const JobSettings& settings, std::vector<std::string> endpoints,
                 std::uint64_t seed);
  SessionMachine(const SessionMachine&) = delete;
  SessionMachine& operator=(const SessionMachine&) = delete;

  // Starts the first attempt.
  void begin(Instant now, std::vector<Action>* actions);
  void step(const Event& event, Instant now, std::vector<Action>* actions);
  // Decides who receives what the peer has sent: this machine, as an event of the above; the node;
  // and those who watch or run the job's coordinator.
  void receive(const session::ServerMessage& message, Instant now, std::vector<Action>* actions);
  std::optional<Instant> next_deadline() const;

  SessionState state() const { return connection_.state(); }
  // Every message of the node was acknowledged, or can no longer be acknowledged.
  bool is_flushed() const;
  bool was_connected() const { return connection_.was_open(); }
  // The node's settings, with the job's timings once they were received.
  const JobSettings& settings() const { return clock_.settings(); }
  // The coordinator's clock minus this process's clock.
  Duration clock_offset() const { return clock_.offset(); }
  // The timeout of a whole attempt, and the time between two addresses of one: at most `usual`.
  Duration attempt_limit() const { return clock_.attempt_limit(); }
  Duration attempt_pace(Duration usual) const;
  // The failure ends the session.
  bool is_final(const AttemptFailed& failure) const {
    return failure.exit_code && !failure.has_others && !was_connected();
  }

 private:
  void on(const Connected& event);
  void on(const AttemptDelayed& event);
  void on(const AttemptFailed& event);
  void on(const ConnectionLost& event);
  void on(const HelloReceived& event);
  void on(const TimingsReceived& event);
  void on(const CoordinatorLeaves& event);
  void on(const CoordinatorMoved& event);
  void on(const Displaced& event);
  void on(const CoordinatorExpired& event);
  void on(const HeartbeatAcknowledged& event);
  void on(const Received& event);
  void on(const Activity& event);
  void on(const Submit& event);
  void on(const Report& event);
  void on(const Informed& event);
  void on(const Introduce& event);
  void on(const End& event);
  void on(const EndStepDone& event);
  void on(const ClockGap& event);
  void on(const Tick& event);
  // session_messages.cc
  void on(const session::ServerHello& message);
  void on(const session::Incumbent& message);
  void on(const session::HeartbeatReply& message);
  void on(const session::Timings& message);
  void on(const session::Counts& message);
  void on(const session::Leaving& message);
  void on(const session::OpenPorts& message);
  void on(const session::StoreClients& message);
  void on(const session::WatchWorkers& message);
  template <typename Message>
  void on(const Message& message);

  // `why` and `exit_code` belong to the input, if it has them.
  void apply(SessionInput input, const Status& why = Status(), int exit_code = 0);
  bool accept_message();
  std::optional<Status> outage_of(const RendezvousAction& action) const;
  bool is_foreign(const RendezvousAction& action) const;
  // The two booleans: see the members of these names.
  void lose_connection(const Status& why, bool is_redirected, bool is_misdirected);
  bool is_lost_at_once();
  void check_search();
  void check_majority();

  void search(const Status& why);
  void connect();
  void adopt();
  void retry(const Status& why);
  void cancel_search();
  void recover();
  void send_hello();
  void send_findings();
  void send_facts();
  void send_heartbeat();
  void flush();
  void log_outage();
  void give_up();
  Duration search_limit() const;
  bool is_closed() const { return end_step_ > EndStep::kMessages; }
  bool is_end_due() const;
  void end_next();
  EndCoordinator end_of_coordinator(Duration limit) const;

  void send(RendezvousEvent event);
  bool was_in_round() const { return connection_.was_open() && outbox_.was_in_round(); }

  template <typename A>
  void emit(A action) {
    out_->emplace_back(std::in_place_type<A>, std::move(action));
  }

  std::vector<Action>* out_ = nullptr;
  // The connection that is being left leads to no coordinator; with the address of one, or without.
  // A failure was reported before the coordinator replied to the hello: the facts follow its reply.
  bool holds_facts_ = false;
  bool is_redirected_ = false;
  bool is_misdirected_ = false;
  std::optional<Instant> lost_at_;
  int losses_ = 0;  // of connections, one soon after the other
  // What the end of the session waits for, and until when; the last value: nothing is left.
  enum class EndStep : std::uint8_t { kNone, kMessages, kCoordinator, kRecord, kOver };
  EndStep end_step_ = EndStep::kNone;
  std::optional<Instant> end_step_until_;
  Instant end_until_;  // of all steps
  std::string job_;
  SessionConnection connection_;
  SessionOutbox outbox_;
  KeptReports kept_;
  SessionClock clock_;
};

}  // namespace elastic::core
