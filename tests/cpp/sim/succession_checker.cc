#include "sim/succession_checker.h"

#include <algorithm>
#include <iterator>
#include <variant>

namespace elastic::test {

const RoundRecord* SuccessionChecker::check(const core::RendezvousAction& action, Instant now) {
  if (const auto* round = std::get_if<rdzv::Round>(&action)) {
    return check_round(*round->record, now);
  }
  if (const auto* closed = std::get_if<rdzv::Closed>(&action)) {
    if (result_ && *result_ != *closed->result) violate("two results of one job were sent");
    result_ = *closed->result;
    result_generation_ = rounds_.empty() ? 1 : last_round().generation;
  }
  return nullptr;
}

void SuccessionChecker::in_force(const RoundRecord& record) {
  if (record.round == 0) return;
  if (const std::string fault = records_.in_force(record); !fault.empty()) violate(fault);
}

const RoundRecord* SuccessionChecker::check_round(const RoundRecord& record, Instant now) {
  if (const std::string fault = records_.sent(record); !fault.empty()) violate(fault);
  const auto [known, is_new] = rounds_.try_emplace(record.round, record);
  if (!is_new) return nullptr;
  if (!records_.is_in_force(record)) {
    violate("R3: round " + std::to_string(record.round) + " was sent before it is in force");
  }
  if (result_ && record.generation <= result_generation_) violate("a round follows a result");
  if (known != rounds_.begin()) {
    const RoundRecord& before = std::prev(known)->second;
    // The next generation is another job, with a budget of its own.
    const bool is_of_same_job = record.generation == before.generation;
    if (is_of_same_job &&
        (record.restarts < before.restarts || record.restarts > before.restarts + 1)) {
      violate("the restart budget went from " + std::to_string(before.restarts) + " to " +
              std::to_string(record.restarts));
    }
    if (record.term < before.term) violate("a later round has an earlier term");
  }
  if (std::next(known) != rounds_.end()) {
    violate("I5: round " + std::to_string(record.round) + " was sent after a later one");
  }
  round_began_.push_back(now);
  return &known->second;
}

Instant SuccessionChecker::next_round_after(Instant when) const {
  const auto next = std::upper_bound(round_began_.begin(), round_began_.end(), when);
  return next == round_began_.end() ? Instant::max() : *next;
}

}  // namespace elastic::test
