#pragma once

// One process's part in the succession of its job's coordinator, whatever keeps the job's record.
//
// This is the upper half: which coordinator this node follows, and whether it is lost; the
// coordinator of this process, which of its proposals is in force, whether it reaches those that
// keep the record, and how it ends; which of two coordinators of one job id continues. The lower
// half is a keeper, which decides who coordinates and what is in force:
//
//   VoterKeeper   the job's nodes and witnesses, by votes (voter_keeper.h)
//   StoreKeeper   etcd, a file, a TCPStore, or a class of the user, by compare-and-set
//                 (store_keeper.h)
//
// A keeper is a derived class and not a member, because each half calls the other: a loss that the
// upper half finds makes the keeper ask for the next coordinator, whose answer is to be followed.
//
// Pure: time comes with each call. Not thread-safe. The owner executes the actions in order, and
// calls step(Tick{}) at next_deadline(). succession_events.h has both.

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/succession/succession_events.h"
#include "core/succession/succession_types.h"
#include "elastic/time.h"

namespace elastic::succession {

class Machine {
 public:
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  virtual ~Machine() = default;

  void step(const Event& event, Instant now, std::vector<Action>* actions);
  std::optional<Instant> next_deadline() const;

  // The coordinator as this process knows it; for hellos, status and messages.
  const std::optional<Incumbent>& incumbent() const { return incumbent_; }
  // The keeper has given the role to this process.
  virtual bool is_coordinator() const = 0;

 protected:
  struct Limits {
    Duration node_timeout{};
    Duration store_grace{};
    // How long a coordinator that ends waits for the address of its successor.
    Duration handover_timeout{};
  };

  Machine(const NodeId& self, const Limits& limits, Instant now = {})
      : limits_(limits), now_(now), self_(self) {}

  // ---- What a keeper decides.

  // After the upper half has noted the event.
  virtual void receive(const Event& event) = 0;
  // The node was directed to a coordinator, and has no session with it within node_timeout.
  virtual void follow_failed() = 0;
  // At the end of each call.
  virtual void settle() {}
  virtual std::optional<Instant> keeper_deadline() const = 0;
  // Whether another coordinator of the job id can be met (R8), and whether the job has a record.
  virtual bool may_meet() const { return false; }
  virtual bool has_record() const { return true; }
  // The lineage of this process has another coordinator now.
  virtual void met_successor(const Incumbent&) {}

  // ---- Each call of the machine.

  template <typename Work>
  void run(Instant now, std::vector<Action>* actions, Work work) {
    now_ = std::max(now_, now);
    if (is_dissolved_) return;
    out_ = actions;
    work();
    settle();
    out_ = nullptr;
  }
  template <typename One>
  void emit(One action) {
    out_->push_back(std::move(action));
  }

  void note(const Timings& event);

  // ---- The coordinator that this node follows.

  // Changes nothing if it is of another lineage or an earlier term. Returns whether it is new.
  bool learn(const Incumbent& incumbent);
  // Directs this process's session to the incumbent.
  void direct_session();
  void await_session() { follow_until_ = add_saturating(now_, limits_.node_timeout); }

  // ---- The coordinator of this process.

  void start(StartCoordinator action);
  // It ends when the successor is known, at the latest after handover_timeout.
  void end_soon(std::string reason);
  // By value: the reason may be a part of what is reset.
  void stop(std::string reason);
  // The coordinator to which the clients of that one are directed, if it is another one.
  std::optional<Incumbent> successor() const;
  void in_force(const reg::Content& content);
  void inform() { emit(Inform{*incumbent_}); }
  void lose_majority(std::vector<reg::Voter> unreachable);
  void regain_majority();
  void expire(const std::string& reason);

  Limits limits_;  // constant, but for the job's timings
  Instant now_;
  std::optional<Incumbent> incumbent_;
  bool is_lost_ = false;  // the coordinator that this node follows
  // Until then a coordinator to which the node was directed has a session with it.
  std::optional<Instant> follow_until_;

  struct Ending {
    std::string reason;
    Instant until;
  };
  struct Own {
    bool is_started = false;  // StartCoordinator was emitted, or the service listens, and no Stop
    std::string address;      // "": it does not listen
    std::optional<Propose> open;
    std::optional<Ending> ending;
    bool has_majority = true;
  };
  Own own_;

 private:
  template <typename Other>
  void note(const Other&) {}  // the keeper's alone
  void note(const Met& event);

  void dissolve(const Incumbent& by);
  // What of the coordinator of this process is the keeper's.
  virtual void stopped() {}

  const NodeId self_;
  std::vector<Action>* out_ = nullptr;
  bool is_dissolved_ = false;
};

}  // namespace elastic::succession
