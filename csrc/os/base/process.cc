#include "os/base/process.h"

#include <pthread.h>
#include <sys/random.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "core/base/check.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace elastic::os {
namespace {

// Twice the sessions of a coordinator. Not more, because some programs loop over all possible
// descriptors.
constexpr rlim_t kRaisedMax = 131072;

// Globals, because the limit is one of the process.
std::mutex mutex;
int owners = 0;       // guarded by mutex
rlim_t original = 0;  // guarded by mutex
rlim_t raised = 0;    // guarded by mutex; 0: nothing was raised

// Another thread may hold the mutex when a thread forks, and does not exist in the child.
[[maybe_unused]] const int is_held_across_forks =
    ::pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, [] { mutex.unlock(); });

}  // namespace

RaisedDescriptorLimit::RaisedDescriptorLimit() {
  const std::lock_guard lock(mutex);
  ++owners;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t before = limit.rlim_cur;
  const rlim_t wanted = std::min(limit.rlim_max, kRaisedMax);
  if (wanted <= before) return;
  limit.rlim_cur = wanted;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  original = before;
  raised = wanted;
}

RaisedDescriptorLimit::~RaisedDescriptorLimit() {
  const std::lock_guard lock(mutex);
  if (--owners > 0) return;
  const rlim_t current = std::exchange(raised, 0);
  rlimit limit{};
  if (current == 0 || ::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur != current) return;
  limit.rlim_cur = original;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void restore_descriptor_limit(pid_t child) {
  const std::lock_guard lock(mutex);
  rlimit limit{};
  if (raised == 0 || ::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur != raised) return;
  limit.rlim_cur = original;
  ::prlimit(child, RLIMIT_NOFILE, &limit, nullptr);
}

std::size_t descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  return static_cast<std::size_t>(std::min<rlim_t>(limit.rlim_cur, 1U << 30));
}

void return_free_memory() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

std::uint64_t random_seed() {
  std::uint64_t seed = 0;
  ssize_t got = 0;
  do {
    got = ::getrandom(&seed, sizeof seed, 0);
  } while (got < 0 && errno == EINTR);
  ELASTIC_CHECK(got == sizeof seed);  // also the secrets of nodes come from here: no substitute
  return seed;
}

}  // namespace elastic::os
