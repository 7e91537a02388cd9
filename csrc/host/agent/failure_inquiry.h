#pragma once

// Finds out which workers of a round failed, when, and why, from their exits, their output, their
// error files and the kernel.
//
// A failure is reported at once, with what is known in memory. What the file thread finds is
// reported later. When workers are stopped because of a failure, those that had reported an error
// before the stop are failures too, even if they end last.
//
// Loop thread only.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/agent/agent_policy.h"
#include "host/workers/worker_output.h"
#include "os/loop/registration.h"

namespace elastic::host {

class FailureInquiry {
 public:
  using Sink = std::function<void(const core::FailureFound&)>;
  // A worker printed an uncaught exception, and still runs kEndTimeout later. Known from the output
  // that is captured, or from the worker itself.
  using LateSink = std::function<void(int local_rank, const std::string& error)>;
  static constexpr Duration kEndTimeout = std::chrono::seconds(30);

  // `output` outlives the inquiry.
  FailureInquiry(os::EventLoop* loop, WorkerOutput* output, Sink sink, LateSink late);
  FailureInquiry(const FailureInquiry&) = delete;
  FailureInquiry& operator=(const FailureInquiry&) = delete;
  ~FailureInquiry();

  void begin_round(std::size_t workers);
  // The same workers take part in another round. What they printed before is no cause in it.
  void continue_round();
  void worker_started(int local_rank, int pid);
  // It reports that an exception ends its main thread; stderr has the text soon.
  void worker_raised(int local_rank, Instant at);
  // Adds what is known about a worker that failed.
  void add_evidence(core::WorkerExited* failed, const FailureFindings& findings = {});
  void worker_ended(int local_rank, int pid, const WorkerExit& exit);
  // The workers are stopped; `has_failed`: because one of them, or one of another node, failed.
  void workers_stopped(bool has_failed);
  // Calls `done` when nothing more can be found in this round: at once, or from the loop; never
  // after end_examination().
  void finish_round(std::function<void()> done);
  void end_examination();

 private:
  struct Worker {
    int pid = -1;
    bool is_running = false;
    std::optional<Instant> raised_at = {};
  };

  void note_traceback(int local_rank);
  void check_tracebacks();
  void check_traceback(int local_rank);
  void report_late(int local_rank, const std::string& lines);
  void examine(int local_rank, int pid, const WorkerExit& exit);
  void reset();

  os::EventLoop* const loop_;
  WorkerOutput* const output_;
  const Sink sink_;
  const LateSink late_;
  const std::string host_name_;
  std::vector<Worker> workers_;
  std::uint64_t round_ = 0;
  std::optional<Instant> stopped_at_;
  bool examines_stopped_ = false;
  int pending_ = 0;
  std::function<void()> done_;
  std::map<int, Instant> tracebacks_;  // by local rank: when that of a running worker is checked
  os::Timer traceback_timer_;
};

}  // namespace elastic::host
