#include "os/loop_thread.h"

#include <pthread.h>
#include <signal.h>

#include <future>
#include <system_error>

namespace elastic::os {

Result<std::unique_ptr<LoopThread>> LoopThread::start(const char* name) {
  Result<std::unique_ptr<EventLoop>> loop = EventLoop::create();
  if (!loop.ok()) return loop.status();
  std::unique_ptr<LoopThread> self(new LoopThread(std::move(*loop)));

  sigset_t all;
  sigset_t saved;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &saved);  // a thread inherits its creator's mask
  Status status;
  try {
    self->thread_ = std::thread([raw = self->loop_.get()] { raw->run(); });
    ::pthread_setname_np(self->thread_.native_handle(), name);
  } catch (const std::system_error& error) {
    status = Status(StatusCode::kResourceExhausted,
                    std::string("cannot start a thread: ") + error.what());
  }
  ::pthread_sigmask(SIG_SETMASK, &saved, nullptr);
  if (!status.ok()) return status;
  return self;
}

LoopThread::~LoopThread() {
  if (!thread_.joinable()) return;
  loop_->stop();
  thread_.join();
}

void LoopThread::call(const std::function<void()>& work) {
  std::promise<void> done;
  loop_->post([&] {
    work();
    done.set_value();
  });
  done.get_future().wait();
}

}  // namespace elastic::os
