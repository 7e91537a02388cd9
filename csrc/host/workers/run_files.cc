#include "host/workers/run_files.h"

#include <algorithm>
#include <string_view>

#include "os/net/address.h"

namespace elastic::host {
namespace {

constexpr std::size_t kNameBytesMax = 128;  // a file name has at most 255 bytes
constexpr std::size_t kHostBytesMax = 64;

// A run id is free text. Replaces characters that have a meaning in paths or shells, and a leading
// dot.
std::string file_name_of(std::string_view run_id) {
  std::string name(run_id.substr(0, kNameBytesMax));
  const auto is_harmless = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  std::replace_if(
      name.begin(), name.end(), [&](char c) { return !is_harmless(c); }, '_');
  if (name.starts_with('.') || name.starts_with('-')) name.front() = '_';
  return name;
}

bool has_file(StreamTarget target) {
  return target == StreamTarget::kFile || target == StreamTarget::kTee;
}

}  // namespace

Result<RunFiles> RunFiles::create(const std::string& log_dir, const std::string& run_id) {
  if (log_dir.empty()) {
    Result<os::TemporaryDirectory> temporary = os::TemporaryDirectory::create();
    if (!temporary.ok()) return temporary.status();
    const std::string path = temporary->path();
    return RunFiles(path, *std::move(temporary));
  }
  Result<std::string> path = os::make_unique_directory(
      log_dir, file_name_of(run_id) + "_" + file_name_of(os::host_name().substr(0, kHostBytesMax)));
  if (!path.ok()) return path.status();
  return RunFiles(*std::move(path), std::nullopt);
}

Result<AttemptFiles> RunFiles::begin_round(std::uint64_t round,
                                           const std::vector<WorkerTemplate>& workers,
                                           bool has_pipes) {
  AttemptFiles attempt;
  attempt.directory =
      directory_ + (round == 0 ? "/prepared" : "/attempt_" + std::to_string(shown_round(round)));
  Status status = os::make_directory(attempt.directory);
  for (std::size_t local_rank = 0; status.ok() && local_rank < workers.size(); ++local_rank) {
    const std::string directory = attempt.directory + "/" + std::to_string(local_rank);
    WorkerFiles files;
    files.error_file = directory + "/error.json";
    status = os::make_directory(directory);
    if (status.ok() && has_file(workers[local_rank].stdout_target)) {
      files.stdout_path = directory + "/stdout.log";
      status = os::create_file(files.stdout_path);
    }
    if (status.ok() && has_file(workers[local_rank].stderr_target)) {
      files.stderr_path = directory + "/stderr.log";
      status = os::create_file(files.stderr_path);
    }
    attempt.workers.push_back(std::move(files));
  }
  if (status.ok() && has_pipes) status = add_pipes(round, &attempt);
  if (!status.ok()) return status;
  return attempt;
}

// In a private directory: a pipe that is left in the log directory would block who reads all files.
Status RunFiles::add_pipes(std::uint64_t round, AttemptFiles* attempt) {
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

}  // namespace elastic::host
