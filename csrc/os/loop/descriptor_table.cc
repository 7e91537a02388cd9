#include "os/loop/descriptor_table.h"

#include <fcntl.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>

#include "os/base/descriptor_limit.h"
#include "os/base/fd.h"
#include "os/loop/detachable_thread.h"

namespace elastic::os {

void enlarge_descriptor_table(std::size_t count) {
  static std::atomic<std::size_t> enlarged = 0;  // a global, because the table is the process's
  count = std::min(count, descriptor_limit());
  std::size_t before = enlarged.load();
  do {
    if (count <= before) return;
  } while (!enlarged.compare_exchange_weak(before, count));
  // If there is no thread or no descriptor for it, the table grows when it must.
  (void)DetachableThread::start("elastic-fds", [count] {
    const UniqueFd any(::eventfd(0, EFD_CLOEXEC));
    if (any.valid()) UniqueFd(::fcntl(any.get(), F_DUPFD_CLOEXEC, static_cast<int>(count) - 1));
  });
}

}  // namespace elastic::os
