#include "os/process/memory_file.h"

#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>

#include <atomic>
#include <memory>

namespace elastic::os {
namespace {

constexpr std::uint64_t kClosedApart = std::uint64_t{16} << 20;  // takes some 4 ms

std::atomic<std::uint64_t> being_freed{0};

struct Closing {
  UniqueFd fd;
  std::uint64_t bytes;
};

void* close_file(void* argument) {
  const std::unique_ptr<Closing> closing(static_cast<Closing*>(argument));
  closing->fd.reset();
  being_freed -= closing->bytes;
  return nullptr;
}

// Not std::thread: the guardian is linked statically, where that needs more of the C library than a
// linker finds by itself.
bool start_closing(Closing* closing) {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const bool is_started = ::pthread_create(&thread, nullptr, close_file, closing) == 0;
  if (is_started) ::pthread_detach(thread);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return is_started;
}

}  // namespace

void MemoryFile::reset() {
  struct stat found {};
  if (!fd_.valid() || ::fstat(fd_.get(), &found) != 0) return fd_.reset();
  const auto bytes = static_cast<std::uint64_t>(found.st_blocks) * 512;
  if (bytes < kClosedApart) return fd_.reset();
  auto closing = std::make_unique<Closing>(Closing{std::move(fd_), bytes});
  being_freed += bytes;
  if (start_closing(closing.get())) {
    (void)closing.release();
  } else {
    close_file(closing.release());
  }
}

std::uint64_t memory_being_freed() { return being_freed; }

}  // namespace elastic::os
