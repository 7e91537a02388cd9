#include "host/succession/file_keeper.h"

#include <chrono>
#include <utility>

#include "os/loop/clock.h"
#include "os/loop/event_loop.h"
#include "os/loop/thread.h"

namespace elastic::host {
namespace {

// Short, because a full disk may be cleared at any time, and a crash loses a state that is not on
// it.
constexpr auto kRetryEvery = std::chrono::milliseconds(500);
constexpr Duration kStoreDelay = std::chrono::milliseconds(100);
// For a coordinator that is being stopped.
constexpr Duration kLockWait = std::chrono::seconds(1);

}  // namespace

Status state_file_error(const Status& cause, const std::string& path) {
  return {StatusCode::kFailedPrecondition,
          "cannot keep the state in " + path + ": " + std::string(cause.message())};
}

Result<std::optional<os::FileLock>> lock_state_file(const std::string& path) {
  auto lock = os::FileLock::acquire(path + ".lock", {.deadline = os::monotonic_now() + kLockWait});
  if (lock.ok()) return std::optional(*std::move(lock));
  if (lock.status().code() != StatusCode::kDeadlineExceeded) return std::optional<os::FileLock>();
  return state_file_error({StatusCode::kFailedPrecondition,
                           "another coordinator that runs uses it: give each one its own file"},
                          path);
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
    if (!written.ok()) waiting_.insert(waiting_.begin(), waiting.begin(), waiting.end());
    if (written.ok() || closing_) continue;
    const bool is_replaced =
        changed_.wait_for(lock, kRetryEvery, [this] { return next_ || closing_; });
    if (!is_replaced || !next_) next_ = std::move(bytes);
  }
}

FileKeeper::FileKeeper(os::EventLoop* loop, Encode encode)
    : loop_(*loop), encode_(std::move(encode)), timer_(loop, [this] { store(); }) {}

Result<std::unique_ptr<FileKeeper>> FileKeeper::open(os::EventLoop* loop, const std::string& path,
                                                     Encode encode,
                                                     std::function<void(const std::string&)> log) {
  std::unique_ptr<FileKeeper> self(new FileKeeper(loop, std::move(encode)));
  self->stored_ = self->encode_();
  if (Status written = os::replace_file(path, self->stored_); !written.ok()) {
    return state_file_error(written, path);
  }
  auto file = StateFile::open(
      path,
      [loop, log = std::move(log), alive = std::weak_ptr<bool>(self->alive_)](const Status& error) {
        loop->post([log, alive, error] {
          if (!alive.lock() || !log) return;
          log(std::string(error.message()) + ": no round begins until it can be written");
        });
      });
  if (!file.ok()) return file.status();
  self->file_ = *std::move(file);
  return self;
}

void FileKeeper::write(std::function<void()> written) {
  stored_ = encode_();
  file_->put(stored_,
             [written = std::move(written), loop = &loop_, alive = std::weak_ptr<bool>(alive_)] {
               loop->post([written, alive] {
                 if (alive.lock() != nullptr) written();
               });
             });
}

void FileKeeper::propose(const std::string& job, std::function<void()> in_force) {
  if (is_releasing(job)) return;
  write([this, job, in_force = std::move(in_force)] {
    if (!is_releasing(job)) in_force();
  });
}

void FileKeeper::release(const std::string& job, std::function<void()> released) {
  releasing_.insert(job);
  write([this, job, released = std::move(released)] {
    if (releasing_.erase(job) > 0) released();
  });
}

void FileKeeper::store_later() {
  if (!timer_.armed()) timer_.arm(add_saturating(loop_.now(), kStoreDelay));
}

void FileKeeper::store() {
  timer_.disarm();
  std::string state = encode_();
  if (state == stored_) return;
  stored_ = state;
  file_->put(std::move(state));
}

}  // namespace elastic::host
