#include "host/workers/output_files.h"

#include <unistd.h>

#include <utility>

#include "core/workers/log_lines.h"

namespace elastic::host {

Result<AttemptFiles> OutputFiles::begin_round(const RoundInfo& round) {
  if (!run_files_) {
    Result<RunFiles> files = RunFiles::create(options_->log_dir, options_->run_id);
    if (!files.ok()) return files.status();
    run_files_.emplace(*std::move(files));
  }
  Result<AttemptFiles> attempt = run_files_->next_attempt(options_->workers);
  if (!attempt.ok()) return attempt;
  for (const WorkerAssignment& worker : round.workers) {
    const auto index = static_cast<std::size_t>(worker.local_rank);
    const WorkerTemplate& options = options_->workers[index];
    const WorkerFiles& files = attempt->workers[index];
    Status status;
    if (options.stdout_target == StreamTarget::kTee) {
      status = show(files.stdout_path, STDOUT_FILENO, worker);
    }
    if (status.ok() && options.stderr_target == StreamTarget::kTee) {
      status = show(files.stderr_path, STDERR_FILENO, worker);
    }
    if (!status.ok()) return status;
  }
  return attempt;
}

Status OutputFiles::show(const std::string& path, int console, const WorkerAssignment& worker) {
  if (!tee_) {
    Result<std::unique_ptr<Tee>> tee = Tee::create(loop_);
    if (!tee.ok()) return tee.status();
    tee_ = *std::move(tee);
  }
  return tee_->follow(
      path, console,
      core::expand_prefix(options_->line_prefix, options_->role, worker.rank, worker.local_rank));
}

void OutputFiles::end_round() {
  if (tee_) tee_->end_round();
}

void OutputFiles::finish(std::function<void()> done) {
  if (!tee_) {
    done();
    return;
  }
  tee_->end_round();
  tee_->finish([this, done = std::move(done)] {
    tee_.reset();
    done();
  });
}

}  // namespace elastic::host
