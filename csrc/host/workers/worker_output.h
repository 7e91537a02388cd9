#pragma once

// What this node's workers write: the files of each round, and the console that shows them.
//
// Loop thread only.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "elastic/agent.h"
#include "elastic/agent_options.h"
#include "elastic/status.h"
#include "host/workers/run_files.h"
#include "host/workers/tee.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

class WorkerOutput {
 public:
  // `loop` and `options` outlive the output.
  WorkerOutput(os::EventLoop* loop, const AgentOptions& options) : loop_(loop), options_(options) {}

  // Creates the files of a round and begins to show those that are to be shown.
  Status begin_round(const RoundInfo& round);
  // Of the last round that began here.
  const AttemptFiles& files() const { return attempt_; }
  // The round's workers are gone.
  void end_round();
  // Calls `done` once the console has taken everything; at once if nothing is shown.
  void finish(std::function<void()> done);

 private:
  Status show(const std::string& path, int console, const WorkerAssignment& worker);

  os::EventLoop* const loop_;
  const AgentOptions& options_;
  std::optional<RunFiles> run_files_;  // created with the first round
  AttemptFiles attempt_;
  std::unique_ptr<Tee> tee_;  // null while nothing is shown
};

}  // namespace elastic::host
