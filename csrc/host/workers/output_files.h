#pragma once

// The part of WorkerOutput that touches the disk and the console: the files of each round, and the
// tee that copies them to the console.
//
// File thread only: every call may block on the file system.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "elastic/agent.h"
#include "elastic/agent_options.h"
#include "elastic/status.h"
#include "host/workers/failure_examiner.h"
#include "host/workers/run_files.h"
#include "host/workers/tee.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

class OutputFiles {
 public:
  // `loop` outlives the object. `report` receives errors of the files.
  OutputFiles(os::EventLoop* loop, std::shared_ptr<const AgentOptions> options,
              std::function<void(const Status&)> report)
      : loop_(loop), options_(std::move(options)), report_(std::move(report)) {}

  // Whether streams are read while the workers write them: for the console, for filters, or because
  // the size of the files is limited.
  static bool is_followed(const AgentOptions& options);

  // Creates the files of a round and begins to copy the kTee streams' files to the console. If
  // there is no log directory and no temporary one can be created, workers have no error files.
  Result<AttemptFiles> begin_round(const RoundInfo& round);
  // The same workers take part in this round: their lines have its prefix, their files remain.
  void continue_round(const RoundInfo& round);
  // The round's workers have started.
  FailureExaminer& examiner() { return examiner_; }
  FailureFindings examine(const WorkerFiles& files, int local_rank, bool reads_kernel);
  // The round's workers have ended.
  void end_round();
  // Calls `done` when the rest of the streams was read and the console has accepted everything; at
  // once if no stream is followed.
  void finish(std::function<void()> done);

 private:
  Result<AttemptFiles> create_files(std::uint64_t round);
  Status create_pipes(std::uint64_t round, AttemptFiles* attempt);
  TeeRound shown_as(const RoundInfo& round) const;
  Status follow(const RoundInfo& round, const AttemptFiles& attempt);
  Status follow(TeeStream stream, StreamTarget target, int console);

  os::EventLoop* const loop_;
  const std::shared_ptr<const AgentOptions> options_;
  const std::function<void(const Status&)> report_;
  FailureExaminer examiner_;
  std::optional<RunFiles> run_files_;            // created with the first round
  std::optional<os::TemporaryDirectory> pipes_;  // created with the first pipes
  std::unique_ptr<Tee> tee_;                     // null while nothing is copied
};

}  // namespace elastic::host
