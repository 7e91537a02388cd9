#pragma once

// Passes on what workers write to the launcher's own stderr, and keeps the last lines of each.
//
// A worker whose stderr is inherited gets a channel of its own instead: a pseudo-terminal where the
// launcher's stderr is a terminal, else a pipe. A thread copies the bytes as they come. It reads
// nothing while the console takes nothing, so that a worker waits for a slow console as it would
// without us. Where stdout is inherited too and is the same file, both go through the one channel,
// which keeps their order.
//
// Loop thread only. No call blocks, except the destructor, for a second at most.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "elastic/agent_options.h"
#include "host/workers/supervisor.h"
#include "os/loop/detachable_thread.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

class OutputCapture {
 public:
  static constexpr std::size_t kReportLines = 50;

  // `loop` outlives the capture.
  explicit OutputCapture(os::EventLoop* loop);
  OutputCapture(const OutputCapture&) = delete;
  OutputCapture& operator=(const OutputCapture&) = delete;
  ~OutputCapture();

  // Opens the channels of a round, one for each worker. A worker without one (its stderr goes
  // elsewhere, or the system has no more of them) has an invalid descriptor, and inherits.
  std::vector<WorkerStream> begin_round(const std::vector<WorkerTemplate>& workers);
  // The end of what this worker of the present round has written, as far as it has arrived.
  std::string tail(int local_rank);
  // The round's workers are gone. What they left in the channels is still passed on.
  void end_round();
  // Calls `done` from the loop once everything is passed on, or when the console has taken nothing
  // for ten seconds. After that nothing is passed on.
  void finish(std::function<void()> done);

 private:
  class Relay;
  struct Stream;

  bool start_thread();
  void check_progress();
  void conclude();

  os::EventLoop* const loop_;
  // Looked up once: it may touch a disk.
  const bool takes_stderr_;
  const bool takes_stdout_;  // with stderr, in one channel
  std::uint64_t round_ = 0;
  std::vector<std::shared_ptr<Stream>> streams_;  // of the round, by local rank; null: none
  std::shared_ptr<Relay> relay_;                  // null until a channel was opened
  std::optional<os::DetachableThread> thread_;
  std::function<void()> done_;
  std::uint64_t passed_on_ = 0;  // when progress was looked at last
  const std::shared_ptr<bool> response_timer_ = std::make_shared<bool>(true);
  os::EventLoop::Timer timeout_;
};

}  // namespace elastic::host
