// Progress and hangs: the part of AgentRunner between the coordinator's judge and the guardian.

#include <algorithm>
#include <chrono>
#include <csignal>

#include "core/hang/stack_text.h"
#include "host/agent/agent_runner.h"

namespace elastic::host {
namespace {

// The time for the workers to write their stacks; less than that of the coordinator for the nodes.
constexpr Duration kStacksLimit = std::chrono::seconds(1);

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
    for (core::WorkerEvidence& worker : workers) {
      const auto local_rank = static_cast<std::size_t>(worker.rank);
      if (local_rank < round_->workers.size()) worker.rank = round_->workers[local_rank].rank;
    }
    membership_->observe(hang::NodeStacks{wanted.request, host_name_, core::group_stacks(workers)});
  });
}

void AgentRunner::on_verdict(const hang::Verdict& verdict) {
  if (round_ == nullptr || verdict.round != round_->round) return;
  const bool is_hang = !verdict.is_straggling;
  report_message(is_hang ? AgentEvent::Kind::kHang : AgentEvent::Kind::kStraggling, verdict.text);
  if (verdict.action == HangAction::kReport) return;
  // Without a suspect the job ends by rank 0, which runs then: some worker must fail.
  const int rank = std::max(verdict.suspect, 0);
  for (const WorkerAssignment& worker : round_->workers) {
    if (worker.rank != rank) continue;
    verdict_ = verdict;
    killed_for_hang_ = worker.local_rank;
    supervisor_->forward(SIGKILL, SignalScope::kGroup, worker.local_rank);
  }
}

}  // namespace elastic::host
