#include "elastic/worker_group.h"

#include <utility>

#include "host/base/event_queue.h"
#include "host/workers/supervisor.h"
#include "os/base/fork_guard.h"
#include "os/loop/loop_thread.h"

// A Supervisor on a separate thread, and a queue for its events. All work is done on the loop
// thread; the public calls wait for it.

namespace elastic {

class WorkerGroup::Impl {
 public:
  explicit Impl(os::Notifier notifier, std::unique_ptr<os::LoopThread> thread)
      : events_(std::move(notifier)), thread_(std::move(thread)) {}

  Status create_supervisor(const WorkerGroupOptions& options) {
    Status status;
    thread_->call([&] {
      auto supervisor = host::Supervisor::create(
          &thread_->loop(), options, [this](const WorkerEvent& event) { events_.push(event); });
      if (supervisor.ok()) {
        supervisor_ = std::move(*supervisor);
      } else {
        status = supervisor.status();
      }
    });
    return status;
  }

  ~Impl() {
    if (fork_guard_.is_in_child()) {
      // The thread and the guardian belong to the parent: this process cannot end them.
      static_cast<void>(supervisor_.release());
      static_cast<void>(thread_.release());
      return;
    }
    thread_->call([this] { supervisor_.reset(); });
  }

  Status start(std::vector<WorkerCommand> commands) {
    if (fork_guard_.is_in_child()) {
      return {StatusCode::kFailedPrecondition, "cannot start workers: this is a forked child"};
    }
    Status status;
    thread_->call([&] { status = supervisor_->start(std::move(commands)); });
    return status;
  }

  void stop(int signal, Duration grace, SignalScope scope) {
    if (fork_guard_.is_in_child()) return;
    thread_->call([&] { supervisor_->stop(signal, grace, scope); });
  }

  void forward(int signal, SignalScope scope, std::optional<int> local_rank) {
    if (fork_guard_.is_in_child()) return;
    thread_->call([&] { supervisor_->forward(signal, scope, local_rank); });
  }

  std::optional<WorkerEvent> next_event(Instant deadline,
                                        const std::function<bool()>& interrupted) {
    if (fork_guard_.is_in_child()) return std::nullopt;
    return events_.pop(deadline, interrupted);
  }

  void wake() {
    if (!fork_guard_.is_in_child()) events_.wake();
  }

 private:
  const os::ForkGuard fork_guard_;
  host::EventQueue<WorkerEvent> events_;
  std::unique_ptr<os::LoopThread> thread_;
  std::unique_ptr<host::Supervisor> supervisor_;  // loop thread only
};

Result<std::unique_ptr<WorkerGroup>> WorkerGroup::create(const WorkerGroupOptions& options) {
  Result<os::Notifier> notifier = os::Notifier::create();
  if (!notifier.ok()) return notifier.status();
  Result<std::unique_ptr<os::LoopThread>> thread = os::LoopThread::start("elastic-workers");
  if (!thread.ok()) return thread.status();
  auto impl = std::make_unique<Impl>(std::move(*notifier), std::move(*thread));
  if (Status status = impl->create_supervisor(options); !status.ok()) return status;
  return std::unique_ptr<WorkerGroup>(new WorkerGroup(std::move(impl)));
}

WorkerGroup::WorkerGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
WorkerGroup::~WorkerGroup() = default;

Status WorkerGroup::start(std::vector<WorkerCommand> commands) {
  return impl_->start(std::move(commands));
}
void WorkerGroup::stop(int signal, Duration grace, SignalScope scope) {
  impl_->stop(signal, grace, scope);
}
void WorkerGroup::forward(int signal, SignalScope scope, std::optional<int> local_rank) {
  impl_->forward(signal, scope, local_rank);
}
std::optional<WorkerEvent> WorkerGroup::next_event(Instant deadline,
                                                   const std::function<bool()>& interrupted) {
  return impl_->next_event(deadline, interrupted);
}
void WorkerGroup::wake() { impl_->wake(); }

}  // namespace elastic
