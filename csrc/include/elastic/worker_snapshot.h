#pragma once

// Snapshots for programs without Python: the state of a rank in memory that outlives its process
// (docs/snapshots.md). Library elastic::worker; call elastic_worker_open() first.
//
//   const elastic_snapshot_part state[] = {{weights, sizeof weights, ELASTIC_SNAPSHOT_FLOAT32}};
//   if (elastic_snapshot_restore(&step, &saved, &count) == 1) {
//     memcpy(weights, saved[0].data, saved[0].bytes);
//   }
//   while (step < steps) {
//     train();
//     elastic_snapshot_save(++step, state, 1);
//   }
//
// save() copies the parts into one of two files of memory, the one with the older snapshot. The
// guardian holds both: they outlive this process, and end with the job. restore() gives the step
// from which *all* ranks of the round continue, or none. One thread at a time.
//
// Pure C, as elastic/worker.h.

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// How the numbers of a part are stored: a snapshot in which one is not a number is not used.
enum {
  ELASTIC_SNAPSHOT_BYTES = 0,
  ELASTIC_SNAPSHOT_FLOAT16 = 1,
  ELASTIC_SNAPSHOT_BFLOAT16 = 2,
  ELASTIC_SNAPSHOT_FLOAT32 = 3,
  ELASTIC_SNAPSHOT_FLOAT64 = 4
};

typedef struct elastic_snapshot_part {
  const void* data;
  size_t bytes;
  int kind;
} elastic_snapshot_part;

// Returns 1: saved. 0: not, and elastic_snapshot_error() says why. The first call takes some ten
// times as long as later ones, because its memory is new; a thread then prepares the second file,
// and ends.
int elastic_snapshot_save(int64_t step, const elastic_snapshot_part* parts, size_t count);

// The same, of a state that is the same on every rank, as that of a plain DDP model: a round of any
// world size continues from that of any rank. All ranks pass it so, or none.
int elastic_snapshot_save_replicated(int64_t step, const elastic_snapshot_part* parts,
                                     size_t count);

// The same, of parts that are not in memory, such as those of a GPU: for each one whose `data` is
// NULL `fill` is called, in order, and writes its bytes to `memory`, at a multiple of 64. If it
// returns 0 nothing is saved, and the earlier snapshot stays. It calls nothing of this header.
typedef int (*elastic_snapshot_fill)(void* context, size_t part, void* memory);
int elastic_snapshot_save_by(int64_t step, const elastic_snapshot_part* parts, size_t count,
                             int is_replicated, elastic_snapshot_fill fill, void* context);

// From now on the observer is called for each file of this process: with 1 when it is mapped, those
// that are by now included, and with 0 before it is unmapped. So the memory can be registered with
// a driver. It calls nothing of this header. NULL: none is called.
typedef void (*elastic_snapshot_observer)(void* memory, size_t bytes, int is_mapped);
void elastic_snapshot_observe(elastic_snapshot_observer observer);

// Returns 1, and what this rank continues from: valid until the second save, or the first one after
// a change in place. 0: there is nothing,
// or this process has saved already. -1: it was changed after it was saved; end the process with an
// error, so that all ranks continue from an earlier one.
int elastic_snapshot_restore(int64_t* step, const elastic_snapshot_part** parts, size_t* count);

// 1: each rank of the round continues from what it has saved itself. 0: elastic_snapshot_restore()
// gives this or another rank the state of another one, or nothing. Then no rank continues with what
// is not the same on every rank, such as random generators.
int elastic_snapshot_is_own(void);

// Why the last call has returned 0 or -1, in one line; "": there was nothing to restore.
const char* elastic_snapshot_error(void);

#ifdef __cplusplus
}
#endif
