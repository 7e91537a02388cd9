#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/register/register_types.h"
#include "core/rendezvous/rendezvous_machine.h"
#include "elastic/rendezvous_types.h"

namespace elastic::core {

// Who keeps a job's record for its coordinator.
enum class RecordKeeper : std::uint8_t {
  kOneVoter,    // the coordinator's process alone
  kFile,        // the coordinator's state file
  kSuccession,  // the succession machine: voters, or a store
};

// To be passed to the keeper, in order.
struct Proposal {
  std::uint64_t number = 0;  // from 1; InForce repeats it
  reg::Content content;
};

// Holds back what a coordinator must not send before the job's record is in force (R3).
//
// Between the rendezvous machine and the sessions. After each step of the machine submit() is
// called; what the gate leaves in `actions` is sent, in order. A new round or a result is held, and
// everything that the machine emits after it, until the record that contains it is in force: the
// owner passes each proposal to the succession machine (Propose), and its InForce back here. The
// state is encoded only when a proposal is taken, however many steps it covers.
//
// One voter's record is the machine itself: what is decided is in force at once, and there is
// nothing to propose and no one to read it.
class RoundGate {
 public:
  explicit RoundGate(std::string job_id) : job_id_(std::move(job_id)) {}

  // This keeper has the record from now on: the machine's current state, and what is not in force
  // yet, is the next proposal. With one voter nothing is held any more, and what was held is
  // dropped: no record will contain it.
  void keep_at(RecordKeeper keeper);
  RecordKeeper keeper() const { return keeper_; }
  // The machine was restored from a record that is in force at this keeper.
  void restored(const RendezvousMachine& machine, RecordKeeper keeper);

  // The voter ports of the job's nodes, for the next record. Empty address: it has none.
  void set_voter_address(const NodeId& node, std::string address);
  void forget(const NodeId& node) { voter_addresses_.erase(node); }

  // Call after each step of the machine with the actions of that step. Removes from `actions` those
  // that are held. `event`: the step's event, null for a Tick. A Leave is recorded, and that a node
  // is done: the successor of a lost coordinator cannot ask a done node of the same host.
  void submit(const RendezvousMachine& machine, const RendezvousEvent* event,
              std::vector<RendezvousAction>* actions);
  // Something else than a round or a result was decided, which the step that is submitted next
  // shows: what follows is held in the same way.
  void decided_otherwise();
  // The proposal that must be in force before anything more is sent; 0: nothing is held.
  std::uint64_t last_needed() const { return decided_ > in_force_ ? decided_ : 0; }
  // The machine's state, if it has changed in a way that is recorded; at most one proposal is open
  // at a time. Call after each submit() and in_force().
  std::optional<Proposal> take_proposal(const RendezvousMachine& machine);
  // take_proposal() would return one.
  bool has_proposal() const { return is_dirty_ && !open_; }
  // The record with this proposal is in force: appends the actions to send now. False: it is not
  // the open one, and nothing is sent.
  bool in_force(std::uint64_t number, std::vector<RendezvousAction>* actions);

  // The voters of the record in force that are other nodes.
  void set_voters(std::vector<NodeId> voters);
  // False while the node's Leave is not in force, or the node is one of the voters: its heartbeats
  // are not answered until then. It repeats the leave at a successor, and as a voter it lives until
  // it is replaced.
  bool may_acknowledge(const NodeId& node) const { return !leaving_.contains(node); }
  // Nodes whose last heartbeat is to be answered since in_force() or set_voters().
  std::vector<NodeId> take_acknowledged() { return std::exchange(acknowledged_, {}); }

 private:
  struct Queued {
    std::uint64_t number = 0;  // sent when this proposal is in force
    RendezvousAction action;
  };

  std::uint64_t next_number() const { return proposals_ + 1; }
  // What is decided so far.
  void note(const RendezvousMachine& machine);
  void acknowledge();

  std::string job_id_;
  RecordKeeper keeper_ = RecordKeeper::kOneVoter;
  std::map<NodeId, std::string> voter_addresses_;
  std::uint64_t round_ = 0;  // as last submitted
  bool has_result_ = false;
  bool is_dirty_ = false;              // there is something to record that no proposal contains
  std::uint64_t proposals_ = 0;        // that were taken
  std::uint64_t decided_ = 0;          // the last proposal with a new round or a result
  std::uint64_t in_force_ = 0;         // the last proposal that is in force
  std::optional<std::uint64_t> open_;  // the proposal that was taken and is not in force
  std::deque<Queued> queued_;
  std::map<NodeId, std::uint64_t> leaving_;  // with the proposal that records the leave
  std::vector<NodeId> voters_;
  std::vector<NodeId> acknowledged_;
};

}  // namespace elastic::core
