#include "os/loop/loop_thread.h"

#include <future>
#include <utility>

#include "os/loop/quiet_thread.h"

namespace elastic::os {

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

}  // namespace elastic::os
