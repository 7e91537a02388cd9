#pragma once

// What is remembered of a job. Pure: each call passes the time.

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/rendezvous/first_failure.h"
#include "core/rendezvous/rendezvous_events.h"
#include "elastic/observer.h"
#include "elastic/rendezvous_types.h"
#include "elastic/time.h"

namespace elastic::core {

// The latest rounds of a job, with the time and the cause of each end, for observers.
//
// O(1) for each message of a node. No decision depends on it, and it is not stored: a coordinator
// that was restarted begins with the round that it finds.
class JobHistory {
 public:
  // A node reported a failed worker of the current round. The one that failed first is kept, and is
  // the reason of the round's end if it ends by a failure.
  void worker_failed(const std::string& name, const rdzv::Failed& event);
  // The round ends. Further messages about the same round are ignored.
  void round_ends(const rdzv::Restart& action, Instant now);
  // A node reported that a worker of the round has completed steps. True: that is new.
  bool progressed(std::uint64_t round, Instant now);
  // A node reported that its workers of the round have ended.
  void workers_ended(std::uint64_t round, Instant now);
  // The current round hangs since its last progress; nullopt: it does not, or no longer.
  void hangs(std::optional<Instant> since, Instant now);
  // The state of the machine after a change. `rule` decided what followed the round before.
  void update(RendezvousPhase phase, const RoundRecord& record, Instant now,
              std::string_view rule = {});

  const std::vector<ObservedRound>& rounds() const { return rounds_; }
  // When the first round was formed.
  std::optional<Instant> began() const { return began_; }
  // The time in which a round ran. If the job reports steps: from the first step of each round,
  // without the time in which it hung.
  Duration running(Instant now) const;

 private:
  ObservedRound* current(std::uint64_t round);
  void end_current(Instant now);
  // How long the current round has run.
  Duration ran(Instant now) const;

  std::vector<ObservedRound> rounds_;
  FirstFailure failure_;  // of the current round
  std::optional<Instant> began_;
  Instant running_since_;              // of the current round, while it runs
  Duration ran_{};                     // of the rounds that ended
  std::optional<Instant> hung_since_;  // the current round
  Duration hung_{};                    // earlier hangs of the current round
  bool has_steps_ = false;
};

}  // namespace elastic::core
