#pragma once

// What the nodes of a simulated job are sent must not contradict itself, whoever coordinates.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/rendezvous/rendezvous_events.h"
#include "sim/record_checker.h"

namespace elastic::test {

class SuccessionChecker {
 public:
  explicit SuccessionChecker(std::vector<std::string>* violations) : violations_(violations) {}

  // An action leaves for a node. Returns the round that begins with it, which must be in force;
  // null: none does.
  const RoundRecord* check(const core::RendezvousAction& action, Instant now);
  // A coordinator has this record in force.
  void in_force(const RoundRecord& record);
  // When the first round after that time began; Instant::max(): none has begun.
  Instant next_round_after(Instant when) const;
  const RoundRecord& last_round() const { return rounds_.rbegin()->second; }
  std::size_t num_rounds() const { return rounds_.size(); }
  bool has_result() const { return result_.has_value(); }

 private:
  const RoundRecord* check_round(const RoundRecord& record, Instant now);
  void violate(const std::string& what) { violations_->push_back(what); }

  std::vector<std::string>* violations_;
  RecordChecker records_;
  std::map<std::uint64_t, RoundRecord> rounds_;
  std::vector<Instant> round_began_;
  std::optional<JobResult> result_;
  std::uint32_t result_generation_ = 1;
};

}  // namespace elastic::test
