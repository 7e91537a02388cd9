#include "os/loop/thread.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "os/base/fd.h"
#include "os/base/process.h"
#include "os/loop/event_loop.h"

namespace elastic::os {

Result<std::thread> start_quiet_thread(const char* name, std::function<void()> work) {
  sigset_t all;
  sigset_t saved;
  ::sigfillset(&all);
  // A fault of the thread itself reaches the program's handler (faulthandler, crash reporters).
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) {
    ::sigdelset(&all, fault);
  }
  ::pthread_sigmask(SIG_SETMASK, &all, &saved);  // a thread inherits its creator's mask
  std::thread thread;
  std::string failure;
  try {
    thread = std::thread(std::move(work));
  } catch (const std::system_error& error) {
    failure = std::string("cannot start a thread: ") + error.what();
  }
  ::pthread_sigmask(SIG_SETMASK, &saved, nullptr);
  if (!thread.joinable()) return Status(StatusCode::kResourceExhausted, std::move(failure));
  ::pthread_setname_np(thread.native_handle(), name);
  return thread;
}

Result<DetachableThread> DetachableThread::start(const char* name, std::function<void()> work) {
  auto returned = std::make_shared<std::promise<void>>();
  std::future<void> future = returned->get_future();
  Result<std::thread> thread =
      start_quiet_thread(name, [work = std::move(work), returned = std::move(returned)]() mutable {
        work();
        work = nullptr;  // release what it owns before the owner is notified
        returned->set_value();
      });
  if (!thread.ok()) return thread.status();
  return DetachableThread(*std::move(thread), std::move(future));
}

DetachableThread::~DetachableThread() {
  if (thread_.joinable()) thread_.detach();
}

bool DetachableThread::join_within(Duration limit) {
  if (!thread_.joinable()) return true;
  if (returned_.wait_for(limit) != std::future_status::ready) return false;
  thread_.join();
  return true;
}

void enlarge_descriptor_table(std::size_t count) {
  static std::atomic<std::size_t> enlarged = 0;  // a global, because the table is the process's
  count = std::min(count, descriptor_limit());
  std::size_t before = enlarged.load();
  do {
    if (count <= before) return;
  } while (!enlarged.compare_exchange_weak(before, count));
  // If there is no thread or no descriptor for it, the table grows when it must.
  (void)DetachableThread::start("elastic-fds", [count] {
    const UniqueFd any(::eventfd(0, EFD_CLOEXEC));
    if (any.valid()) UniqueFd(::fcntl(any.get(), F_DUPFD_CLOEXEC, static_cast<int>(count) - 1));
  });
}

Result<std::unique_ptr<LoopThread>> LoopThread::start(const char* name, Clock* clock) {
  Result<std::unique_ptr<EventLoop>> loop = EventLoop::create(clock);
  if (!loop.ok()) return loop.status();
  std::unique_ptr<LoopThread> self(new LoopThread(std::move(*loop)));
  if (self->loop_->is_turned()) return self;

  Result<std::thread> thread = start_quiet_thread(name, [raw = self->loop_.get()] { raw->run(); });
  if (!thread.ok()) return thread.status();
  self->thread_ = *std::move(thread);
  return self;
}

LoopThread::LoopThread(std::unique_ptr<EventLoop> loop) : loop_(std::move(loop)) {}

LoopThread::~LoopThread() {
  if (!thread_.joinable()) {
    if (loop_->is_turned()) loop_->turn();  // posted work still runs
    return;
  }
  loop_->stop();
  thread_.join();
}

void LoopThread::call(const std::function<void()>& work) {
  if (loop_->is_turned()) {
    bool is_done = false;
    loop_->post([&] {
      work();
      is_done = true;
    });
    while (!is_done) loop_->turn();
    return;
  }
  std::promise<void> done;
  loop_->post([&] {
    work();
    done.set_value();
  });
  done.get_future().wait();
}

void LoopThread::post(std::function<void()> work) { loop_->post(std::move(work)); }

}  // namespace elastic::os
