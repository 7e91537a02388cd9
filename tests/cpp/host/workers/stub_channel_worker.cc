// A worker without Python: prints what elastic/worker.h returns. With the argument "member": takes
// part in rounds until one has the variable LAST.

#include <cstdint>
#include <cstdio>
#include <cstring>

#include "elastic/worker.h"

namespace {

int take_part() {
  static char variables[ELASTIC_WORKER_ROUND_BYTES];
  if (elastic_worker_open() != 1 || elastic_worker_join_membership() != 1) return 1;
  while (true) {
    elastic_worker_progress(static_cast<std::int64_t>(elastic_worker_round()) * 10);
    const int bytes = elastic_worker_wait_for_round(variables, sizeof variables, 60'000);
    if (bytes < 0) return 2;
    if (bytes > 0 && std::strcmp(variables, "LAST=1") == 0) return 0;
  }
}

}  // namespace

int main(int count, char**) {
  if (count > 1) return take_part();
  const int opened = elastic_worker_open();
  elastic_worker_progress(1);
  const int stop = elastic_worker_should_stop(2);
  std::printf("open %d stop %d round %d restart %d\n", opened, stop,
              static_cast<int>(elastic_worker_round()), elastic_worker_is_restart());
  return 0;
}
