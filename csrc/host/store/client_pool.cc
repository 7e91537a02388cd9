#include "host/store/client_pool.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "core/base/random.h"
#include "core/base/text.h"
#include "os/loop/clock.h"

// Theory of operation. The server handles the requests of one connection in order, but requests of
// two connections in any order. This does not matter for requests with a reply: when a call
// returns, the server has handled it, and later calls follow. SET, APPEND, MULTI_SET and QUEUE_PUSH
// have no reply (they are "silent"). If the next call used another connection, the server might
// handle it first, and a thread would not find the key that it has just set.
//
// So at most one connection at a time has silent requests that no reply has confirmed
// (`unconfirmed_`), and while there is one, every call uses it. Any reply on that connection is the
// confirmation; then calls may use any connection again. A call that waits for that connection
// waits for a write or a round trip of another call, never for a blocked call, because a call gets
// the confirmation before it blocks (Lease::allow_other_connections).
//
// A call that reaches its deadline before that confirmation leaves replies that no call will read,
// so its connection serves no other call. But it is still the one with the silent requests: the
// client ends its stream, and the next call first waits until the server has read it to the end.

namespace elastic::host {
namespace {

constexpr std::size_t kIdleMax = 16;

// Waiting on a condition variable is not interrupted by signals; poll at this interval.
constexpr Duration kTurnPeriod = std::chrono::milliseconds(50);

Status closed_error() { return {StatusCode::kFailedPrecondition, "the client is closed"}; }

Status unanswered_error() {
  return {StatusCode::kDeadlineExceeded, "the server does not answer an earlier call"};
}

// The new request may use another connection, but earlier silent requests may be lost: the call
// that gets this error is the first that can report it.
Status lost_error() {
  return {StatusCode::kUnavailable,
          "the server closed the connection: values sent just before may be lost"};
}

}  // namespace

ClientPool::ClientPool(const StoreClientOptions& options, os::Notifier closing)
    : options_(options), closing_(std::move(closing)) {}

Result<std::unique_ptr<ClientPool>> ClientPool::connect(const StoreClientOptions& options) {
  auto closing = os::Notifier::create();
  if (!closing.ok()) return closing.status();
  std::unique_ptr<ClientPool> pool(new ClientPool(options, *std::move(closing)));
  const os::WaitLimits limits = pool->limits(options.timeout);
  Rng rng(os::random_seed());
  Backoff backoff({}, &rng);
  Status last_error;
  for (int attempts = 1;; ++attempts) {
    auto connection = pool->open_connection(limits);
    if (connection.ok()) {
      pool->idle_.push_back(*std::move(connection));
      return pool;
    }
    const StatusCode code = connection.status().code();
    if (code == StatusCode::kUnavailable) last_error = connection.status();
    if (code != StatusCode::kUnavailable && code != StatusCode::kDeadlineExceeded) {
      return connection.status();
    }
    os::WaitLimits pause = limits;
    pause.deadline = std::min(limits.deadline, add_saturating(os::monotonic_now(), backoff.next()));
    Status paused = os::wait_ready(-1, 0, pause);
    if (paused.code() != StatusCode::kDeadlineExceeded) return paused;
    if (os::monotonic_now() >= limits.deadline) {
      return (last_error.ok() ? connection.status() : last_error)
          .with_context("cannot connect to a store server at " + options.host + ":" +
                        std::to_string(options.port) + " (" + std::to_string(attempts) +
                        " attempts in " + core::duration_text(options.timeout) + ")");
    }
  }
}

os::WaitLimits ClientPool::limits(Duration timeout) const {
  return {.deadline = add_saturating(os::monotonic_now(), timeout),
          .interrupted = &options_.interrupted,
          .wake_fd = closing_.fd()};
}

// Tries the last known address, then resolves the name, because the server may have moved.
Result<std::unique_ptr<ClientConnection>> ClientPool::open_connection(
    const os::WaitLimits& limits) {
  std::optional<os::SocketAddress> known;
  {
    const std::lock_guard lock(mutex_);
    known = known_address_;
  }
  // PyTorch's client sends its pid, too; it identifies the process in a packet dump.
  const auto nonce = static_cast<std::uint32_t>(fork_guard_.pid());
  Status error;
  for (const bool is_known : {true, false}) {
    if (is_known && !known) continue;
    auto addresses =
        is_known ? Result(std::vector{*known}) : os::look_up(options_.host, options_.port, limits);
    if (!addresses.ok()) return addresses.status();
    auto connection = ClientConnection::open(*addresses, nonce, limits);
    if (connection.ok()) {
      const std::lock_guard lock(mutex_);
      known_address_ = (*connection)->peer();
      return connection;
    }
    error = connection.status();
    if (error.code() != StatusCode::kUnavailable) break;
  }
  return error;
}

Result<ClientPool::Lease> ClientPool::lease(Use use, const os::WaitLimits& limits) {
  auto connection = lease_connection(use, limits);
  if (!connection.ok()) return connection.status();
  return Lease(this, use, *std::move(connection));
}

Result<std::unique_ptr<ClientConnection>> ClientPool::lease_connection(
    Use use, const os::WaitLimits& limits) {
  std::unique_lock lock(mutex_);
  while (true) {
    if (is_closed_) return closed_error();
    std::unique_ptr<ClientConnection> connection;
    const bool must_wait = use == Use::kSilent && is_silent_leased_;
    if (!must_wait) connection = take_idle();
    if (must_wait || (!connection && unconfirmed_ != nullptr)) {
      if (Status turn = wait_for_turn(&lock, limits); !turn.ok()) return turn;
      continue;
    }
    if (connection && connection->is_abandoned()) {
      Status confirmed = confirm_abandoned(std::move(connection), &lock, limits);
      if (!confirmed.ok()) return confirmed;
      continue;
    }
    if (connection && !connection->is_usable()) {  // the server has closed it
      if (connection.get() != unconfirmed_) continue;
      unconfirmed_ = nullptr;
      turn_.notify_all();
      return lost_error();
    }
    if (use == Use::kSilent) is_silent_leased_ = true;
    if (connection) return connection;
    break;
  }
  lock.unlock();
  auto opened = open_connection(limits);
  if (!opened.ok()) end_turn(use);
  return opened;
}

// The idle connection for the next call, or null. REQUIRES: mutex_ is held.
std::unique_ptr<ClientConnection> ClientPool::take_idle() {
  if (idle_.empty()) return nullptr;
  auto choice = idle_.end() - 1;
  if (unconfirmed_ != nullptr) {
    choice = std::find_if(idle_.begin(), idle_.end(),
                          [this](const auto& item) { return item.get() == unconfirmed_; });
    if (choice == idle_.end()) return nullptr;
  }
  std::unique_ptr<ClientConnection> connection = std::move(*choice);
  idle_.erase(choice);
  return connection;
}

// Waits, without the lock, until the server has read the silent requests of `connection`; meanwhile
// other calls wait for their turn.
Status ClientPool::confirm_abandoned(std::unique_ptr<ClientConnection> connection,
                                     std::unique_lock<std::mutex>* lock,
                                     const os::WaitLimits& limits) {
  lock->unlock();
  const Status confirmed = connection->confirm(limits);
  lock->lock();
  if (is_closed_) return closed_error();
  turn_.notify_all();
  if (confirmed.ok() || confirmed.code() == StatusCode::kUnavailable) {
    unconfirmed_ = nullptr;
    return confirmed.ok() ? Status() : lost_error();
  }
  idle_.push_back(std::move(connection));
  return confirmed.code() == StatusCode::kDeadlineExceeded ? unanswered_error() : confirmed;
}

Status ClientPool::wait_for_turn(std::unique_lock<std::mutex>* lock, const os::WaitLimits& limits) {
  const Duration left = limits.deadline - os::monotonic_now();
  if (left <= Duration::zero()) return unanswered_error();
  turn_.wait_for(*lock, std::min(left, kTurnPeriod));
  if (!*limits.interrupted) return {};
  lock->unlock();  // the check may take another lock, such as Python's
  const bool is_interrupted = (*limits.interrupted)();
  lock->lock();
  if (is_interrupted) return {StatusCode::kCancelled, "interrupted by a signal"};
  return {};
}

void ClientPool::give_back(Use use, std::unique_ptr<ClientConnection> connection) {
  if (!connection->is_idle() && connection->has_silent_requests()) connection->abandon();
  const bool is_kept = connection->is_idle() || connection->is_abandoned();
  {
    const std::lock_guard lock(mutex_);
    if (use == Use::kSilent) is_silent_leased_ = false;
    if (unconfirmed_ == connection.get()) unconfirmed_ = nullptr;
    if (is_kept && !is_closed_) {
      if (connection->has_silent_requests()) unconfirmed_ = connection.get();
      if (idle_.size() < kIdleMax || unconfirmed_ == connection.get()) {
        idle_.push_back(std::move(connection));
      }
    }
  }
  turn_.notify_all();
}

void ClientPool::confirm(const ClientConnection* connection) {
  {
    const std::lock_guard lock(mutex_);
    if (unconfirmed_ != connection) return;
    unconfirmed_ = nullptr;
  }
  turn_.notify_all();
}

// Called when a lease could not be granted.
void ClientPool::end_turn(Use use) {
  if (use != Use::kSilent) return;
  {
    const std::lock_guard lock(mutex_);
    is_silent_leased_ = false;
  }
  turn_.notify_all();
}

void ClientPool::close() {
  std::vector<std::unique_ptr<ClientConnection>> closed;  // destroyed after the lock is released
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    closed.swap(idle_);
    unconfirmed_ = nullptr;
  }
  closing_.notify();
  turn_.notify_all();
}

}  // namespace elastic::host
