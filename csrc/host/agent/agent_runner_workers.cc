// Progress, stacks and agreed steps: the part of AgentRunner that passes between the coordinator
// and the guardian what each has to know of the workers.

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

}  // namespace

void AgentRunner::on_progress(const guardian::ProgressEvent& progress) {
  if (round_ == nullptr || membership_ == nullptr || progress.slowest >= round_->workers.size()) {
    return;
  }
  membership_->report(hang::NodeProgress{.round = round_->round,
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
  collect_stacks([this, wanted](bool any) {
    if (membership_ == nullptr || round_ == nullptr) return;
    hang::NodeStacks stacks{.request = wanted.request, .host = host_name_, .groups = {}};
    if (any) stacks.groups = core::group_stacks(stacks_);
    membership_->report(stacks);
  });
}

// Those that arrive after the end of the round are not of its workers.
void AgentRunner::collect_stacks(std::function<void(bool any)> done) {
  supervisor_->collect_stacks(
      kStacksLimit, [this, round = round_, done = std::move(done)](auto workers) {
        if (round == nullptr || round != round_) return done(false);
        for (core::WorkerEvidence& worker : workers) {  // the guardian knows local ranks only
          const auto local_rank = static_cast<std::size_t>(worker.rank);
          if (local_rank < round->workers.size()) worker.rank = round->workers[local_rank].rank;
        }
        std::sort(workers.begin(), workers.end(),
                  [](const auto& a, const auto& b) { return a.rank < b.rank; });
        const bool any = !workers.empty();
        if (any) stacks_ = std::move(workers);
        done(any);
      });
}

void AgentRunner::execute(core::agent_action::CollectStacks) {
  if (is_opening_files_) return feed(core::agent_event::StacksCollected{});
  probe_.cancel();
  collect_stacks([this](bool any) { feed(core::agent_event::StacksCollected{any}); });
}

void AgentRunner::execute(core::agent_action::StopWorkers action) {
  if (is_opening_files_) return cancel_start();
  probe_.cancel();
  inquiry_.workers_stopped(action.after_failure);
  supervisor_->stop(action.how.signal, action.how.grace, options_.stop_scope);
}

void AgentRunner::execute(core::agent_action::SetStopStep action) {
  supervisor_->set_stop_step(action.request,
                             [this](const drain::StopStepEvent& event) { feed(event); });
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
