#pragma once

// Runs the worker-group machine on a loop, connected to a guardian process.
//
// Loop thread only. WorkerGroup runs it on a separate thread; Agent runs it on its own loop.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/hang/stack_text.h"
#include "core/workers/guardian_protocol.h"
#include "elastic/status.h"
#include "elastic/worker_group.h"
#include "os/base/fd.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

// Replaces streams that a worker would inherit.
struct WorkerStream {
  os::UniqueFd descriptor;  // its stderr; invalid: inherited
  bool is_stdout = false;   // and its stdout
};

class Supervisor {
 public:
  // Called on the loop thread for each event, in order. It may call start() and stop(); it must not
  // destroy the supervisor.
  using Sink = std::function<void(const WorkerEvent&)>;

  // Starts the guardian. `loop` outlives the supervisor. `shared`: a descriptor that the guardian
  // holds until no process of the workers is left; -1: none.
  static Result<std::unique_ptr<Supervisor>> create(os::EventLoop* loop,
                                                    const WorkerGroupOptions& options, Sink sink,
                                                    int shared = -1);
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;
  ~Supervisor();  // close(), and waits at most five seconds for the guardian to exit

  // As the members of WorkerGroup.
  // `streams`: none, or one for each worker.
  Status start(std::vector<WorkerCommand> commands, std::vector<WorkerStream> streams = {});
  void stop(int signal, Duration grace, SignalScope scope = SignalScope::kGroup);
  void forward(int signal, SignalScope scope = SignalScope::kGroup,
               std::optional<int> local_rank = std::nullopt);
  // While workers report steps, reads their progress at this interval, and calls the sink when it
  // has changed. `marks` receives what each worker's channel shows once.
  using ProgressSink = std::function<void(const guardian::ProgressEvent&)>;
  using MarkSink = std::function<void(const guardian::MarkEvent&)>;
  void watch(Duration interval, ProgressSink progress, MarkSink marks);
  // Collects the stacks of the running workers; `done` is called within about `limit`, unless the
  // guardian is lost or stacks are requested again before. The ranks are local.
  using StacksSink = std::function<void(std::vector<core::WorkerEvidence>)>;
  void collect_stacks(Duration limit, StacksSink done);
  // Passes the request to the guardian. `sink` receives its events from now on.
  using StopStepSink = std::function<void(const drain::StopStepEvent&)>;
  void set_stop_step(const drain::StopStepRequest& request, StopStepSink sink);
  // The round is over: asks every worker that can take part in another one (Mark::kMember) to leave
  // it. `marks` of watch() receives Mark::kLeft of each.
  void cut(std::uint64_t round);
  // Gives the workers, which have left their round, another one: for each of them the variables
  // "NAME=value" that are new or have changed. A worker that has ended is skipped. An error, and no
  // worker receives anything, if the generation does not run, or the lists are invalid.
  Status continue_round(std::uint64_t round, const std::vector<std::vector<std::string>>& env);
  // Calls `done` once: at once, or when the template that imports can fork workers, or never will.
  void when_warm(std::function<void()> done);
  // True until the generation has ended (kGroupEnded).
  bool running() const;
  // Closes the link: the guardian kills all processes, however long that takes, and exits. Does not
  // wait. No event follows.
  void close();

 private:
  class Impl;
  explicit Supervisor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace elastic::host
