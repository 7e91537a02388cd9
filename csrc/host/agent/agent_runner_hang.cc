// Progress and hangs: the part of AgentRunner between the coordinator's judge and the guardian.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <string>
#include <utility>

#include "core/hang/stack_text.h"
#include "host/agent/agent_runner.h"

namespace elastic::host {
namespace {

// The time for the workers to write their stacks; less than that of the coordinator for the nodes.
constexpr Duration kStacksLimit = std::chrono::seconds(1);
// The longest delay of a stop for the sake of stacks.
constexpr Duration kHeldStopLimit = std::chrono::seconds(2);

}  // namespace

void AgentRunner::on_progress(const guardian::ProgressEvent& progress) {
  if (round_ == nullptr || membership_ == nullptr || progress.slowest >= round_->workers.size()) {
    return;
  }
  membership_->observe(
      hang::NodeProgress{.round = round_->round,
                         .reporting = static_cast<std::int32_t>(progress.reporting),
                         .newest = progress.newest,
                         .oldest = progress.oldest,
                         .slowest_rank = round_->workers[progress.slowest].rank,
                         .slowest_idle = progress.slowest_idle,
                         .idle = progress.idle,
                         .section_limit = progress.section_limit,
                         .limit = options_.hang_timeout,
                         .action = options_.hang_action});
}

void AgentRunner::on_stacks_wanted(const hang::StacksWanted& wanted) {
  supervisor_->collect_stacks(kStacksLimit, [this, wanted](auto workers) {
    if (round_ == nullptr || membership_ == nullptr) return;
    note_stacks(std::move(workers));
    membership_->observe(hang::NodeStacks{wanted.request, host_name_, core::group_stacks(stacks_)});
  });
}

// The guardian knows local ranks only.
void AgentRunner::note_stacks(std::vector<core::WorkerEvidence> workers) {
  for (core::WorkerEvidence& worker : workers) {
    const auto local_rank = static_cast<std::size_t>(worker.rank);
    if (local_rank < round_->workers.size()) worker.rank = round_->workers[local_rank].rank;
  }
  std::sort(workers.begin(), workers.end(),
            [](const auto& a, const auto& b) { return a.rank < b.rank; });
  stacks_ = std::move(workers);
}

void AgentRunner::on_verdict(const hang::Verdict& verdict) {
  if (round_ == nullptr || verdict.round != round_->round) return;
  const bool is_hang = !verdict.is_straggling;
  report_message(is_hang ? AgentEvent::Kind::kHang : AgentEvent::Kind::kStraggling, verdict.text);
  if (is_hang && !options_.log_dir.empty()) write_stacks(verdict.text);
  if (verdict.action == HangAction::kReport) return;
  may_hold_stop_ = false;  // the stacks of this failure are known
  // Without a suspect the job ends by rank 0, which runs then: some worker must fail.
  const int rank = std::max(verdict.suspect, 0);
  for (const WorkerAssignment& worker : round_->workers) {
    if (worker.rank != rank) continue;
    kill_worker({.local_rank = worker.local_rank,
                 .verdict = verdict.cause,
                 .ends_job = verdict.action == HangAction::kFail});
  }
}

// The time of the other ranks begins with the first one that exits with 0, unless it was told to.
void AgentRunner::on_worker_finished(const WorkerEvent& event) {
  const bool is_limited = options_.straggler_timeout > Duration::zero() && membership_ != nullptr;
  const bool was_told = event.exit.stopped_by_us || event.exit.stop_step >= 0;
  const auto local_rank = static_cast<std::size_t>(event.local_rank);
  if (!is_limited || was_told || round_ == nullptr || local_rank >= round_->workers.size()) return;
  if (std::exchange(has_sent_finish_, true)) return;
  membership_->observe(hang::RankFinished{.round = round_->round,
                                          .rank = round_->workers[local_rank].rank,
                                          .limit = options_.straggler_timeout});
}

// ---- The stop of the workers, before which their stacks may be wanted.

void AgentRunner::stop_group(const core::StopGroup& stop) {
  if (is_opening_files_) return cancel_start();
  probe_.cancel();
  const bool is_for_failure = is_stop_for_failure_ || is_stop_for_loss_;
  held_stop_ = stop;
  if (!std::exchange(may_hold_stop_, false) || !is_for_failure) return release_stop();
  held_stop_timer_.arm(loop_->now() + kHeldStopLimit);
  supervisor_->collect_stacks(kStacksLimit, [this](auto workers) {
    if (!held_stop_) return;
    note_stacks(std::move(workers));
    if (!stacks_.empty()) {
      write_stacks("stacks before the stop after a failure, in round " +
                   std::to_string(shown_round(round_->round)));
    }
    release_stop();
  });
}

void AgentRunner::release_stop() {
  held_stop_timer_.disarm();
  if (!held_stop_) return;
  const core::StopGroup stop = *std::exchange(held_stop_, std::nullopt);
  inquiry_.workers_stopped(is_stop_for_failure_);
  supervisor_->stop(stop.signal, stop.grace, options_.stop_scope);
}

void AgentRunner::write_stacks(const std::string& reason) {
  const std::string text = reason + "\n" + core::describe_stacks(stacks_);
  if (options_.log_dir.empty()) return report_message(AgentEvent::Kind::kNotice, text);
  output_.write_stacks(text, [this](const std::string& path, const Status& written) {
    report_message(AgentEvent::Kind::kNotice, written.ok()
                                                  ? "the stacks of the workers are in " + path
                                                  : std::string(written.message()));
  });
}

}  // namespace elastic::host
