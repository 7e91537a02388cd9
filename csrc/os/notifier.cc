#include "os/notifier.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <ctime>

#include "os/clock.h"
#include "os/posix_error.h"

namespace elastic::os {
namespace {

// Holds all signals back while it lives, so that one that arrives between asking `interrupted` and
// sleeping is delivered inside ppoll(), where it ends the sleep, instead of just before it.
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

// ppoll(), with EINTR also for a signal that came since the caller last looked for one.
int poll_or_signal(pollfd* item, const timespec* left, const std::function<bool()>& interrupted,
                   bool* give_up) {
  if (!interrupted) return ::ppoll(item, 1, left, nullptr);
  const SignalHold hold;
  *give_up = interrupted();
  return *give_up ? 0 : ::ppoll(item, 1, left, hold.saved());
}

}  // namespace

Result<Notifier> Notifier::create() {
  UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd.valid()) return posix_error("cannot create an eventfd", errno);
  return Notifier(std::move(fd));
}

void Notifier::notify() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t put = ::write(fd_.get(), &one, sizeof one);
}

Status Notifier::wait(Instant deadline, const std::function<bool()>& interrupted) {
  Status status = wait_ready(fd_.get(), POLLIN, deadline, interrupted);
  if (status.ok()) {
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(fd_.get(), &count, sizeof count);
  }
  return status;
}

Status wait_ready(int fd, short events, Instant deadline,
                  const std::function<bool()>& interrupted) {
  pollfd item{fd, events, 0};
  while (true) {
    timespec left{};
    const bool forever = deadline == Instant::max();
    if (!forever) {
      const Duration wait = std::max(deadline - monotonic_now(), Duration::zero());
      left.tv_sec = std::chrono::floor<std::chrono::seconds>(wait).count();
      left.tv_nsec = (wait - std::chrono::seconds(left.tv_sec)).count();
    }
    bool give_up = false;
    const int ready = poll_or_signal(&item, forever ? nullptr : &left, interrupted, &give_up);
    if (give_up) return {StatusCode::kCancelled, "interrupted by a signal"};
    if (ready > 0) return {};
    if (ready == 0) return {StatusCode::kDeadlineExceeded, "the deadline passed"};
    if (errno != EINTR) return posix_error("cannot wait for a descriptor", errno);
    if (interrupted && interrupted()) return {StatusCode::kCancelled, "interrupted by a signal"};
  }
}

}  // namespace elastic::os
