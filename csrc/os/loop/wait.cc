#include "os/loop/wait.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <ctime>

#include "os/base/posix_error.h"
#include "os/loop/clock.h"

// Theory of operation. A signal handler of the embedding program only sets a flag; `interrupted`
// tests that flag, so it must be called after the handler has run. If a signal interrupts the poll,
// EINTR reports it. Two cases remain: a signal that arrives between the last check and the poll,
// and one whose handler runs in another thread.
//
// Most waits are for a reply that arrives within a fraction of a millisecond, and the check takes
// Python's lock. So a wait first polls for kBriefWait without a check. A longer wait checks, and
// again with signals blocked until the poll unblocks them atomically (the first case), and repeats
// that after each kCheckPeriod (the second case). A wait without a deadline checks only once: an
// agent may wait for weeks and must not be woken by a timer. The remaining gap is small: the kernel
// delivers a process's signal to its main thread unless that thread blocks it (signal(7)), which it
// does for the microseconds above.

namespace elastic::os {
namespace {

constexpr Duration kBriefWait = std::chrono::milliseconds(5);
constexpr Duration kCheckPeriod = std::chrono::seconds(1);

// Blocks all signals of this thread during its lifetime.
class SignalBlock {
 public:
  SignalBlock() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &saved_);
  }
  ~SignalBlock() { ::pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }
  SignalBlock(const SignalBlock&) = delete;
  SignalBlock& operator=(const SignalBlock&) = delete;
  const sigset_t* saved() const { return &saved_; }

 private:
  sigset_t saved_;
};

// ppoll() for at most `wait`; Duration::max() means no limit.
int poll_for(pollfd* items, nfds_t count, Duration wait, const sigset_t* mask) {
  if (wait == Duration::max()) return ::ppoll(items, count, nullptr, mask);
  const auto seconds = std::chrono::floor<std::chrono::seconds>(wait);
  const timespec timeout{.tv_sec = seconds.count(), .tv_nsec = (wait - seconds).count()};
  return ::ppoll(items, count, &timeout, mask);
}

// Calls `interrupted`, then polls unless it returned true, which sets `cancelled`.
int check_and_poll(pollfd* items, nfds_t count, Duration wait,
                   const std::function<bool()>& interrupted, bool* cancelled) {
  // Handlers run with the program's own mask, which a process or thread that they start inherits.
  *cancelled = interrupted();
  if (*cancelled) return 0;
  const SignalBlock block;
  *cancelled = interrupted();
  return *cancelled ? 0 : poll_for(items, count, wait, block.saved());
}

// The last item is the wake descriptor.
Status poll_until(pollfd* items, nfds_t count, const WaitLimits& limits) {
  const bool checks = limits.interrupted != nullptr && *limits.interrupted;
  const bool forever = limits.deadline == Instant::max();
  for (bool is_brief = true;; is_brief = false) {
    const Duration left =
        forever ? Duration::max() : std::max(limits.deadline - monotonic_now(), Duration::zero());
    bool cancelled = false;
    const int ready =
        !checks    ? poll_for(items, count, left, nullptr)
        : is_brief ? poll_for(items, count, std::min(left, kBriefWait), nullptr)
                   : check_and_poll(items, count, forever ? left : std::min(left, kCheckPeriod),
                                    *limits.interrupted, &cancelled);
    if (cancelled) return {StatusCode::kCancelled, "interrupted by a signal"};
    if (ready > 0 && items[count - 1].revents != 0) {
      return {StatusCode::kFailedPrecondition, "closed"};
    }
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return posix_error("cannot wait for a descriptor", errno);
    if (ready == 0 && (left == Duration::zero() || !checks)) {
      return {StatusCode::kDeadlineExceeded, "the deadline passed"};
    }
  }
}

}  // namespace

Status wait_ready(int fd, short events, const WaitLimits& limits) {
  pollfd items[] = {{fd, events, 0}, {limits.wake_fd, POLLIN, 0}};
  return poll_until(items, 2, limits);
}

Status wait_any(std::vector<pollfd>* items, const WaitLimits& limits) {
  items->push_back({limits.wake_fd, POLLIN, 0});
  Status status = poll_until(items->data(), items->size(), limits);
  items->pop_back();
  return status;
}

Result<Notifier> Notifier::create() {
  UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd.valid()) return posix_error("cannot create an eventfd", errno);
  return Notifier(std::move(fd));
}

void Notifier::notify() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t put = ::write(fd_.get(), &one, sizeof one);
}

Status Notifier::wait(const WaitLimits& limits) {
  Status status = wait_ready(fd_.get(), POLLIN, limits);
  if (status.ok()) clear();
  return status;
}

void Notifier::clear() {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(fd_.get(), &count, sizeof count);
}

}  // namespace elastic::os
