#include "os/loop/wait.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>

#include "os/base/posix_error.h"
#include "os/loop/clock.h"

// Theory of operation. A signal handler of the embedding program runs when the signal comes and
// only leaves a mark; `interrupted` acts on the mark, so it must be asked after the handler has
// run. A signal that interrupts the poll is easy: EINTR. Two others would be slept through: one
// that came between the caller's last look and the poll, and one whose handler ran in another
// thread.
//
// Most waits are for a reply that is a fraction of a millisecond away, and asking costs Python's
// lock. So a wait first polls for kBriefWait without asking; after that it is a long one, which
// asks with signals held back until the poll itself lets them in (the first case), and asks again
// each kAskPeriod (the second). A wait without a deadline does not ask again: an agent may wait for
// weeks, and no timer is to wake it. What it can miss is small: the kernel gives a process's signal
// to its main thread unless that one holds it back (signal(7)), which is for the microseconds
// above.

namespace elastic::os {
namespace {

constexpr Duration kBriefWait = std::chrono::milliseconds(5);
constexpr Duration kAskPeriod = std::chrono::seconds(1);

// Holds all signals of this thread back while it lives.
class SignalHold {
 public:
  SignalHold() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &saved_);
  }
  ~SignalHold() { ::pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }
  SignalHold(const SignalHold&) = delete;
  SignalHold& operator=(const SignalHold&) = delete;
  const sigset_t* saved() const { return &saved_; }

 private:
  sigset_t saved_;
};

// ppoll() for at most `wait`; Duration::max() is for ever.
int poll_for(pollfd* items, nfds_t count, Duration wait, const sigset_t* mask) {
  if (wait == Duration::max()) return ::ppoll(items, count, nullptr, mask);
  const auto seconds = std::chrono::floor<std::chrono::seconds>(wait);
  const timespec timeout{.tv_sec = seconds.count(), .tv_nsec = (wait - seconds).count()};
  return ::ppoll(items, count, &timeout, mask);
}

// Asks, then polls; sets `cancelled` when the answer was yes.
int poll_and_ask(pollfd* items, nfds_t count, Duration wait,
                 const std::function<bool()>& interrupted, bool* cancelled) {
  const SignalHold hold;
  *cancelled = interrupted();
  return *cancelled ? 0 : poll_for(items, count, wait, hold.saved());
}

// The last item is the wake descriptor.
Status poll_until(pollfd* items, nfds_t count, const WaitLimits& limits) {
  const bool asks = limits.interrupted != nullptr && *limits.interrupted;
  const bool forever = limits.deadline == Instant::max();
  for (bool is_brief = true;; is_brief = false) {
    const Duration left =
        forever ? Duration::max() : std::max(limits.deadline - monotonic_now(), Duration::zero());
    bool cancelled = false;
    const int ready = !asks ? poll_for(items, count, left, nullptr)
                      : is_brief
                          ? poll_for(items, count, std::min(left, kBriefWait), nullptr)
                          : poll_and_ask(items, count, forever ? left : std::min(left, kAskPeriod),
                                         *limits.interrupted, &cancelled);
    if (cancelled) return {StatusCode::kCancelled, "interrupted by a signal"};
    if (ready > 0 && items[count - 1].revents != 0) {
      return {StatusCode::kFailedPrecondition, "closed"};
    }
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return posix_error("cannot wait for a descriptor", errno);
    if (ready == 0 && (left == Duration::zero() || !asks)) {
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

}  // namespace elastic::os
