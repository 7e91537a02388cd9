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
  struct Greeted {
    std::uint64_t incarnation = 0;
    Instant time;
  };
  struct BeatAnswered {
    Instant sent;
    Instant time;  // on the coordinator's clock
  };
  struct Heard {
    RendezvousAction action;
  };
  // Something came that is no matter of this machine: a sign of life.
  struct Stirred {};
  struct Say {
    Statement statement;
  };
  // Somebody waits for is_settled().
  struct Hurry {};
  struct Tick {};
  using Event = std::variant<Connected, AttemptDelayed, AttemptFailed, ConnectionLost, Greeted,
                             BeatAnswered, Heard, Stirred, Say, Hurry, Tick>;

  // ---- Actions.

  // Look for a coordinator, beside the connection if there is one; answered by Connected or
  // AttemptFailed.
  struct Connect {};
  // The connection lives after all: give the attempt up, and answer nothing.
  struct Abandon {};
  // Say hello on a new connection. Everything else that is sent comes after it.
  struct Greet {
    NodeId node;
  };
  struct Send {
    RendezvousEvent event;
  };
  struct Beat {
    Instant sent;
  };
  // Tell the node.
  struct Deliver {
    RendezvousAction action;
  };
  struct Note {
    std::string sentence;
  };
  // Nothing follows.
  struct Lost {
    int exit_code = 0;
    std::string sentence;
  };
  using Action = std::variant<Connect, Abandon, Greet, Send, Beat, Deliver, Note, Lost>;

  // `endpoint` is for sentences.
  SessionMachine(const JobSettings& settings, std::string endpoint, std::uint64_t seed);
  SessionMachine(const SessionMachine&) = delete;
  SessionMachine& operator=(const SessionMachine&) = delete;

  // Begins with the first attempt.
  void begin(Instant now, std::vector<Action>* actions);
  void step(const Event& event, Instant now, std::vector<Action>* actions);
  std::optional<Instant> next_deadline() const;

  // All that was said has been heard, or cannot be any more.
  bool is_settled() const;
  bool was_connected() const { return was_connected_; }
  // What to add to an instant of this process to have it on the coordinator's clock.
  Duration clock_offset() const;
  // How long an attempt may take in all.
  Duration attempt_limit() const;

 private:
  enum class Attempt : std::uint8_t { kNone, kScheduled, kRunning };
  struct ClockSample {
    Duration offset{};
    Duration round_trip{};
  };

  void on(const Connected& event);
  void on(const AttemptDelayed& event);
  void on(const AttemptFailed& event);
  void on(const ConnectionLost& event);
  void on(const Greeted& event);
  void on(const BeatAnswered& event);
  void on(const Heard& event);
  void on(const Stirred& event);
  void on(const Say& event);
  void on(const Hurry& event);
  void on(const Tick& event);

  bool hear(const rdzv::Round& action);
  bool hear(const rdzv::Restart& action);
  bool hear(const rdzv::Waiting& action);
  bool hear(const rdzv::Resumed& action);
  bool hear(const rdzv::Evicted& action);
  bool hear(const rdzv::Superseded& action);
  bool hear(const rdzv::Refused& action);
  bool hear(const rdzv::TimedOut& action);
  bool hear(const rdzv::Closed& action);
  bool hear(const rdzv::RoundOver& action);

  void note_said(const rdzv::Join& said);
  void note_said(const rdzv::Failed& said);
  void note_said(const rdzv::Gone& said);
  void note_said(const rdzv::Done& said);
  void note_said(const rdzv::Leave& said);
  void note_said(const rdzv::Close& said);

  void greet();
  void say_all_anew();
  void send(RendezvousEvent event);
  void beat();
  void alive();
  void search(const Status& why);
  void attempt();
  void judge_search();
  void give_up();
  std::string search_sentence() const;
  void add_sample(Instant sent, Instant time);
  rdzv::Resume resume() const;
  FailureReport to_coordinator_clock(FailureReport failure) const;
  bool is_present() const;
  bool is_current(std::uint64_t round) const;
  Duration beat_interval() const;
  Instant stamp();

  template <typename A>
  void emit(A action) {
    out_->emplace_back(std::in_place_type<A>, std::move(action));
  }

  // Constant after construction.
  const JobSettings settings_;
  const std::string endpoint_;

  Instant now_;
  std::vector<Action>* out_ = nullptr;
  bool is_lost_ = false;

  // The way to the coordinator.
  Rng rng_;
  std::optional<Backoff> backoff_;
  Attempt attempt_ = Attempt::kNone;
  Instant retry_at_;
  bool is_open_ = false;
  bool is_greeted_ = false;  // our hello was sent on this connection
  bool may_speak_ = false;   // what must come first on this connection was sent
  bool was_connected_ = false;
  std::optional<Instant> searching_since_;  // nobody has answered since
  Instant next_note_ = Instant::max();
  bool was_absence_noted_ = false;
  Status last_error_;

  // Signs of life, and the coordinator's clock.
  Instant next_beat_ = Instant::max();
  Instant last_stamp_;
  Instant last_beat_;
  Instant greeted_at_;
  std::optional<Instant> unanswered_since_;
  std::uint64_t incarnation_ = 0;
  std::vector<ClockSample> samples_;  // the latest, as a ring
  std::size_t next_sample_ = 0;

  // What the node has said and heard.
  std::optional<rdzv::Join> join_;
  bool was_join_sent_ = false;
  bool is_known_ =
      false;  // the coordinator has answered, and did not say that it knows nobody here
  bool is_evicted_ = false;  // and has not joined since
  bool is_over_ = false;     // told the result, refused, or timed out
  bool is_closed_ = false;   // told the result
  rdzv::NodePhase phase_ = rdzv::NodePhase::kJoined;
  std::optional<HeldRound> last_;
  std::optional<FailureReport> failure_;  // on this process's clock
  std::optional<rdzv::Leave> leave_;
  std::optional<rdzv::Close> close_;
  std::uint64_t highest_round_ = 0;
  std::uint64_t restarted_round_ = 0;
  std::uint64_t round_over_ = 0;
  bool was_evicted_while_done_ = false;
  std::optional<Instant> unheard_since_;  // stamp of the last statement
};

}  // namespace elastic::core
