#include "host/coordinator/state_file.h"

#include <chrono>
#include <utility>

#include "os/file/file.h"
#include "os/loop/thread.h"

namespace elastic::host {
namespace {

// Short, because a full disk may be cleared at any time, and a crash loses a state that is not on
// it.
constexpr auto kRetryEvery = std::chrono::milliseconds(500);

}  // namespace

Status state_file_error(const Status& cause, const std::string& path) {
  return {StatusCode::kFailedPrecondition,
          "cannot keep the state in " + path + ": " + std::string(cause.message())};
}

Result<std::unique_ptr<StateFile>> StateFile::open(std::string path,
                                                   std::function<void(const Status&)> on_error) {
  std::unique_ptr<StateFile> self(new StateFile(std::move(path), std::move(on_error)));
  auto thread = os::start_quiet_thread("elastic-state", [raw = self.get()] { raw->run(); });
  if (!thread.ok()) return thread.status();
  self->thread_ = *std::move(thread);
  return self;
}

StateFile::~StateFile() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void StateFile::put(std::string bytes, std::function<void()> written) {
  {
    const std::lock_guard lock(mutex_);
    next_ = std::move(bytes);
    if (written) waiting_.push_back(std::move(written));
  }
  changed_.notify_one();
}

void StateFile::run() {
  bool has_failed = false;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return next_ || closing_; });
    if (!next_) return;
    std::string bytes = *std::exchange(next_, std::nullopt);
    auto waiting = std::exchange(waiting_, {});
    lock.unlock();
    const Status written = os::replace_file(path_, bytes);
    if (!written.ok() && !has_failed && on_error_) on_error_(written);
    has_failed = !written.ok();
    if (written.ok()) {
      for (const auto& one : waiting) one();
    }
    lock.lock();
    if (!written.ok()) waiting_.insert(waiting_.end(), waiting.begin(), waiting.end());
    if (written.ok() || closing_) continue;
    const bool is_replaced =
        changed_.wait_for(lock, kRetryEvery, [this] { return next_ || closing_; });
    if (!is_replaced || !next_) next_ = std::move(bytes);
  }
}

}  // namespace elastic::host
