#include "os/loop/loop_thread.h"

#include <future>
#include <utility>

#include "os/loop/quiet_thread.h"

namespace elastic::os {

Result<std::unique_ptr<LoopThread>> LoopThread::start(const char* name) {
  Result<std::unique_ptr<EventLoop>> loop = EventLoop::create();
  if (!loop.ok()) return loop.status();
  std::unique_ptr<LoopThread> self(new LoopThread(std::move(*loop)));

  Result<std::thread> thread = start_quiet_thread(name, [raw = self->loop_.get()] { raw->run(); });
  if (!thread.ok()) return thread.status();
  self->thread_ = *std::move(thread);
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
