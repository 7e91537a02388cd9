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

// The output of this node's workers: the files of each round, and their copies on the console.
//
// Every access to a disk or console happens on a separate thread, the file thread: a file system
// that does not respond delays only the start of a round.
//
// Loop thread only. No call blocks, except the destructor, for two seconds at most.

class WorkerOutput {
 public:
  // `loop` outlives the output. `report` receives errors of the log files, on the loop.
  WorkerOutput(os::EventLoop* loop, const AgentOptions& options,
               std::function<void(const std::string&)> report);
  WorkerOutput(const WorkerOutput&) = delete;
  WorkerOutput& operator=(const WorkerOutput&) = delete;
  ~WorkerOutput();  // removes the temporary directory

  // Creates the files of a round and begins to copy the kTee streams' files to the console.
  // `opened` is called from the loop with the result, unless cancel_round() is called first. If the
  // file system does not respond within the start timeout of the workers, the result is an error.
  void begin_round(std::shared_ptr<const RoundInfo> round, std::function<void(Status)> opened);
  void cancel_round();
  // The workers of the last round take part in this one: their lines have its prefix.
  void continue_round(std::shared_ptr<const RoundInfo> round);
  // The files of the last round that was opened.
  const AttemptFiles& files() const { return attempt_; }
  // The round's workers have started.
  void begin_examination();
  // The workers of the last round take part in a further one, with its files.
  void continue_examination();
  // Calls `done` from the loop with what the worker and the kernel left behind; never if the file
  // system does not respond.
  void examine(std::size_t local_rank, bool reads_kernel,
               std::function<void(FailureFindings)> done);
  // Adds the text to stacks.txt in the round's directory, and calls `done` from the loop with the
  // file's path and the result. REQUIRES: a log directory
  void write_stacks(std::string text, std::function<void(const std::string&, const Status&)> done);
  // The round's workers have ended.
  void end_round();
  // Calls `done` from the loop when the workers' last lines were copied, the console has accepted
  // them and the replies of write_stacks() were given, or when the file thread has not replied for
  // ten seconds.
  void finish(std::function<void()> done);

 private:
  class FileThread;
  struct Opening {
    std::shared_ptr<const RoundInfo> round;
    std::function<void(Status)> opened;
  };

  Status start_thread();
  void open_next();
  void on_opened(Result<AttemptFiles> files);
  void on_opening_timeout();
  void check_response();

  os::EventLoop* const loop_;
  const std::shared_ptr<const AgentOptions> options_;
  const std::function<void(const std::string&)> report_;
  AttemptFiles attempt_;
  // At most one request is pending on the file thread, and one waits for its reply.
  bool is_opening_ = false;
  int stacks_in_work_ = 0;
  bool is_cancelled_ = false;  // ignore the reply to the pending request
  std::optional<Opening> opening_;
  std::function<void()> done_;
  bool has_answered_ = false;
  os::EventLoop::Timer opening_timer_;
  os::EventLoop::Timer response_timer_;
  std::unique_ptr<FileThread> thread_;  // null before the first round
};

}  // namespace elastic::host
