#include "os/loop/notifier.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <cstdint>

#include "os/base/posix_error.h"

namespace elastic::os {

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
