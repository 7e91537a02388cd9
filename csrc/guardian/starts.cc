#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <vector>

#include "guardian/guardian.h"
#include "os/loop/clock.h"

// Starts until their programs are executed, or are not: the results that exec pipes bring, and
// starts that are cancelled. Workers that a template forks are in fork_starts.cc.

namespace elastic::guardian {

void Guardian::collect_starts(std::vector<Worker>* processes) {
  for (Worker& one : *processes) resolve_start(&one);
  remove_failed_starts(processes);
}

void Guardian::remove_failed_starts(std::vector<Worker>* processes) {
  bool is_template_lost = false;
  std::erase_if(*processes, [&](const Worker& one) {
    if (one.pid >= 0) return false;
    is_template_lost = is_template_lost || one.id == kTemplateId;
    return true;
  });
  if (is_template_lost) template_ended();
}

// Reads the exec pipe. True if the program was executed. The pid of a failed start is cleared: its
// child exits by itself and is reaped like an orphan.
bool Guardian::resolve_start(Worker* worker) {
  if (!worker->exec_pipe.valid()) return worker->pid > 0;
  StartFailure failure;
  ssize_t got = 0;
  while (true) {
    got = ::read(worker->exec_pipe.get(), &failure, sizeof failure);
    if (got != sizeof failure || failure.error != 0) break;
    worker->step = {failure.stage, failure.index};
  }
  if (got < 0) return false;  // no result yet
  worker->exec_pipe.reset();
  worker->progress = {};
  if (got == sizeof failure) {
    report_failed_start(*worker, failure);
    worker->pid = -1;
    return false;
  }
  send_event(StartedEvent{worker->id, worker->pid, now_});
  return true;
}

void Guardian::report_failed_start(const Worker& worker, const StartFailure& failure,
                                   std::optional<Duration> start_timeout) {
  EndedEvent event =
      not_started(worker.id, failure.stage, failure.error, failed_path(worker, failure), now_);
  event.exit.start_timeout = start_timeout;
  send_event(event);
}

// The killed child is reaped like an orphan. If it is in an uninterruptible wait, the sweep waits
// for it.
void Guardian::cancel_starts(Duration start_timeout) {
  now_ = os::monotonic_now();
  collect_starts(&workers_);
  collect_exits(&workers_);  // as wait() does
  for (Worker& worker : workers_) {
    if (!worker.exec_pipe.valid()) continue;
    const StartProgress::Step step =
        worker.progress.valid() ? worker.progress.current() : worker.step;
    ::kill(worker.pid, SIGKILL);
    report_failed_start(worker, {step.stage, ETIMEDOUT, step.index}, start_timeout);
    worker.pid = -1;
  }
  remove_failed_starts(&workers_);
  cancel_forks(start_timeout);
}

}  // namespace elastic::guardian
