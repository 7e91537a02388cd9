#pragma once

// Runs the programs of a node's checks below its guardian, beside the workers, and keeps the end
// of what they print.
//
// Loop thread only.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/gate/check_result.h"
#include "core/gate/node_checks.h"
#include "elastic/agent_options.h"
#include "host/workers/supervisor.h"
#include "os/base/fd.h"
#include "os/loop/registration.h"

namespace elastic::host {

class CheckRunner {
 public:
  using Sink = std::function<void(std::uint32_t run, gate::CheckEnd end)>;

  // `loop` and `options` outlive it.
  CheckRunner(os::EventLoop* loop, const AgentOptions& options, Sink sink);
  CheckRunner(const CheckRunner&) = delete;
  CheckRunner& operator=(const CheckRunner&) = delete;
  ~CheckRunner();

  // The sink is called when the program has ended, or at once if it cannot be started.
  void run(Supervisor* supervisor, const gate::check_action::Run& action);
  void kill(Supervisor* supervisor, std::uint32_t run);

 private:
  class Output;

  std::vector<std::string> environment(gate::Occasion occasion) const;
  void ended(std::uint32_t run, const WorkerExit& exit);

  os::EventLoop& loop_;
  const AgentOptions& options_;
  const Sink sink_;
  std::map<std::uint32_t, std::unique_ptr<Output>> outputs_;  // of the programs that run
};

}  // namespace elastic::host
