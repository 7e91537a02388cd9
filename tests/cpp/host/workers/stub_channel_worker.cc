// A worker without Python: prints what elastic/worker.h returns.

#include <cstdio>

#include "elastic/worker.h"

int main() {
  const int opened = elastic_worker_open();
  elastic_worker_progress(1);
  const int stop = elastic_worker_should_stop(2);
  std::printf("open %d stop %d round %d restart %d\n", opened, stop,
              static_cast<int>(elastic_worker_round()), elastic_worker_is_restart());
  return 0;
}
