#include "os/loop/detachable_thread.h"

#include <memory>
#include <utility>

#include "os/loop/quiet_thread.h"

namespace elastic::os {

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

}  // namespace elastic::os
