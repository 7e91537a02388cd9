#pragma once

// A RendezvousBackend in memory, with the faults that a store can have.

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "core/base/random.h"
#include "elastic/rendezvous_backend.h"
#include "os/loop/clock.h"

namespace elastic::test {

// Shared by all backends of one job.
struct MemoryStore {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<StoredState> state;
  std::optional<StoredState> before;  // the version before this one
  int writes = 0;

  void empty() {
    const std::lock_guard lock(mutex);
    state.reset();
  }
};

class MemoryBackend final : public RendezvousBackend {
 public:
  struct Faults {
    double lost_write = 0;   // the answer is that another writer won
    double lost_answer = 0;  // the state is written, and the answer is an error
    double stale_read = 0;   // the previous version is read
    double failed_call = 0;  // an error without effect
    bool can_watch = false;
  };
  MemoryBackend(std::shared_ptr<MemoryStore> store, Faults faults, std::uint64_t seed)
      : store_(std::move(store)), faults_(faults), rng_(seed) {}
  explicit MemoryBackend(std::shared_ptr<MemoryStore> store)
      : MemoryBackend(std::move(store), Faults{}, 1) {}

  std::atomic<bool> is_unreachable = false;

  std::string name() const override { return "memory"; }

  Result<std::optional<StoredState>> get_state() override {
    const std::lock_guard lock(store_->mutex);
    if (is_unreachable || happens(faults_.failed_call)) return unavailable();
    if (store_->before && happens(faults_.stale_read)) return store_->before;
    return store_->state;
  }

  Result<StoredWrite> set_state(std::string_view bytes,
                                const std::optional<std::string>& token) override {
    const std::lock_guard lock(store_->mutex);
    if (is_unreachable || happens(faults_.failed_call)) return unavailable();
    const auto there = store_->state ? std::optional(store_->state->token) : std::nullopt;
    if (there != token || (store_->state && happens(faults_.lost_write))) {
      return StoredWrite{false, store_->state.value_or(StoredState{})};
    }
    store_->before = store_->state;
    store_->state = StoredState{std::string(bytes), std::to_string(++store_->writes)};
    store_->changed.notify_all();
    if (happens(faults_.lost_answer)) return unavailable();
    return StoredWrite{true, *store_->state};
  }

  bool wait_for_change(const std::optional<std::string>& token, Instant deadline) override {
    if (!faults_.can_watch) return false;
    std::unique_lock lock(store_->mutex);
    const auto limit = std::chrono::nanoseconds(
        std::min<Duration>(deadline - os::monotonic_now(), std::chrono::seconds(60)));
    store_->changed.wait_for(lock, limit, [&] {
      const auto there = store_->state ? std::optional(store_->state->token) : std::nullopt;
      return is_interrupted_ || there != token;
    });
    is_interrupted_ = false;
    return true;
  }

  void interrupt() override {
    const std::lock_guard lock(store_->mutex);
    is_interrupted_ = true;
    store_->changed.notify_all();
  }

  std::string local_address() override { return "127.0.0.1"; }

 private:
  bool happens(double probability) { return probability > 0 && rng_.next_fraction() < probability; }
  static Status unavailable() { return {StatusCode::kUnavailable, "the memory is away"}; }

  const std::shared_ptr<MemoryStore> store_;  // shared with the backends of the other nodes
  const Faults faults_;
  Rng rng_;
  bool is_interrupted_ = false;  // guarded by the store's mutex
};

}  // namespace elastic::test
