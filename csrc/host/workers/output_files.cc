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

bool is_followed(const AgentOptions& options) {
  const auto has_target = [&](StreamTarget target) {
    return std::any_of(options.workers.begin(), options.workers.end(), [&](const auto& worker) {
      return worker.stdout_target == target || worker.stderr_target == target;
    });
  };
  const bool is_filtered = !options.stdout_filters.empty() || !options.stderr_filters.empty();
  return has_target(StreamTarget::kTee) || (is_filtered && has_target(StreamTarget::kFile));
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
  const Status status = follow(round, *attempt);
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

Status OutputFiles::follow(const RoundInfo& round, const AttemptFiles& attempt) {
  if (!is_followed(*options_)) return {};
  if (!tee_) {
    Result<std::unique_ptr<Tee>> tee = Tee::create(loop_);
    if (!tee.ok()) return tee.status();
    tee_ = *std::move(tee);
  }
  TeeRound shown;
  shown.prefix = options_->line_prefix;
  shown.values.role_name = options_->role;
  shown.values.hostname = os::host_name();
  shown.values.round = std::to_string(shown_round(round.round));
  shown.merges_lines = options_->merge_lines;
  for (const WorkerAssignment& worker : round.workers) shown.ranks[worker.local_rank] = worker.rank;
  tee_->begin_round(std::move(shown));
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
    status = follow({files.stdout_path, -1, local_rank, stdout_filter}, worker.stdout_target,
                    STDOUT_FILENO);
    if (!status.ok()) break;
    status = follow({files.stderr_path, -1, local_rank, stderr_filter}, worker.stderr_target,
                    STDERR_FILENO);
  }
  return status;
}

Status OutputFiles::follow(TeeStream stream, StreamTarget target, int console) {
  if (target == StreamTarget::kTee) stream.console = console;
  const bool is_needed = stream.console >= 0 || stream.filter != nullptr;
  return is_needed && !stream.path.empty() ? tee_->follow(stream) : Status();
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
