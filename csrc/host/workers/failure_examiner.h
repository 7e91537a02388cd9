#pragma once

// Reads what a failed worker and the kernel left behind: the error file, the end of a stderr that
// was written to a file, OOM kills, and GPU faults in the kernel log.
//
// File thread only: every call may block on the file system.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/workers/failure_cause.h"
#include "elastic/time.h"
#include "host/workers/run_files.h"
#include "os/file/file.h"
#include "os/process/kernel_evidence.h"

namespace elastic::host {

struct FailureFindings {
  // When the worker reported its error: in its error file, or by a traceback at the end of its
  // stderr file. nullopt: it did not, or its exit is more exact.
  std::optional<Instant> reported_at;
  std::string error_message;  // of the error file
  std::string stderr_bytes;   // the end of the stderr file
  core::KernelEvidence kernel;
};

class FailureExaminer {
 public:
  // How far the clock that stamps this file is ahead of this host's.
  using FileClock = std::function<Duration(const std::string& path)>;

  explicit FailureExaminer(FileClock file_clock = &os::file_clock_ahead)
      : file_clock_(std::move(file_clock)) {}

  // The round's workers have started: counts from here.
  void begin_round(Instant now);
  // The workers of the last round take part in a further one, with the same files: a file that was
  // not written since then tells nothing about this round.
  void continue_round(Instant now);
  // `reads_kernel`: also what the kernel counted and logged since the round began.
  FailureFindings examine(const WorkerFiles& files, bool reads_kernel);

 private:
  Duration clock_of(const std::string& path, dev_t device);

  const FileClock file_clock_;
  std::map<dev_t, Duration> clocks_;  // of the file systems of this round's files
  std::optional<os::OomCounter> oom_counter_;
  std::optional<std::uint64_t> oom_kills_;  // at the beginning of the round
  Instant since_;
  Instant files_since_ = Instant::min();
};

}  // namespace elastic::host
