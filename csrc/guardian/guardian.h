#pragma once

// The guardian's one loop: requests in, events out, children reaped.

#include <poll.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "core/workers/guardian_protocol.h"
#include "elastic/time.h"
#include "guardian/worker.h"
#include "os/base/fd.h"

namespace elastic::guardian {

class Guardian {
 public:
  // channel: a non-blocking stream socket to the agent. signals: a signalfd that has SIGCHLD.
  // agent: a pidfd of the agent, or invalid where the kernel has none.
  Guardian(os::UniqueFd channel, os::UniqueFd signals, os::UniqueFd agent);
  // Returns when the agent is gone and nothing that it started is left.
  void run();

 private:
  void wait();
  void read_requests();
  bool handle(const Request& request);
  void start(const StartRequest& request);
  void signal(const SignalRequest& request);
  void cancel_starts();
  void sweep();
  void lose_agent();

  void collect_starts();
  void collect_exits();
  bool resolve_start(Worker* worker);
  void report_failed_start(const Worker& worker, const StartFailure& failure,
                           bool timed_out = false);
  void reap_orphans();
  void sweep_once();

  void tell(const Event& event);
  void flush();

  os::UniqueFd channel_;
  os::UniqueFd signals_;
  os::UniqueFd agent_;
  const pid_t pid_;

  FrameBuffer received_;
  std::string unsent_;
  std::vector<Worker> workers_;  // since the last sweep
  bool connected_ = true;        // false: the agent is gone
  bool sweeping_ = false;
  Instant now_;  // of the last return from poll
  std::vector<pollfd> polled_;
  std::vector<pid_t> children_;
};

}  // namespace elastic::guardian
