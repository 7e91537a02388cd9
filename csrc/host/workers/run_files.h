#pragma once

// The logs and error files of a run:
//
//   <log_dir>/<run_id>_<random>/attempt_<n>/<local_rank>/{stdout.log,stderr.log,error.json}
//
// File thread only: every call may block on the file system.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "elastic/agent.h"
#include "elastic/agent_options.h"
#include "elastic/status.h"
#include "os/file/file.h"

namespace elastic::host {

// The files of one worker in one attempt; absolute paths.
struct WorkerFiles {
  std::string error_file;   // created by the worker if it has an error; "": none
  std::string stdout_path;  // an existing file; "" unless the stream is written to a file
  std::string stderr_path;
  // With a limit of their size: the pipes that the worker writes to instead.
  std::string stdout_pipe;
  std::string stderr_pipe;
};

struct AttemptFiles {
  std::string directory;
  std::vector<WorkerFiles> workers;
};

class RunFiles {
 public:
  // Creates the run's directory below `log_dir`. If that is "", creates a temporary directory,
  // which is removed with the object.
  static Result<RunFiles> create(const std::string& log_dir, const std::string& run_id);

  // Creates the directories and empty log files of a round: attempt_<shown_round(round)>; 0:
  // prepared, of workers that were started before their first round. `has_pipes`: each log file has
  // the path of a pipe, which does not exist yet.
  Result<AttemptFiles> begin_round(std::uint64_t round, const std::vector<WorkerTemplate>& workers,
                                   bool has_pipes);

 private:
  RunFiles(std::string directory, std::optional<os::TemporaryDirectory> temporary)
      : directory_(std::move(directory)), temporary_(std::move(temporary)) {}
  Status add_pipes(std::uint64_t round, AttemptFiles* attempt);

  std::string directory_;
  std::optional<os::TemporaryDirectory> temporary_;  // the same directory
  std::optional<os::TemporaryDirectory> pipes_;      // created with the first pipes
};

}  // namespace elastic::host
