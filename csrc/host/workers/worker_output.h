#pragma once

// The output of this node's workers: the files of each round, their copies on the console, and the
// capture of what goes to the console itself.
//
// Every access to a disk or console happens on a separate thread, the file thread: a file system
// that does not respond delays only the start of a round.
//
// Loop thread only. No call blocks, except the destructor, for three seconds at most.

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "elastic/agent.h"
#include "elastic/agent_options.h"
#include "elastic/status.h"
#include "host/workers/failure_examiner.h"
#include "host/workers/guardian_link.h"
#include "host/workers/output_capture.h"
#include "host/workers/run_files.h"
#include "os/loop/registration.h"

namespace elastic::host {

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
  // The channels of the workers that are about to start, one for each; none without capture.
  std::vector<WorkerStream> open_channels();
  // The files of the last round that was opened.
  const AttemptFiles& files() const { return attempt_; }
  // The round's workers have started.
  void begin_examination();
  // The workers of the last round take part in a further one, with its files: what they printed so
  // far is dropped.
  void continue_examination();
  // What a worker has printed to its channel, as far as it has arrived.
  OutputCapture::Tail tail(int local_rank);
  // As in OutputCapture.
  void watch_tracebacks(std::function<void(int local_rank)> sink);
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
  // them and the replies of write_stacks() were given, or when nothing has happened for ten
  // seconds.
  void finish(std::function<void()> done);

 private:
  class Files;
  class FileThread;
  struct Opening {
    std::shared_ptr<const RoundInfo> round;
    std::function<void(Status)> opened;
  };

  void open_next();
  void on_opened(Result<AttemptFiles> files);
  void on_opening_timeout();
  void finish_files(std::function<void()> done);
  void check_response();

  os::EventLoop* const loop_;
  const std::shared_ptr<const AgentOptions> options_;
  const std::function<void(const std::string&)> report_;
  std::optional<OutputCapture> capture_;  // nullopt: workers have the agent's own descriptors
  AttemptFiles attempt_;
  // At most one request is pending on the file thread, and one waits for its reply.
  bool is_opening_ = false;
  int stacks_in_work_ = 0;
  bool is_cancelled_ = false;  // ignore the reply to the pending request
  std::optional<Opening> opening_;
  std::function<void()> done_;
  bool has_answered_ = false;
  os::Timer opening_timer_;
  os::Timer response_timer_;
  std::unique_ptr<FileThread> thread_;  // null before the first round
};

}  // namespace elastic::host
