// A rank in C. In the first round it is killed after seven steps; in the next one it continues from
// there, with its bytes. With an argument it saves once, and prints why it could not.

#include <elastic/worker.h>
#include <elastic/worker_snapshot.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kNumbers = 100000, kBytes = 3 };

static double weights[kNumbers];
static unsigned char log_of_steps[kBytes];

static const elastic_snapshot_part state[] = {
    {weights, sizeof weights, ELASTIC_SNAPSHOT_FLOAT64},
    {log_of_steps, sizeof log_of_steps, ELASTIC_SNAPSHOT_BYTES},
};

static void train(int64_t step) {
  for (int i = 0; i < kNumbers; ++i) weights[i] = weights[i] * 0.5 + (double)step + i;
  log_of_steps[step % kBytes] = (unsigned char)step;
}

// The step from which it continues, with the state of it; -1: it is not what was saved.
static int64_t restore(void) {
  const elastic_snapshot_part* saved = NULL;
  size_t count = 0;
  int64_t step = 0;
  const int found = elastic_snapshot_restore(&step, &saved, &count);
  if (found <= 0) return found;
  for (int64_t i = 0; i < step; ++i) train(i);
  for (size_t i = 0; i < count; ++i) {
    if (saved[i].bytes != state[i].bytes || saved[i].kind != state[i].kind ||
        memcmp(saved[i].data, state[i].data, saved[i].bytes) != 0) {
      return -1;
    }
  }
  return count == 2 ? step : -1;
}

int main(int argc, char** argv) {
  (void)argv;
  if (elastic_worker_open() != 1) return 2;
  int64_t step = restore();
  if (step < 0) return 3;
  const int is_first = strcmp(getenv("ELASTIC_ROUND"), "0") == 0;
  printf("from %" PRId64 "\n", step);
  fflush(stdout);
  for (const int64_t last = step + 7; step < last;) {
    train(step);
    if (elastic_snapshot_save(++step, state, 2) == 1) continue;
    printf("not saved: %s\n", elastic_snapshot_error());
    return argc > 1 ? 0 : 4;
  }
  if (is_first) raise(SIGKILL);
  return 0;
}
