#pragma once

// The life of one node's session with its coordinator: when to connect, what to say first, what is
// still to be heard, whether the other side lives, and when to give up.
//
// Pure: time comes with each call and chance from a seed, and the same calls give the same actions.
// Not thread-safe; the owner serialises calls and carries the actions out in order. Say never leads
// to Deliver, Note or Lost, so that nobody is told anything while he speaks.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/backoff.h"
#include "core/base/rng.h"
#include "core/session/clock_estimate.h"
#include "elastic/rendezvous.h"

namespace elastic::core {

class SessionMachine {
 public:
  using Statement =
      std::variant<rdzv::Join, rdzv::Failed, rdzv::Gone, rdzv::Done, rdzv::Leave, rdzv::Close>;

  // ---- Events.

  // The attempt has found a coordinator. From now on this is the connection, also if an older one
  // is still open.
  struct Connected {};
  // The attempt has come so far, which is what is wrong as long as nothing follows.
  struct AttemptDelayed {
    Status so_far;
  };
  // `exit_code`: trying again would not help, unless it has worked before.
  struct AttemptFailed {
    Status why;
    std::optional<int> exit_code;
  };
  struct ConnectionLost {
    Status why;
  };
  // The coordinator's answer to Greet; `time` is on its clock.
  struct HelloReceived {
    std::uint64_t incarnation = 0;
    Instant time;
    std::uint64_t term = 1;
  };
  // The job's timings, as the coordinator has them. They replace this node's own.
  struct TimingsReceived {
    JobSettings settings;  // only its timings count
  };
  // The coordinator will end, though the job goes on.
  struct CoordinatorLeaves {
    std::string reason;
  };
  // This process stood still for `gap`. Comes before the messages that had to wait.
  struct ClockGap {
    Duration gap{};
  };
  struct HeartbeatAcknowledged {
    Instant sent;
    Instant time;  // on the coordinator's clock
  };
  struct Received {
    RendezvousAction action;
  };
  // Something came that is no matter of this machine: a sign of life.
  struct Activity {};
  struct Submit {
    Statement statement;
  };
  // Somebody waits for is_settled().
  struct Flush {};
  struct Tick {};
  using Event =
      std::variant<Connected, AttemptDelayed, AttemptFailed, ConnectionLost, HelloReceived,
                   TimingsReceived, CoordinatorLeaves, HeartbeatAcknowledged, Received, Activity,
                   Submit, Flush, ClockGap, Tick>;

  // ---- Actions.

  // Look for a coordinator at this endpoint, beside the connection if there is one; answered by
  // Connected or AttemptFailed.
  struct Connect {
    std::size_t endpoint = 0;  // its index in the list
  };
  // The connection lives after all: give the attempt up, and answer nothing.
  struct CancelAttempt {};
  // Say hello on a new connection. Everything else that is sent comes after it.
  struct SendHello {
    NodeId node;
    std::uint64_t attempt = 0;  // counts the hellos of this node
    std::uint64_t term = 0;     // the highest that it knows of
  };
  struct Send {
    RendezvousEvent event;
  };
  struct SendHeartbeat {
    Instant sent;
  };
  // Tell the node.
  struct Deliver {
    RendezvousAction action;
  };
  struct Log {
    std::string message;
  };
  // Nothing follows.
  struct Lost {
    int exit_code = 0;
    std::string message;
  };
  using Action =
      std::variant<Connect, CancelAttempt, SendHello, Send, SendHeartbeat, Deliver, Log, Lost>;

  // `endpoints`: where a coordinator may be, as sentences name them; tried one after the other.
  // REQUIRES: !endpoints.empty()
  SessionMachine(const JobSettings& settings, std::vector<std::string> endpoints,
                 std::uint64_t seed);
  SessionMachine(const SessionMachine&) = delete;
  SessionMachine& operator=(const SessionMachine&) = delete;

  // Begins with the first attempt.
  void begin(Instant now, std::vector<Action>* actions);
  void step(const Event& event, Instant now, std::vector<Action>* actions);
  std::optional<Instant> next_deadline() const;

  // All that was said has been heard, or cannot be any more.
  bool is_flushed() const;
  bool was_connected() const { return was_connected_; }
  // With the job's timings as far as they are known.
  const JobSettings& settings() const { return settings_; }
  // What to add to an instant of this process to have it on the coordinator's clock.
  Duration clock_offset() const { return clock_.offset(); }
  // How long an attempt may take in all.
  Duration attempt_limit() const;

 private:
  enum class Attempt : std::uint8_t { kNone, kScheduled, kRunning };

  void on(const Connected& event);
  void on(const AttemptDelayed& event);
  void on(const AttemptFailed& event);
  void on(const ConnectionLost& event);
  void on(const HelloReceived& event);
  void on(const TimingsReceived& event);
  void on(const CoordinatorLeaves& event);
  void on(const HeartbeatAcknowledged& event);
  void on(const Received& event);
  void on(const Activity& event);
  void on(const Submit& event);
  void on(const Flush& event);
  void on(const ClockGap& event);
  void on(const Tick& event);

  bool receive(const rdzv::Round& action);
  bool receive(const rdzv::Restart& action);
  bool receive(const rdzv::Waiting& action);
  bool receive(const rdzv::Resumed& action);
  bool receive(const rdzv::Evicted& action);
  bool receive(const rdzv::Superseded& action);
  bool receive(const rdzv::Refused& action);
  bool receive(const rdzv::TimedOut& action);
  bool receive(const rdzv::Closed& action);
  bool receive(const rdzv::RoundOver& action);

  void record_sent(const rdzv::Join& said);
  void record_sent(const rdzv::Failed& said);
  void record_sent(const rdzv::Gone& said);
  void record_sent(const rdzv::Done& said);
  void record_sent(const rdzv::Leave& said);
  void record_sent(const rdzv::Close& said);

  void send_hello();
  void resend_state();
  void send(RendezvousEvent event);
  void send_heartbeat();
  void record_activity();
  void search(const Status& why);
  void attempt();
  void check_search();
  void give_up();
  std::string search_message() const;
  std::string search_error() const;
  bool was_in_round() const { return was_connected_ && held_round_.has_value(); }
  Duration search_limit() const;
  const std::string& endpoint() const { return endpoints_[endpoint_]; }
  rdzv::Resume resume() const;
  FailureReport to_coordinator_clock(FailureReport failure) const;
  bool is_present() const;
  bool is_current(std::uint64_t round) const;
  Duration heartbeat_interval() const;
  Instant stamp();

  template <typename A>
  void emit(A action) {
    out_->emplace_back(std::in_place_type<A>, std::move(action));
  }

  // Constant after construction.
  const JobSettings own_settings_;
  const std::vector<std::string> endpoints_;

  JobSettings settings_;  // with the timings of the job
  std::string timings_note_;

  Instant now_;
  std::vector<Action>* out_ = nullptr;
  bool is_lost_ = false;

  // The way to the coordinator.
  Rng rng_;
  std::optional<Backoff> backoff_;
  Attempt attempt_ = Attempt::kNone;
  Instant retry_at_;
  std::size_t endpoint_ = 0;  // of the connection, or to be tried next
  std::uint64_t hellos_ = 0;
  bool is_open_ = false;
  bool is_hello_sent_ = false;     // our hello was sent on this connection
  bool is_ready_to_send_ = false;  // what must come first on this connection was sent
  bool was_connected_ = false;
  std::optional<Instant> searching_since_;  // nobody has answered since
  Instant next_log_ = Instant::max();
  bool is_outage_logged_ = false;
  Status last_error_;
  std::string leaving_reason_;  // why the coordinator said it would end; "": it did not

  // Signs of life, and the coordinator's clock.
  Instant next_heartbeat_ = Instant::max();
  Instant last_stamp_;
  Instant last_heartbeat_;
  Instant hello_received_at_;
  std::optional<Instant> unacknowledged_heartbeat_;
  std::uint64_t incarnation_ = 0;
  std::uint64_t term_ = 0;  // the highest of all coordinators and rounds
  ClockEstimate clock_;

  // What the node has said and heard.
  std::optional<rdzv::Join> join_;
  bool was_join_sent_ = false;
  bool is_known_ =
      false;  // the coordinator has answered, and did not say that it knows nobody here
  bool is_evicted_ = false;  // and has not joined since
  bool is_ended_ = false;    // told the result, refused, or timed out
  bool is_closed_ = false;   // told the result
  rdzv::NodePhase phase_ = rdzv::NodePhase::kJoined;
  std::optional<HeldRound> held_round_;
  std::optional<FailureReport> failure_;  // on this process's clock
  std::optional<rdzv::Leave> leave_;
  std::optional<rdzv::Close> close_;
  std::uint64_t highest_round_ = 0;
  std::uint64_t restarted_round_ = 0;
  std::uint64_t round_over_ = 0;
  bool was_evicted_while_done_ = false;
  std::optional<Instant> unacknowledged_since_;  // stamp of the last statement
};

}  // namespace elastic::core
