#pragma once

// The guardian's other end: the worker-group machine joined to the loop and to the guardian
// process.
//
// Loop thread only. WorkerGroup wraps it with a thread of its own; Agent runs it on its loop.

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "elastic/status.h"
#include "elastic/worker_group.h"
#include "os/base/fd.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

// What a worker gets instead of the stream that it would inherit.
struct WorkerStream {
  os::UniqueFd descriptor;  // its stderr; invalid: inherited
  bool is_stdout = false;   // and its stdout
};

class Supervisor {
 public:
  // Called on the loop thread for each event, in order; may call start() and stop(), and must not
  // destroy the supervisor.
  using Sink = std::function<void(const WorkerEvent&)>;

  // Starts the guardian. `loop` outlives the supervisor.
  static Result<std::unique_ptr<Supervisor>> create(os::EventLoop* loop,
                                                    const WorkerGroupOptions& options, Sink sink);
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;
  ~Supervisor();  // close(), and waits at most five seconds until nothing is left

  // As the members of WorkerGroup.
  // `streams`: none, or one for each worker.
  Status start(std::vector<WorkerCommand> commands, std::vector<WorkerStream> streams = {});
  void stop(int signal, Duration grace, SignalScope scope = SignalScope::kGroup);
  void forward(int signal, SignalScope scope = SignalScope::kGroup,
               std::optional<int> local_rank = std::nullopt);
  // True while a generation has not ended by kGroupGone.
  bool running() const;
  // Closes the link: the guardian kills what runs, however long that takes, and exits. Does not
  // wait, and no event follows.
  void close();

 private:
  class Impl;
  explicit Supervisor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace elastic::host
