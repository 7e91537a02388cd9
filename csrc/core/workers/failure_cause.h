#pragma once

// What a worker's failure means: who has to act on it, why it happened, and when. Derived from the
// exit of the process, from its last output, and from what the kernel counted.
//
// Pure.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "elastic/rendezvous_types.h"
#include "elastic/time.h"
#include "elastic/worker_group.h"

namespace elastic::core {

// Begins the traceback of an exception.
inline constexpr std::string_view kTracebackHeader = "Traceback (most recent call last):";

// The exception that ended a Python program, by the last lines of its output, such as
// "KeyError: 'x'"; "" if there is none. That of the main module wins over later ones of threads and
// atexit; of chained exceptions it is the last one.
std::string last_exception(std::string_view output);

// Whether there is the traceback of an exception that no code handled: it begins in the main
// module. A traceback that the program logged, or that ended only a thread, begins elsewhere.
bool is_uncaught_exception(std::string_view output);

// The message of an error file, which may be incomplete: torch's `record` writes
// {"message": {"message": "KeyError: 'x'", …}}. "" if there is none.
std::string error_file_message(std::string_view json);

// What the kernel reported while a worker ended.
struct KernelEvidence {
  // OOM kills that were counted since the round began; nullopt: no counter can be read.
  std::optional<std::uint64_t> oom_kills;
  std::string oom_counter;  // its name, such as "memory.events"
  // Of /dev/shm; 0: unknown.
  std::uint64_t shm_bytes = 0;
  std::uint64_t shm_free_bytes = 0;
  std::string gpu_fault;  // "Xid 79 (PCI:0000:3b:00)", from the kernel log; "": none
};

// Class, cause, error and hint of a failure; `output` are the last lines of its stderr.
FailureEvidence diagnose(const WorkerExit& exit, std::string_view output,
                         std::string_view error_message, const KernelEvidence& kernel);

// Equal for failures that look the same: numbers in the error do not matter.
std::string fingerprint_of(const WorkerExit& exit, const FailureEvidence& evidence,
                           std::string_view output);

// When the worker reported the error that ended it, by a traceback or in its error file; nullopt:
// nothing precedes its exit. `ended_at`: now, if it still runs.
std::optional<Instant> report_time(const FailureEvidence& evidence,
                                   std::optional<Instant> traceback, std::optional<Instant> file,
                                   Instant ended_at);

// The process has ended, and not because it was stopped.
bool is_own_exit(const WorkerExit& exit);
// Whether an unsuccessful worker has failed: it ended by itself, or had reported an error before
// the workers were stopped.
bool has_failed(const WorkerExit& exit, std::optional<Instant> reported_at,
                std::optional<Instant> stopped_at);

// The number and device of an Xid report in a line of the kernel log, as in KernelEvidence; "": no
// such line.
std::string gpu_fault_in(std::string_view kernel_log_line);

}  // namespace elastic::core
