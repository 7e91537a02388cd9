#pragma once

// The keeper of a job's record that a store is: etcd, a file, a TCPStore, or a class of the user.
// succession_machine.h is its upper half.
//
// The store decides: one value, replaced by compare-and-set. A process that finds no coordinator in
// it claims the role under the next term, starts a coordinator and writes its address; the others
// read that address and hold sessions with it. What the coordinator decides is stored before it is
// sent. A node whose session is open makes no call of the store.
//
//   machine.step(event, now, &actions);
//   if (auto call = machine.next_call()) ...           // one at a time, on a thread that may block
//   machine.read(answer, now, &actions);               // or written(), waited()
//   if (machine.must_interrupt()) ...                  // a KeeperWait has something to do again
//
// Pure: time comes with each call, chance from a seed. Not thread-safe. store_keeper.cc explains
// the rules.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/base/random.h"
#include "core/succession/job_record.h"
#include "core/succession/succession_events.h"
#include "core/succession/succession_machine.h"
#include "elastic/rendezvous_backend.h"
#include "elastic/status.h"
#include "elastic/time.h"

namespace elastic::succession {

// ---- Calls of the store.

struct KeeperRead {};
struct KeeperWrite {
  std::string bytes;
  std::optional<std::string> token;  // of the version to replace; nullopt: nothing is there
};
// Wait until the version has changed, or until then.
struct KeeperWait {
  std::optional<std::string> token;
  Instant until;
};
using KeeperCall = std::variant<KeeperRead, KeeperWrite, KeeperWait>;

class StoreKeeper final : public Machine {
 public:
  struct Settings {
    std::string store;  // its name in messages: "etcd"
    NodeId self;        // this life of the process
    Duration node_timeout = std::chrono::seconds(5);
    Duration store_grace = std::chrono::seconds(60);
    // How long the end of a coordinator in order may take.
    Duration handover_timeout = std::chrono::seconds(1);
  };

  StoreKeeper(Settings settings, std::uint64_t seed, Instant now);

  // This process's node: its id, and its rank in the current round, by which nodes stand in turn;
  // -1: none.
  void set_node(const NodeId& node) { node_ = node; }
  void set_rank(int rank) { rank_ = rank; }

  // What to ask of the store now. The call is pending until it is answered.
  std::optional<KeeperCall> next_call();
  void read(const Result<std::optional<StoredState>>& answer, Instant now,
            std::vector<Action>* actions);
  void written(const Result<StoredWrite>& answer, Instant now, std::vector<Action>* actions);
  // `is_watched`: false: the store reports no changes, and is polled from now on.
  void waited(bool is_watched, Instant now, std::vector<Action>* actions);
  // The pending call is a wait, and a different call is due.
  bool must_interrupt() const;

  bool is_coordinator() const override { return own_.is_started; }
  // Where the session of this process finds the coordinator, as far as it knows; "": nowhere yet.
  // The session keeps trying while the coordinator counts as lost.
  const std::string& address() const { return followed_.address; }
  // Why there is none, for messages.
  std::string explain() const;
  // After Resign: this process does not hold the role, and no claim of it is pending.
  bool is_released() const { return !is_coordinator() && pending_ != Pending::kWrite; }

 private:
  enum class Pending : std::uint8_t { kNone, kRead, kWrite, kWait };
  enum class Intent : std::uint8_t { kNone, kClaim, kChallenge };  // of a follower
  // The coordinator that a record names.
  struct Named {
    reg::LineageId lineage;
    std::uint64_t term = 0;
    std::string address;
    bool operator==(const Named&) const = default;
  };

  void receive(const Event& event) override;
  void follow_failed() override { lose(); }
  void settle() override;
  std::optional<Instant> keeper_deadline() const override;
  void stopped() override;

  template <typename Other>
  void on(const Other&) {}  // of no concern without voters
  void on(const Informed& event);
  void on(const IncumbentLost& event);
  void on(const IncumbentReturned& event);
  void on(const Unreachable& event);
  void on(const CoordinatorStarted& event);
  void on(const CoordinatorFailed& event);
  void on(const Propose& event);
  void on(const LaterTermSeen& event);
  void on(const Resign& event);

  void end_call();
  void failed(const Status& why);
  void reached();
  void load(const std::optional<StoredState>& stored);
  void apply();
  void start_claimed();
  void judge();
  void judge_lost();
  void judge_outage();
  void follow();
  void found();
  void lose();
  void give_up(int exit_code, const std::string& why);
  void store_lost();

  bool needs_coordinator() const;
  bool must_watch() const;
  bool is_resigning() const { return stands_from_ == Instant::max(); }
  bool wants_write() const;
  KeptRecord wanted();
  void stand();
  Duration poll_max() const;
  Duration answer_time() const;
  Duration turn();
  bool is_mine() const { return stored_ && stored_->holder == settings_.self; }

  const Settings settings_;  // limits_ has the job's timings
  Rng rng_;
  Backoff failures_;
  NodeId node_;
  int rank_ = -1;

  // The store, as read last.
  Pending pending_ = Pending::kNone;
  Instant pending_since_;
  Instant wait_until_;
  bool is_watched_ = true;
  bool was_read_ = false;    // at least once
  bool is_read_due_ = true;  // before anything is written
  Instant next_read_;        // not before
  Duration poll_wait_{};
  Duration slowest_call_{};  // of late
  std::optional<KeptRecord> stored_;
  std::optional<std::string> token_;
  std::optional<Instant> outage_since_;
  std::optional<Instant> outage_log_at_;
  bool is_outage_logged_ = false;
  std::string outage_;  // why
  bool has_given_up_ = false;

  // As a follower.
  Intent intent_ = Intent::kNone;
  bool has_session_ = false;         // with the coordinator of the record
  bool has_belonged_ = false;        // to the lineage: there was a session
  bool is_refused_ = false;          // its address answers that it is not there
  std::optional<Instant> ended_at_;  // that is proved: this node's turn
  Named followed_;
  std::optional<Instant> claim_at_;
  std::optional<Named> idle_;  // one without an address, for which claim_at_ was set
  struct Challenge {
    std::uint64_t number = 0;
    Instant until;
  };
  std::optional<Challenge> challenge_;
  std::optional<Instant> alive_until_;  // it has answered: not asked again before
  // It claims no role before: a coordinator could not be started here. max(): this process ends.
  Instant stands_from_ = Instant::min();

  // As the coordinator.
  std::uint64_t term_ = 0;
  bool is_named_ = false;  // its address is stored
  NodeId former_;          // the node of the coordinator that was lost; zero: it ended in order
  Instant refresh_at_ = Instant::max();
};

}  // namespace elastic::succession
