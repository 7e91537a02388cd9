#include "elastic/worker_group.h"

#include <utility>

#include "host/base/event_thread.h"
#include "host/workers/supervisor.h"

// A Supervisor on a separate thread. All work is done there; the public calls wait for it.

namespace elastic {

class WorkerGroup::Impl {
 public:
  std::unique_ptr<host::EventThread<host::Supervisor, WorkerEvent>> thread;
};

Result<std::unique_ptr<WorkerGroup>> WorkerGroup::create(const WorkerGroupOptions& options) {
  auto thread = host::EventThread<host::Supervisor, WorkerEvent>::start(
      "elastic-workers", [&](os::EventLoop* loop, host::Supervisor::Sink sink) {
        return host::Supervisor::create(loop, options, std::move(sink));
      });
  if (!thread.ok()) return thread.status();
  return std::unique_ptr<WorkerGroup>(
      new WorkerGroup(std::make_unique<Impl>(Impl{*std::move(thread)})));
}

WorkerGroup::WorkerGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
WorkerGroup::~WorkerGroup() = default;

Status WorkerGroup::start(std::vector<WorkerCommand> commands) {
  Status status(StatusCode::kFailedPrecondition, "cannot start workers: this is a forked child");
  impl_->thread->call([&](host::Supervisor& supervisor) { status = supervisor.start(commands); });
  return status;
}

void WorkerGroup::stop(int signal, Duration grace, SignalScope scope) {
  impl_->thread->call([&](host::Supervisor& supervisor) { supervisor.stop(signal, grace, scope); });
}

void WorkerGroup::forward(int signal, SignalScope scope, std::optional<int> local_rank) {
  impl_->thread->call(
      [&](host::Supervisor& supervisor) { supervisor.forward(signal, scope, local_rank); });
}

std::optional<WorkerEvent> WorkerGroup::next_event(Instant deadline,
                                                   const std::function<bool()>& interrupted) {
  return impl_->thread->next_event(deadline, interrupted);
}

void WorkerGroup::wake() { impl_->thread->wake(); }

}  // namespace elastic
