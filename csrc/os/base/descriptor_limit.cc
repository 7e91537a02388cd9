#include "os/base/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <mutex>
#include <utility>

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

}  // namespace elastic::os
