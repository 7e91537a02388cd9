#include "host/workers/output_files.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "os/net/address.h"

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

bool OutputFiles::is_followed(const AgentOptions& options) {
  const auto has_target = [&](StreamTarget target) {
    return std::any_of(options.workers.begin(), options.workers.end(), [&](const auto& worker) {
      return worker.stdout_target == target || worker.stderr_target == target;
    });
  };
  const bool is_filtered = !options.stdout_filters.empty() || !options.stderr_filters.empty();
  return has_target(StreamTarget::kTee) ||
         ((is_filtered || options.log_bytes_max > 0) && has_target(StreamTarget::kFile));
}

Result<AttemptFiles> OutputFiles::begin_round(const RoundInfo& round) {
  Result<AttemptFiles> attempt = create_files(round.round);
  if (!attempt.ok() && can_do_without(*options_)) {
    AttemptFiles none;
    none.workers.resize(options_->workers.size());
    return none;
  }
  if (!attempt.ok()) return attempt;
  Status status = create_pipes(round.round, &*attempt);
  if (status.ok()) status = follow(round, *attempt);
  if (!status.ok()) return status;
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

// A private directory: a pipe that is left in the log directory would block who reads all files.
Status OutputFiles::create_pipes(std::uint64_t round, AttemptFiles* attempt) {
  if (options_->log_bytes_max == 0 || !is_followed(*options_)) return {};
  if (!pipes_) {
    Result<os::TemporaryDirectory> directory = os::TemporaryDirectory::create();
    if (!directory.ok()) return directory.status();
    pipes_.emplace(*std::move(directory));
  }
  for (std::size_t i = 0; i < attempt->workers.size(); ++i) {
    WorkerFiles& files = attempt->workers[i];
    const std::string stem =
        pipes_->path() + "/" + std::to_string(round) + "." + std::to_string(i) + ".";
    if (!files.stdout_path.empty()) files.stdout_pipe = stem + "stdout";
    if (!files.stderr_path.empty()) files.stderr_pipe = stem + "stderr";
  }
  return {};
}

TeeRound OutputFiles::shown_as(const RoundInfo& round) const {
  TeeRound shown;
  shown.prefix = options_->line_prefix;
  shown.values.role_name = options_->role;
  shown.values.hostname = os::host_name();
  shown.values.round = round.round == 0 ? "?" : std::to_string(shown_round(round.round));
  shown.merges_lines = options_->merge_lines;
  for (const WorkerAssignment& worker : round.workers) shown.ranks[worker.local_rank] = worker.rank;
  return shown;
}

void OutputFiles::continue_round(const RoundInfo& round) {
  if (tee_) tee_->continue_round(shown_as(round));
}

Status OutputFiles::follow(const RoundInfo& round, const AttemptFiles& attempt) {
  if (!is_followed(*options_)) return {};
  if (!tee_) {
    Result<std::unique_ptr<Tee>> tee = Tee::create(loop_, report_);
    if (!tee.ok()) return tee.status();
    tee_ = *std::move(tee);
  }
  tee_->begin_round(shown_as(round));
  const auto filter_of = [&](const std::vector<std::string>& words, const char* name) {
    if (words.empty()) return std::shared_ptr<const LineFilter>();
    return std::make_shared<const LineFilter>(LineFilter{words, attempt.directory + name});
  };
  const auto stdout_filter = filter_of(options_->stdout_filters, "/filtered_stdout.log");
  const auto stderr_filter = filter_of(options_->stderr_filters, "/filtered_stderr.log");
  Status status;
  for (std::size_t i = 0; status.ok() && i < attempt.workers.size(); ++i) {
    const WorkerTemplate& worker = options_->workers[i];
    const WorkerFiles& files = attempt.workers[i];
    const int local_rank = static_cast<int>(i);
    status = follow({files.stdout_path, -1, local_rank, stdout_filter, files.stdout_pipe},
                    worker.stdout_target, STDOUT_FILENO);
    if (!status.ok()) break;
    status = follow({files.stderr_path, -1, local_rank, stderr_filter, files.stderr_pipe},
                    worker.stderr_target, STDERR_FILENO);
  }
  return status;
}

Status OutputFiles::follow(TeeStream stream, StreamTarget target, int console) {
  if (target == StreamTarget::kTee) stream.console = console;
  stream.bytes_max = options_->log_bytes_max;
  stream.files_max = options_->log_files_max;
  const bool is_needed = stream.console >= 0 || stream.filter != nullptr || !stream.pipe.empty();
  return is_needed && !stream.path.empty() ? tee_->follow(stream) : Status();
}

FailureFindings OutputFiles::examine(const WorkerFiles& files, int local_rank, bool reads_kernel) {
  if (tee_) tee_->read_pipes(local_rank);
  return examiner_.examine(files, reads_kernel);
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
