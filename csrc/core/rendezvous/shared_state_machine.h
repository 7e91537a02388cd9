#pragma once

// One node's part in a rendezvous without a coordinator: the machine, run over bytes that all nodes
// share in a compare-and-set store.
//
// The owner reads the store at next_poll(), and passes what it found:
//
//   machine.read(stored, now, &delivered);
//   if (auto write = machine.propose(now, &delivered)) {
//     machine.wrote(answer_of(*write), now, &delivered);
//   }
//
// `delivered` is what the node must receive, in order. A statement of the node is repeated after a
// lost write, a broken connection or an outage of the store, until it is written.
//
// Pure: no I/O, clock or threads; randomness comes from the seed. One caller at a time; `now` never
// decreases. shared_state_machine.cc explains how it works.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/backoff.h"
#include "core/base/rng.h"
#include "elastic/rendezvous.h"
#include "elastic/rendezvous_backend.h"
#include "elastic/status.h"

namespace elastic::core {

// The header before the machine's bytes.
struct SharedHeader {
  std::uint16_t format = 0;
  NodeId lineage;             // of the store: drawn by the first writer
  std::uint64_t version = 0;  // counts the writes
  std::uint64_t nonce = 0;    // of this write
};

struct SharedWrite {
  std::string bytes;
  std::optional<std::string> token;  // of the version to replace; nullopt: nothing is there
};

class SharedStateMachine {
 public:
  // Receives the machine before the first trial step (no event) and after each one. The steps are
  // final when the write has succeeded.
  using Watcher = std::function<void(const Rendezvous& machine, const RendezvousEvent* event,
                                     const std::vector<RendezvousAction>& actions)>;

  // REQUIRES: settings.validate().ok()
  SharedStateMachine(JobSettings settings, std::uint64_t seed, Instant now);
  SharedStateMachine(const SharedStateMachine&) = delete;
  SharedStateMachine& operator=(const SharedStateMachine&) = delete;
  void watch_steps(Watcher watcher) { watcher_ = std::move(watcher); }

  // The Join identifies the node. Heartbeats are added here.
  void send(RendezvousEvent statement);

  // The store was read. kFailedPrecondition: it has lost the state; make no further call.
  Status read(const std::optional<StoredState>& stored, Instant now,
              std::vector<RendezvousAction>* delivered);
  // The read failed. kUnavailable, or kDeadlineExceeded if the store was never read or written: the
  // outage has lasted too long; make no further call.
  Status read_failed(const Status& cause, Instant now);
  // What to write upon what was read; nullopt: nothing. Call it after each read().
  std::optional<SharedWrite> propose(Instant now, std::vector<RendezvousAction>* delivered);
  // The write was answered: this write or that of another node is stored. Errors as read().
  Status wrote(const StoredWrite& answer, Instant now, std::vector<RendezvousAction>* delivered);
  // The write was not answered: it may or may not have been done. Errors as read_failed().
  Status write_failed(const Status& cause, Instant now);

  // When to read again. A store that reports changes need not be polled.
  Instant next_poll(bool is_watched) const;
  const std::optional<std::string>& token() const { return token_; }  // of what was read last
  bool has_sent_all() const { return unsent_.empty(); }
  bool has_delivered_result() const { return has_delivered_result_; }
  // How the job's timings, which this node uses, differ from its own: a sentence, or "".
  std::string timing_difference() const;
  const Rendezvous& machine() const { return machine_; }

 private:
  // A write that is pending, or whose answer never arrived.
  struct Attempt {
    SharedHeader header;
    std::string bytes;
    std::size_t sent = 0;  // how many of unsent_ are in it
    bool is_sign_of_life = false;
    std::vector<RendezvousAction> actions;
  };

  bool is_stale(const std::optional<StoredState>& stored) const;
  Status load(const StoredState& stored, Instant now, std::vector<RendezvousAction>* delivered);
  void deliver_rejection(std::vector<RendezvousAction>* delivered);
  std::vector<RendezvousEvent> events_to_step(Instant now) const;
  std::optional<SharedWrite> try_steps(const std::vector<RendezvousEvent>& events, Instant now,
                                       std::vector<RendezvousAction>* delivered);
  void write_accepted(Attempt attempt, Instant now, std::vector<RendezvousAction>* delivered);
  void apply_state(Instant now, std::vector<RendezvousAction>* delivered);
  void deliver(const RendezvousAction& action, Instant now,
               std::vector<RendezvousAction>* delivered);
  bool is_undelivered(const RendezvousAction& action, Instant now);
  void reset_delivered();
  bool is_timekeeper(Instant now) const;
  bool has_join_expired(Instant now);
  bool must_wait_to_join(Instant now) const;
  Status out_of_reach(const char* what, Duration outage, const Status& cause) const;
  void schedule(Instant now);
  void detect_changes(Instant now);
  Duration poll_interval(Instant now);

  // The settings in use: the job's timings once its state was read.
  const JobSettings& settings() const { return machine_.settings(); }
  Duration heartbeat_interval() const { return settings().node_timeout / 4; }

  const JobSettings own_settings_;
  Rng rng_;
  Watcher watcher_;

  Rendezvous machine_;
  NodeId self_;
  std::vector<RendezvousEvent> unsent_;
  bool has_joined_ = false;
  bool has_ever_joined_ = false;
  std::optional<Instant> join_pending_since_;  // requested, and not written yet
  std::optional<Status> rejection_;            // the stored state is unusable

  std::optional<NodeId> lineage_;
  std::uint64_t version_ = 0;  // the newest that was seen
  std::optional<std::string> token_;
  std::string payload_;           // the machine's bytes in what is stored
  bool is_machine_stale_ = true;  // it is not what is stored
  bool is_up_to_date_ = false;    // what was read last is no older version
  std::optional<Attempt> attempt_;

  bool has_contact_ = false;
  Instant last_contact_;
  std::optional<Instant> writes_fail_since_;
  Instant first_loaded_at_;
  Instant last_sign_of_life_;  // that others can see
  Instant tick_not_before_;
  Backoff lost_writes_;
  Backoff failures_;

  // Changes of these make other nodes act soon; poll more often after one.
  struct Snapshot {
    RendezvousPhase phase = RendezvousPhase::kForming;
    std::uint64_t round = 0;
    std::size_t nodes = 0;
    int waiting = 0;
    bool operator==(const Snapshot&) const = default;
  } snapshot_;
  Instant changed_at_;
  Instant next_poll_;
  Instant next_required_at_;  // what must be done even if nothing changes

  // What the node received last.
  std::uint64_t received_ = 0;              // the round
  std::uint64_t delivered_restart_ = 0;     // the round
  std::uint64_t delivered_round_over_ = 0;  // the round
  std::optional<Instant> waiting_delivered_at_;
  bool is_excluded_ = false;  // evicted, refused, timed out
  bool has_delivered_result_ = false;
};

}  // namespace elastic::core
