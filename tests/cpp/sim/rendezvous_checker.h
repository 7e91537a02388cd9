#pragma once

// The numbered invariants of docs/rendezvous.md, checked from outside after every step: a separate
// ledger of events and actions, which never reads the machine's private state.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/job/job.h"

namespace elastic::test {

using core::addressee;

class RendezvousChecker {
 public:
  explicit RendezvousChecker(JobSettings settings) : settings_(std::move(settings)) {}

  // The part of a machine that is checked.
  struct Snapshot {
    explicit Snapshot(const core::RendezvousMachine& machine);

    RendezvousPhase phase;
    RoundRecord record;
    std::vector<core::RoundMember> members;
    JobSettings settings;
    std::optional<JobResult> result;
  };

  // Steps the machine, or the job, and checks the result.
  void step(core::RendezvousMachine* machine, const core::RendezvousEvent& event, Instant now,
            std::vector<core::RendezvousAction>* actions);
  void step(core::Job* job, const core::JobEvent& event, Instant now,
            std::vector<core::JobAction>* actions);
  // What the gate of the job holds was checked when it was decided.
  void in_force(core::Job* job, std::uint64_t number, Instant now,
                std::vector<core::JobAction>* actions);
  // The machine was lost and another one was started: the ledger is kept.
  void machine_restarted() { was_restarted_ = true; }

  // One line for each broken promise; empty when all are kept.
  const std::vector<std::string>& violations() const { return violations_; }
  std::uint64_t round() const { return round_; }
  std::uint64_t rounds_seen() const { return rounds_seen_; }

 private:
  struct Share {
    NodeAssignment own;
    bool is_accounted = false;  // reported its workers gone, left, or was declared lost
    bool is_done = false;
    bool is_departed = false;
  };
  template <typename Step>
  void step_job(core::Job* job, const core::RendezvousEvent& event, Instant now,
                std::vector<core::JobAction>* actions, const Step& take);
  void before(const core::RendezvousEvent& event, const Snapshot& was);
  void after(const core::RendezvousEvent& event, const Snapshot& was, const Snapshot& is,
             const std::vector<core::RendezvousAction>& actions);
  void round_began(const Snapshot& was, const std::vector<const rdzv::Round*>& delivered);
  void round_repeated(const rdzv::Round& delivered);
  void check_shares(const RoundRecord& record);
  void check_closed(const core::RendezvousEvent& event, const Snapshot& is);
  void check_stored(const core::RendezvousMachine& machine, Instant now);
  enum class How { kGone, kDone, kDeparted };
  void account(const NodeId& id, How how);
  void broken(const char* invariant, const std::string& what);

  JobSettings settings_;
  std::uint64_t round_ = 0;
  std::uint64_t rounds_seen_ = 0;
  std::uint32_t generation_ = 1;
  RoundRecord record_;
  std::map<NodeId, Share> members_;
  bool was_restarted_ = false;
  std::vector<std::string> violations_;
};

}  // namespace elastic::test
