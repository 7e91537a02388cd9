#pragma once

// Copies the workers' inherited stderr to the launcher's own stderr, and keeps the last lines of
// each worker.
//
// A worker that inherits stderr gets a channel instead: a pseudo-terminal if the launcher's stderr
// is a terminal, else a pipe. A thread copies the bytes as they arrive. It does not read while the
// console accepts nothing, so that a worker waits for a slow console as without capture. If stdout
// is inherited too and is the same file, both use the same channel, which keeps their order. The
// stderr of a worker that is not shown is read as well, for the last lines.
//
// Loop thread only. No call blocks, except the destructor, for a second at most.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "elastic/agent_options.h"
#include "host/workers/guardian_link.h"
#include "os/loop/loop_object.h"
#include "os/loop/registration.h"

namespace elastic::host {

class OutputCapture {
 public:
  static constexpr std::size_t kReportLines = 50;

  // `loop` outlives the capture.
  explicit OutputCapture(os::EventLoop* loop);
  OutputCapture(const OutputCapture&) = delete;
  OutputCapture& operator=(const OutputCapture&) = delete;
  ~OutputCapture();

  // Receives, on the loop, the local rank of a worker that has printed a Python traceback.
  void watch_tracebacks(std::function<void(int local_rank)> sink) {
    on_traceback_ = std::move(sink);
  }
  // Opens the channels of a round, one for each worker. The descriptor is invalid if the worker's
  // stderr goes to a file, or if the system has no channel left: then the worker has what its
  // template says.
  std::vector<WorkerStream> begin_round(const std::vector<WorkerTemplate>& workers);
  // The workers of the round take part in the next one: what they printed so far is dropped.
  void continue_round();
  // What has arrived so far from a worker in the current round.
  struct Tail {
    std::string lines;  // the last ones
    // When the last Python traceback arrived; nullopt: none did.
    std::optional<Instant> traceback_at;
  };
  Tail tail(int local_rank);
  // The round's workers have ended. The rest in their channels is still copied.
  void end_round();
  // Calls `done` from the loop when everything is copied, or when the console has accepted nothing
  // for ten seconds. After that nothing is copied.
  void finish(std::function<void()> done);

 private:
  class Relay;

  bool is_captured(const WorkerTemplate& worker) const;
  bool start_relay();

  os::EventLoop* const loop_;
  // Evaluated once: fstat() may access a disk.
  const bool takes_stderr_;
  const bool takes_stdout_;  // with stderr, in one channel
  std::function<void(int local_rank)> on_traceback_;
  const std::shared_ptr<bool> exists_ = std::make_shared<bool>(true);
  // Null until a channel was opened. Its thread waits for no console.
  std::unique_ptr<os::LoopObject<Relay>> relay_;
};

}  // namespace elastic::host
