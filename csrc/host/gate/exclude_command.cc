#include "host/gate/exclude_command.h"

#include <utility>
#include <vector>

#include "os/loop/event_loop.h"
#include "os/loop/thread.h"
#include "os/process/command.h"

namespace elastic::host {

ExcludeCommand::ExcludeCommand(os::EventLoop* loop, std::string command,
                               std::function<void(std::string)> log, Duration limit)
    : command_(std::move(command)), limit_(limit) {
  shared_->loop = loop;
  shared_->log = std::move(log);
}

ExcludeCommand::~ExcludeCommand() {
  const std::lock_guard lock(shared_->mutex);
  shared_->loop = nullptr;
}

void ExcludeCommand::run(const std::string& job, const gate::Excluded& host) {
  if (command_.empty()) return;
  const std::string name = "the command of --on-exclude for host " + host.host;
  if (shared_->running == kExcludeCommandsMax) {
    return shared_->log(name + " was not run: " + std::to_string(shared_->running) +
                        " others are running");
  }
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(host.duration).count();
  std::vector<std::string> variables = os::environment_with({
      "ELASTIC_EXCLUDED_HOST=" + host.host,
      "ELASTIC_EXCLUDED_REASON=" + host.why,
      "ELASTIC_EXCLUDED_EVIDENCE=" + host.evidence,
      "ELASTIC_EXCLUDED_SECONDS=" + std::to_string(seconds),
      "ELASTIC_EXCLUDED_TIMES=" + std::to_string(host.times),
      "ELASTIC_RUN_ID=" + job,
  });
  auto thread = os::DetachableThread::start(
      "elastic-exclude", [shared = shared_, name, command = command_,
                          variables = std::move(variables), limit = limit_] {
        const std::string end = os::run_command(command, variables, limit);
        const std::lock_guard lock(shared->mutex);
        if (shared->loop == nullptr) return;
        shared->loop->post([shared, text = name + " " + end, is_good = end.empty()] {
          --shared->running;
          // The destructor runs on this thread.
          if (!is_good && shared->loop != nullptr) shared->log(text);
        });
      });
  if (!thread.ok()) {
    return shared_->log(name + " was not run: " + std::string(thread.status().message()));
  }
  ++shared_->running;
}

}  // namespace elastic::host
