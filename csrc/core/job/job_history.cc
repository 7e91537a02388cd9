#include "core/job/job_history.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/base/describe.h"
#include "core/session/session_wire.h"

namespace elastic::core {
ObservedRound* JobHistory::current(std::uint64_t round) {
  if (rounds_.empty() || rounds_.back().round != round) return nullptr;
  return &rounds_.back();
}

void JobHistory::worker_failed(const std::string& name, const rdzv::Failed& event) {
  ObservedRound* const round = current(event.round);
  if (round == nullptr) return;
  if (!round->failed) failure_ = {};  // of an earlier round
  if (!failure_.note(event.node, name, event.failure, event.failure.at)) return;
  round->failed = failure_.report->at;
  round->node = name;
  round->rank = event.failure.rank;
  round->exit_code = event.failure.exit_code;
  if (round->cause == rdzv::RestartCause::kWorkerFailed) {
    round->reason = describe_worker(round->rank, name, event.failure.message);
  }
}

void JobHistory::round_ends(const rdzv::Restart& action, Instant now) {
  ObservedRound* const round = current(action.round);
  if (round == nullptr || round->cause) return;
  round->cause = action.cause;
  const bool is_failure = action.cause == rdzv::RestartCause::kWorkerFailed && round->failed;
  round->reason = is_failure ? describe_worker(round->rank, round->node, failure_.report->message)
                             : action.reason;
  end_current(now);
}

bool JobHistory::progressed(std::uint64_t round, Instant now) {
  ObservedRound* const one = current(round);
  if (one == nullptr || one->first_step || one->ended) return false;
  has_steps_ = true;
  one->first_step = now;
  if (one->formed) running_since_ = now;
  return true;
}

void JobHistory::workers_ended(std::uint64_t round, Instant now) {
  if (ObservedRound* const one = current(round)) one->stopped = now;
}

void JobHistory::hangs(std::optional<Instant> since, Instant now) {
  if (rounds_.empty() || rounds_.back().ended) return;
  if (hung_since_ && !since) hung_ += now - *hung_since_;
  hung_since_ = since;
}

void JobHistory::end_current(Instant now) {
  if (rounds_.empty() || rounds_.back().ended) return;
  ran_ += ran(now);
  rounds_.back().ended = now;
  hung_since_.reset();
  hung_ = {};
}

void JobHistory::update(RendezvousPhase phase, const RoundRecord& record, Instant now,
                        std::string_view rule) {
  const bool is_running = phase == RendezvousPhase::kRunning;
  if (current(record.round) == nullptr || !is_running) end_current(now);
  if (!is_running || current(record.round) != nullptr) return;
  // The first round that this coordinator finds may have been formed by an earlier one.
  const bool is_formed_here = !rounds_.empty() || record.round == 1;
  if (!rounds_.empty()) rounds_.back().rule = rule;
  if (rounds_.size() == session::kRoundsObserved) rounds_.erase(rounds_.begin());
  ObservedRound round;
  round.round = record.round;
  round.nodes = record.nodes;
  round.world_size = record.world_size;
  round.restarts = record.restarts;
  if (is_formed_here) round.formed = now;
  rounds_.push_back(std::move(round));
  running_since_ = now;
  if (!began_) began_ = now;
}

Duration JobHistory::running(Instant now) const { return ran_ + ran(now); }

Duration JobHistory::ran(Instant now) const {
  const bool is_running = !rounds_.empty() && !rounds_.back().ended;
  const bool is_starting = is_running && has_steps_ && !rounds_.back().first_step;
  if (!is_running || is_starting) return {};
  const Instant until = hung_since_ ? std::max(*hung_since_, running_since_) : now;
  return until - running_since_ - hung_;
}

}  // namespace elastic::core
