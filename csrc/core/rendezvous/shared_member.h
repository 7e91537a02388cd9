#pragma once

// One node's part in a rendezvous without a coordinator: the machine, run over bytes that all nodes
// share in a compare-and-set store.
//
// The owner looks at the store at next_look(), and hands in what it found:
//
//   member.read(stored, now, &told);
//   if (auto write = member.propose(now, &told)) member.wrote(answer_of(*write), now, &told);
//
// `told` is what the node must hear, in order. What was said is repeated after a lost write, a
// broken connection or a time without the store, until it is written.
//
// Pure: no I/O, clock or threads; chance comes from the seed. One caller at a time; `now` never
// goes back. shared_member.cc explains how it works.

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

// What stands before the machine's bytes.
struct SharedHeader {
  std::uint16_t format = 0;
  NodeId lineage;             // of the store: drawn by whoever wrote into it first
  std::uint64_t version = 0;  // counts the writes
  std::uint64_t nonce = 0;    // of this write
};

struct SharedWrite {
  std::string bytes;
  std::optional<std::string> token;  // of the version to replace; nullopt: nothing is there
};

class SharedMember {
 public:
  // Sees the machine before the first step that is tried (no event) and after each one. Whether
  // they were taken is known when the write has succeeded.
  using Watcher = std::function<void(const Rendezvous& machine, const RendezvousEvent* event,
                                     const std::vector<RendezvousAction>& actions)>;

  // REQUIRES: settings.validate().ok()
  SharedMember(JobSettings settings, std::uint64_t seed, Instant now);
  SharedMember(const SharedMember&) = delete;
  SharedMember& operator=(const SharedMember&) = delete;
  void watch_steps(Watcher watcher) { watcher_ = std::move(watcher); }

  // Join tells which node this is. Heartbeats are added here.
  void say(RendezvousEvent statement);

  // The store was read. kFailedPrecondition: it has lost the state; no further call makes sense.
  Status read(const std::optional<StoredState>& stored, Instant now,
              std::vector<RendezvousAction>* told);
  // It could not be. kUnavailable, or kDeadlineExceeded where nothing was ever found or written:
  // that lasts for too long, so that no further call makes sense.
  Status could_not_read(const Status& cause, Instant now);
  // What to write upon what was read; nullopt: nothing. Call it after each read().
  std::optional<SharedWrite> propose(Instant now, std::vector<RendezvousAction>* told);
  // The write was answered: ours is stored, or somebody else's. Errors as read().
  Status wrote(const StoredWrite& answer, Instant now, std::vector<RendezvousAction>* told);
  // The write was not answered: it may or may not have been done. Errors as could_not_read().
  Status write_failed(const Status& cause, Instant now);

  // When to look again. A store that tells of changes need not be polled.
  Instant next_look(bool is_watched) const;
  const std::optional<std::string>& token() const { return token_; }  // of what was read last
  bool has_said_all() const { return unsaid_.empty(); }
  bool has_been_told_the_end() const { return has_been_told_the_end_; }
  const Rendezvous& machine() const { return machine_; }

 private:
  // A write that is on its way, or whose answer never came.
  struct Attempt {
    SharedHeader header;
    std::string bytes;
    std::size_t said = 0;  // how many of unsaid_ are in it
    bool is_sign_of_life = false;
    std::vector<RendezvousAction> actions;
  };

  bool is_stale(const std::optional<StoredState>& stored) const;
  Status load(const StoredState& stored, Instant now, std::vector<RendezvousAction>* told);
  void tell_refusal(std::vector<RendezvousAction>* told);
  std::vector<RendezvousEvent> events_to_step(Instant now) const;
  std::optional<SharedWrite> try_steps(const std::vector<RendezvousEvent>& events, Instant now,
                                       std::vector<RendezvousAction>* told);
  void taken(Attempt attempt, Instant now, std::vector<RendezvousAction>* told);
  void learn(Instant now, std::vector<RendezvousAction>* told);
  void tell(const RendezvousAction& action, Instant now, std::vector<RendezvousAction>* told);
  bool is_new_to_the_node(const RendezvousAction& action, Instant now);
  void forget_what_was_told();
  bool is_timekeeper(Instant now) const;
  bool has_join_expired(Instant now);
  bool must_wait_to_join(Instant now) const;
  Status out_of_reach(const char* what, Duration outage, const Status& cause) const;
  void plan(Instant now);
  void notice_changes(Instant now);
  Duration poll_interval(Instant now);

  const JobSettings settings_;
  const Duration beat_interval_;
  Rng rng_;
  Watcher watcher_;

  Rendezvous machine_;
  NodeId self_;
  std::vector<RendezvousEvent> unsaid_;
  bool has_joined_ = false;
  bool has_ever_joined_ = false;
  std::optional<Instant> join_pending_since_;  // said, and not written yet
  std::optional<Status> refusal_;              // what is stored cannot be worked with

  std::optional<NodeId> lineage_;
  std::uint64_t version_ = 0;  // the newest that was seen
  std::optional<std::string> token_;
  std::string payload_;          // the machine's bytes in what is stored
  bool is_machine_void_ = true;  // it is not what is stored
  bool is_up_to_date_ = false;   // what was read last is no older version
  std::optional<Attempt> attempt_;

  bool has_contact_ = false;
  Instant last_contact_;
  std::optional<Instant> writes_fail_since_;
  Instant first_loaded_at_;
  Instant last_sign_of_life_;  // that others can see
  Instant tick_not_before_;
  Backoff lost_writes_;
  Backoff failures_;

  // What would make the others act soon, and when it last changed.
  struct Scene {
    RendezvousPhase phase = RendezvousPhase::kForming;
    std::uint64_t round = 0;
    std::size_t nodes = 0;
    int waiting = 0;
    bool operator==(const Scene&) const = default;
  } scene_;
  Instant changed_at_;
  Instant next_poll_;
  Instant next_duty_;  // what must be done even if nothing changes

  // What the node was told last.
  std::uint64_t heard_ = 0;            // the round
  std::uint64_t restart_told_ = 0;     // the round
  std::uint64_t round_over_told_ = 0;  // the round
  std::optional<Instant> waiting_told_at_;
  bool is_out_ = false;  // evicted, refused, timed out
  bool has_been_told_the_end_ = false;
};

}  // namespace elastic::core
