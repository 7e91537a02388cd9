#pragma once

// The worker channel for programs without Python: C and C++, library elastic::worker.
//
//   elastic_worker_open();
//   for (int64_t step = 0; step < steps; ) {
//     train();
//     if (elastic_worker_should_stop(++step)) { save(step); return 0; }
//   }
//
// The launcher gives every worker a page of shared memory and a socket. elastic_worker_progress()
// is one store to that page. In a process that elastic did not start, or that is not the first of
// its worker to open the channel, every function works and has no effect.
//
// A step is an optimizer step; the argument is the number of steps that are complete, and does not
// decrease in a round. Thread rule: progress() and the functions of membership from any thread, the
// others by one thread at a time. A forked child has no channel. Needs GCC or clang (__atomic
// builtins). Pure C, so the types are plain structs and the names have a prefix.

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The name and version of the layout below; both sides check it.
#define ELASTIC_WORKER_MAGIC UINT64_C(0x6c656e6e61686345)  // "Echannel"
#define ELASTIC_WORKER_LAYOUT 3
// The size of the shared memory, and the areas in it behind the page: the collective operations
// that the worker waits in, the members of its process groups, signatures of operations that are
// over, and stacks, up to the end.
#define ELASTIC_WORKER_BYTES 90112
#define ELASTIC_WORKER_COLLECTIVES_OFFSET 4096
#define ELASTIC_WORKER_COLLECTIVES_BYTES 8192
#define ELASTIC_WORKER_GROUPS_OFFSET 12288
#define ELASTIC_WORKER_GROUPS_BYTES 8192
#define ELASTIC_WORKER_SIGNATURES_OFFSET 20480
#define ELASTIC_WORKER_SIGNATURES_BYTES 8192
#define ELASTIC_WORKER_STACKS_OFFSET 28672
#define ELASTIC_WORKER_SECTION_BYTES 64
// Of elastic_worker_stop_reason(), with the final NUL.
#define ELASTIC_WORKER_STOP_REASON_BYTES 1024
// The value of a word that holds no step.
#define ELASTIC_WORKER_NO_STEP (-1)
#define ELASTIC_WORKER_NO_ROUND UINT64_MAX

// The shared page. Each word but stop_sequence has one writer. A reader treats a value of the other
// side as hints that may be invalid: a worker that writes garbage harms only itself.
typedef struct elastic_worker_page {
  // Constant from before the start of the worker.
  uint64_t magic;
  uint32_t layout;
  uint32_t bytes;
  uint8_t reserved0[112];

  // Written by the guardian.
  int64_t tentative_stop;  // a worker that reaches this step waits until it is committed
  int64_t committed_stop;  // every rank stops when it has reached this step
  // Increases with each change of the two words, and, by the worker, with the end of its round; a
  // futex.
  uint32_t stop_sequence;
  uint32_t reserved1;
  uint8_t reserved2[104];

  // Written by the worker.
  int64_t owner;       // 0, then the process that opened the channel, by its own pid namespace
  int64_t step;        // the last reported one
  int64_t stopped_at;  // the step at which should_stop() has returned true
  // The round that the worker has left, plus 1; 0: none; ELASTIC_WORKER_NO_ROUND: it waits for its
  // first one.
  uint64_t left_round;
  uint32_t section_sequence;  // odd while the next four fields change
  uint32_t section_depth;     // 0: in no section
  int64_t section_limit_ms;   // how long the section may take; 0: as any other time
  char section[ELASTIC_WORKER_SECTION_BYTES];  // the innermost one, UTF-8 with a final NUL
  uint32_t stacks_signal;                      // writes the stacks of all threads; 0: none does
  uint32_t stacks_written;                     // counts the requests that were answered
  int64_t first_step;                          // the first reported one
  int64_t waits_at;               // the last step at which should_stop() waited for the decision
  uint32_t collectives_sequence;  // odd while the area changes
  uint32_t groups_sequence;       // likewise
  uint32_t is_counted;  // 1: the steps are counts of elastic_worker_count(), not the script's own
  uint32_t signatures_sequence;  // odd while the area changes
  // Since when the process waits in collective operations and has entered no other one, in
  // nanoseconds of CLOCK_MONOTONIC; 0: it waits in none.
  int64_t waits_since;

  // Written by the guardian.
  uint32_t stop_reason_sequence;  // odd while the text changes
  char stop_reason[ELASTIC_WORKER_STOP_REASON_BYTES];
} elastic_worker_page;

// The page of this process: never null, and private memory without a channel. Not for direct use.
extern elastic_worker_page* elastic_worker_page_in_use;
// 0: the guardian does not know yet that this worker reports steps. Not for direct use.
extern int elastic_worker_is_reporting;

// Opens the channel that ELASTIC_CHANNEL names, once for each worker. Returns 1 if this process has
// the channel, else 0. May be called again. Call it before other threads use the library.
int elastic_worker_open(void);

// Opens a section, such as an evaluation, and closes the innermost one. A section counts as
// progress at its begin and its end. limit_ms: how long it may take, if that is longer than the
// limit of a step; 0: no longer.
void elastic_worker_enter(const char* name, int64_t limit_ms);
void elastic_worker_leave(void);

// The number of the round, from 0, and whether an earlier round of the job has failed or had other
// members. From the environment, so that they are right in every process of the worker, until
// elastic_worker_wait_for_round() has returned another round.
uint64_t elastic_worker_round(void);
int elastic_worker_is_restart(void);

// Why this process is being stopped, or its round ends: "worker-failed; rank=3; node=…; reason=…",
// as in the variable ELASTIC_RESTART_CAUSE of the next round; docs/scripts.md has the words. Known
// before SIGTERM is delivered, and when should_stop() has returned 1. Returns 1, or 0 and "" if the
// process is not being stopped. Async-signal-safe.
int elastic_worker_stop_reason(char* out, size_t size);

// ---- Membership: a process that takes part in several rounds.
//
// With --on-membership-change=inplace the launcher keeps the processes of nodes that lost no worker
// when the members of the job change, if all of them have called elastic_worker_join_membership().
//
//   elastic_worker_join_membership();
//   for (;;) {
//     elastic_worker_begin_sockets();
//     connect_to_the_other_ranks();  // addresses and ranks from the environment
//     elastic_worker_end_sockets();
//     while (!elastic_worker_round_is_over() && train_one_step() == 0) continue;
//     if (is_finished) return 0;
//     while ((size = elastic_worker_wait_for_round(variables, sizeof variables, 1000)) == 0)
//     continue; if (size < 0) return 1; put_into_the_environment(variables, size);
//   }
//
// When a round is over the launcher sends a *cut* with the number of the round. A thread of this
// library then shuts down the sockets of the round, so that a rank that is blocked in a collective
// gets an error at once. A cut for an earlier round than the process's own is ignored. The launcher
// waits a few seconds (inplace_grace) until every process has left the round; after that it stops
// all of them, and starts new ones.
//
// A process with ELASTIC_AWAITS_ROUND=1 was started before its first round (--inplace-prepare): it
// calls elastic_worker_wait_for_round() before it connects, and has no rank until then.
//
// The step, its words for an agreed stop, and the first report belong to a round: after a change
// they begin again. A forked child is no member: there the functions have no effect.

// The most bytes of the variables of a round.
#define ELASTIC_WORKER_ROUND_BYTES 65536

// Starts the thread, once, and declares that this process can take part in another round. Returns
// 1, or 0 without a channel or if the thread cannot be started. The thread blocks all signals.
int elastic_worker_join_membership(void);

// 1: the round of this process is over, because it was cut or left or a new one was received. One
// load from memory: call it between steps. 0 in a process that has not joined.
int elastic_worker_round_is_over(void);

// Waits until round_is_over(), at most timeout_ms; negative: without a limit. Returns what that
// returns then. For a thread that aborts operations which are not on sockets, such as NCCL's. A
// signal may end it early.
int elastic_worker_wait_until_over(int timeout_ms);

// TCP connections (IPv4 or IPv6) that the process makes or accepts between the two calls belong to
// the round, and so do sockets that other threads open meanwhile. The cut shuts them down
// (SHUT_RDWR), also while the process is between the two calls; not listening sockets, because gloo
// ends the process if its own is shut down. Pairs may be nested; then the outermost one counts.
void elastic_worker_begin_sockets(void);
void elastic_worker_end_sockets(void);

// As elastic_worker_end_sockets(), but of the connections made meanwhile only those to this port of
// the peer are shut down from now on; 0: all. For NCCL, whose operations are aborted otherwise: the
// abort takes half a second longer if its connections have been shut down.
void elastic_worker_end_sockets_to(uint16_t port);

// Reports that the process has left its round: no rank needs to wait for it. Its sockets are
// forgotten, so close them before. May be called before the cut arrives, and again.
void elastic_worker_leave_round(void);

// Leaves the round, and waits for the next one at most timeout_ms; negative: without a limit.
// Returns the number of bytes of the variables ("NAME=value", each with a final NUL) that are new
// or have changed; the process is in this round now. If that is more than `size`, nothing was
// written and the process is not in the round: call it again. 0: no round yet, or a signal arrived.
// -1: the launcher has ended or the channel was closed, or this process has not joined.
int elastic_worker_wait_for_round(char* out, size_t size, int timeout_ms);

// The slow part of elastic_worker_should_stop(): 1 stop, 0 continue, -1 not decided within
// timeout_ms or a signal arrived.
int elastic_worker_wait_for_stop(int64_t step, int timeout_ms);

// After the first step was reported: notifies the guardian, which reads the page from then on.
void elastic_worker_begin_reports(void);

// For a runtime that can write the stacks of its threads: writes them to this descriptor in a
// handler of the signal `number`. -1: no channel.
int elastic_worker_stacks_descriptor(void);
// Whether the descriptor still refers to the channel. Async-signal-safe.
int elastic_worker_owns_stacks_descriptor(void);
void elastic_worker_offer_stacks(int number);
// Reports that a request was answered. Async-signal-safe.
void elastic_worker_stacks_written(void);
// A thread sets the word waits_since: elastic_worker_watch_collectives() calls this.
void elastic_worker_announce_watch(void);
// Reports that an exception ends the main thread; what it prints goes to stderr.
void elastic_worker_report_error(void);

// For a program with torch: publishes which collective operation of torch.distributed the process
// waits in, as torch's flight recorder shows it, so that the launcher can name the ranks that
// others wait for. Starts a thread, once, which looks every second. `members`: a line for each
// process group, "name TAB ranks", such as "dp0\t0-3,8"; call it again when there are more groups.
// Returns 1, or 0 without a channel or a thread. The only function here that needs the C++ runtime.
int elastic_worker_watch_collectives(const char* members);

// As elastic_worker_progress(), for a hook that counts the steps of a script: it has no effect once
// the script has reported a step itself. Counted steps show that the worker makes progress. No stop
// is agreed at one: two ranks may count differently, and each count begins with the process.
void elastic_worker_count(int64_t step);

// Reports that `step` steps are complete.
static inline void elastic_worker_progress(int64_t step) {
  __atomic_store_n(&elastic_worker_page_in_use->step, step, __ATOMIC_RELAXED);
  if (!__atomic_load_n(&elastic_worker_is_reporting, __ATOMIC_RELAXED)) {
    elastic_worker_begin_reports();
  }
}

// Reports progress, and returns 1 if the job stops at this step on every rank, or this node leaves
// it: save the state and exit with 0. While the ranks agree on the step this call waits: usually
// some milliseconds, and up to store_grace if the coordinator is lost meanwhile. It also waits
// where other nodes leave, and returns 0 when the round is over.
static inline int elastic_worker_should_stop(int64_t step) {
  int64_t stop;
  // Sequentially consistent: either the guardian reads this step after it has written the tentative
  // one, or this process reads the tentative step.
  __atomic_store_n(&elastic_worker_page_in_use->step, step, __ATOMIC_SEQ_CST);
  if (!__atomic_load_n(&elastic_worker_is_reporting, __ATOMIC_RELAXED)) {
    elastic_worker_begin_reports();
  }
  stop = __atomic_load_n(&elastic_worker_page_in_use->tentative_stop, __ATOMIC_SEQ_CST);
  if (stop == ELASTIC_WORKER_NO_STEP || step < stop) return 0;
  for (;;) {
    const int decided = elastic_worker_wait_for_stop(step, 1000);
    if (decided >= 0) return decided;
  }
}

#ifdef __cplusplus
}
#endif
