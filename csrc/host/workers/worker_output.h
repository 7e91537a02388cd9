#pragma once

// What this node's workers write: the files of each round, and the console that shows them.
//
// Everything that touches a disk or a console happens on a thread of its own, the file thread: a
// file system that does not answer delays the start of a round, and nothing else.
//
// Loop thread only. No call blocks, except the destructor, for two seconds at most.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "elastic/agent.h"
#include "elastic/agent_options.h"
#include "elastic/status.h"
#include "host/workers/run_files.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

class WorkerOutput {
 public:
  // `loop` outlives the output.
  WorkerOutput(os::EventLoop* loop, const AgentOptions& options);
  WorkerOutput(const WorkerOutput&) = delete;
  WorkerOutput& operator=(const WorkerOutput&) = delete;
  ~WorkerOutput();  // removes the temporary directory

  // Creates the files of a round and begins to copy those that also go to the console. `opened` is
  // called from the loop when they exist or cannot be made, unless cancel_round() comes first.
  void begin_round(std::shared_ptr<const RoundInfo> round, std::function<void(Status)> opened);
  void cancel_round();
  // Of the last round that was opened here.
  const AttemptFiles& files() const { return attempt_; }
  // The round's workers are gone.
  void end_round();
  // Calls `done` from the loop once the console has taken everything, or when the file thread has
  // not answered for ten seconds.
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
  void check_response();

  os::EventLoop* const loop_;
  const std::shared_ptr<const AgentOptions> options_;
  AttemptFiles attempt_;
  // At most one request is with the file thread, and one waits for it to be answered.
  bool is_opening_ = false;
  bool is_cancelled_ = false;  // the answer to the request is not wanted any more
  std::optional<Opening> opening_;
  std::function<void()> done_;
  bool has_answered_ = false;
  os::EventLoop::Timer response_timer_;
  std::unique_ptr<FileThread> thread_;  // null before the first round
};

}  // namespace elastic::host
