#include "host/auth/bounded_reader.h"

#include <condition_variable>
#include <mutex>
#include <utility>

namespace elastic::host {

struct BoundedReader::Shared {
  std::function<Content()> read;
  std::mutex mutex;
  std::condition_variable changed;
  bool is_reading = false;  // asked, and not answered
  bool is_asked = false;
  bool has_ended = false;
  Content answer = std::optional<std::string>();  // not returned yet

  void run() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return is_asked || has_ended; });
      if (has_ended) return;
      is_asked = false;
      lock.unlock();
      Content now = read();
      lock.lock();
      if (!now.ok() || now->has_value()) answer = std::move(now);
      is_reading = false;
      changed.notify_all();
    }
  }
};

Result<std::unique_ptr<BoundedReader>> BoundedReader::start(std::function<Content()> read) {
  auto shared = std::make_shared<Shared>();
  shared->read = std::move(read);
  auto thread = os::DetachableThread::start("elastic-token", [shared] { shared->run(); });
  if (!thread.ok()) return thread.status();
  return std::unique_ptr<BoundedReader>(new BoundedReader(shared, *std::move(thread)));
}

BoundedReader::~BoundedReader() {
  bool is_reading = false;
  {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->has_ended = true;
    is_reading = shared_->is_reading;
  }
  shared_->changed.notify_all();
  // A thread that is not reading returns at once.
  if (!is_reading) static_cast<void>(thread_.join_within(std::chrono::seconds(1)));
}

BoundedReader::Content BoundedReader::read_within(Duration limit) {
  std::unique_lock<std::mutex> lock(shared_->mutex);
  if (!std::exchange(shared_->is_reading, true)) {
    shared_->is_asked = true;
    shared_->changed.notify_all();
    shared_->changed.wait_for(lock, limit, [this] { return !shared_->is_reading; });
  }
  return std::exchange(shared_->answer, std::optional<std::string>());
}

}  // namespace elastic::host
