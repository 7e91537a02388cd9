#include "host/workers/output_files.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/workers/log_lines.h"

namespace elastic::host {
namespace {

// Without a log directory and without streams to files there are only error files. If no temporary
// directory can be created, workers run without error files.
bool can_do_without(const AgentOptions& options) {
  const auto has_no_file = [](StreamTarget target) {
    return target == StreamTarget::kInherit || target == StreamTarget::kDiscard;
  };
  return options.log_dir.empty() &&
         std::all_of(options.workers.begin(), options.workers.end(), [&](const auto& worker) {
           return has_no_file(worker.stdout_target) && has_no_file(worker.stderr_target);
         });
}

}  // namespace

Result<AttemptFiles> OutputFiles::begin_round(const RoundInfo& round) {
  Result<AttemptFiles> attempt = create_files(round.round);
  if (!attempt.ok() && can_do_without(*options_)) {
    AttemptFiles none;
    none.workers.resize(options_->workers.size());
    return none;
  }
  if (!attempt.ok()) return attempt;
  for (const WorkerAssignment& worker : round.workers) {
    const auto index = static_cast<std::size_t>(worker.local_rank);
    const WorkerTemplate& options = options_->workers[index];
    const WorkerFiles& files = attempt->workers[index];
    Status status;
    if (options.stdout_target == StreamTarget::kTee) {
      status = copy_to_console(files.stdout_path, STDOUT_FILENO, worker);
    }
    if (status.ok() && options.stderr_target == StreamTarget::kTee) {
      status = copy_to_console(files.stderr_path, STDERR_FILENO, worker);
    }
    if (!status.ok()) return status;
  }
  return attempt;
}

Result<AttemptFiles> OutputFiles::create_files(std::uint64_t round) {
  if (!run_files_) {
    Result<RunFiles> files = RunFiles::create(options_->log_dir, options_->run_id);
    if (!files.ok()) return files.status();
    run_files_.emplace(*std::move(files));
  }
  return run_files_->begin_round(round, options_->workers);
}

Status OutputFiles::copy_to_console(const std::string& path, int console,
                                    const WorkerAssignment& worker) {
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
