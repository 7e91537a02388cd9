#include "guardian/guardian.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <variant>

#include "os/loop/clock.h"
#include "os/process/process_tree.h"

// Theory of operation. One thread sleeps in poll, without a timeout, until the agent asks
// something, a child ends, or an exec pipe tells how a start went. The guardian decides nothing:
// the agent does.
//
// Starts are pipelined: a request is answered by a fork at once, and the pipes of all starts are
// looked at when they become readable. What ended quickly is told as started first.
//
// A worker that ended is reported but not reaped (WNOWAIT): as long as the zombie is there nobody
// else can get its pid, so kill(-pid) can only reach its group. Only a sweep, which kills the group
// first, reaps it. Orphans (descendants whose parent died; this process is a subreaper) are reaped
// as they end. SIGCHLD says only that some child changed, so each one looks at all.
//
// A sweep kills the workers' groups, then every direct child, and does so again each time a child
// ends, until there is none: whatever a dying process leaves becomes a direct child before its own
// end is told, so no descendant is missed, whatever sessions it made. It ends when wait says
// ECHILD.
//
// When the agent is gone (end of file, or its pidfd, which also tells when somebody else holds a
// copy of the socket) the guardian sweeps and exits. Until then its end of the channel stays open:
// to the agent, end of file means that nothing is left.
//
// The guardian does not lower its oom_score_adj: workers would inherit it, and with less than a
// megabyte resident it is the last that the kernel would choose anyway.

namespace elastic::guardian {
namespace {

constexpr std::size_t kReadBytes = 16 << 10;

}  // namespace

Guardian::Guardian(os::UniqueFd channel, os::UniqueFd signals, os::UniqueFd agent)
    : channel_(std::move(channel)),
      signals_(std::move(signals)),
      agent_(std::move(agent)),
      pid_(::getpid()),
      now_(os::monotonic_now()) {}

void Guardian::run() {
  tell(HelloEvent{kProtocolVersion});
  flush();
  while (connected_ || sweeping_) wait();
}

void Guardian::wait() {
  enum : std::size_t { kSignals, kChannel, kAgent, kFixed };
  const auto wanted = static_cast<short>(unsent_.empty() ? POLLIN : POLLIN | POLLOUT);
  polled_.assign(kFixed, pollfd{-1, 0, 0});
  polled_[kSignals] = {signals_.get(), POLLIN, 0};
  if (connected_) polled_[kChannel] = {channel_.get(), wanted, 0};
  if (connected_) polled_[kAgent] = {agent_.get(), POLLIN, 0};
  for (const Worker& worker : workers_) {
    if (worker.exec_pipe.valid()) polled_.push_back({worker.exec_pipe.get(), POLLIN, 0});
  }
  if (::poll(polled_.data(), polled_.size(), -1) < 0) return;
  now_ = os::monotonic_now();

  const bool some_start_went = std::any_of(polled_.begin() + kFixed, polled_.end(),
                                           [](const pollfd& item) { return item.revents != 0; });
  if (some_start_went) collect_starts();
  if (polled_[kSignals].revents != 0) {
    signalfd_siginfo info[8];
    while (::read(signals_.get(), info, sizeof info) > 0) continue;
    collect_exits();
    flush();
    reap_orphans();
  }
  if (polled_[kChannel].revents != 0) read_requests();
  if (polled_[kAgent].revents != 0) lose_agent();
  if (sweeping_) sweep_once();
  flush();
}

void Guardian::read_requests() {
  char bytes[kReadBytes];
  const ssize_t got = ::read(channel_.get(), bytes, sizeof bytes);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return lose_agent();
  received_.append({bytes, static_cast<std::size_t>(got)});
  std::string_view payload;
  FrameStatus status = FrameStatus::kNeedMore;
  while ((status = received_.next(&payload)) == FrameStatus::kFrame) {
    Request request;
    if (!decode_request(payload, &request) || !handle(request)) return lose_agent();
  }
  if (status == FrameStatus::kViolation) lose_agent();
}

// False: the agent may not ask this now.
bool Guardian::handle(const Request& request) {
  if (sweeping_) return false;
  if (const auto* wanted = std::get_if<StartRequest>(&request)) {
    start(*wanted);
  } else if (const auto* sent = std::get_if<SignalRequest>(&request)) {
    signal(*sent);
  } else if (std::holds_alternative<CancelStartsRequest>(request)) {
    cancel_starts();
  } else {
    sweep();
  }
  return true;
}

void Guardian::start(const StartRequest& request) {
  Worker worker;
  StartFailure failure;
  if (!spawn(request, pid_, &worker, &failure)) return report_failed_start(worker, failure);
  workers_.push_back(std::move(worker));
}

// A stop marks only who still lives: what ended before is collected first.
void Guardian::signal(const SignalRequest& request) {
  now_ = os::monotonic_now();
  collect_exits();
  for (Worker& worker : workers_) {
    if (request.is_stop && !worker.ended) worker.stopped = true;
    if (request.scope == SignalScope::kLeader) {
      if (!worker.ended) ::kill(worker.pid, request.signal);
    } else if (::kill(-worker.pid, request.signal) != 0 && errno == ESRCH) {
      ::kill(worker.pid, request.signal);  // the child has not reached setsid() yet
    }
  }
}

// The killed child is reaped like an orphan; one that the kernel does not let go of is waited for
// by the sweep.
void Guardian::cancel_starts() {
  now_ = os::monotonic_now();
  collect_starts();
  for (Worker& worker : workers_) {
    if (!worker.exec_pipe.valid()) continue;
    const StartProgress::Step step = worker.progress.current();
    ::kill(worker.pid, SIGKILL);
    report_failed_start(worker, {step.stage, ETIMEDOUT, step.index}, true);
    worker.pid = -1;
  }
  std::erase_if(workers_, [](const Worker& worker) { return worker.pid < 0; });
}

void Guardian::sweep() {
  now_ = os::monotonic_now();
  collect_exits();
  for (Worker& worker : workers_) worker.stopped = worker.stopped || !worker.ended;
  sweeping_ = true;
}

void Guardian::lose_agent() {
  connected_ = false;
  unsent_.clear();
  sweeping_ = true;
}

void Guardian::collect_starts() {
  for (Worker& worker : workers_) resolve_start(&worker);
  std::erase_if(workers_, [](const Worker& worker) { return worker.pid < 0; });
}

// Reads the exec pipe. True when the program runs or ran; a failed start has no pid any more: its
// child has nothing to do but to exit, and is reaped like an orphan.
bool Guardian::resolve_start(Worker* worker) {
  if (!worker->exec_pipe.valid()) return worker->pid > 0;
  StartFailure failure;
  const ssize_t got = ::read(worker->exec_pipe.get(), &failure, sizeof failure);
  if (got < 0) return false;  // neither yet
  worker->exec_pipe.reset();
  worker->progress = {};
  if (got == sizeof failure) {
    report_failed_start(*worker, failure);
    worker->pid = -1;
    return false;
  }
  tell(StartedEvent{worker->id, worker->pid, now_});
  return true;
}

void Guardian::report_failed_start(const Worker& worker, const StartFailure& failure,
                                   bool timed_out) {
  const std::string path = failed_path(worker, failure);
  tell(NotStartedEvent{worker.id, failure.stage, failure.error, timed_out, now_, path});
}

void Guardian::collect_exits() {
  for (Worker& worker : workers_) {
    if (worker.ended) continue;
    siginfo_t info{};
    const auto pid = static_cast<id_t>(worker.pid);
    if (::waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) continue;
    if (!resolve_start(&worker)) continue;
    worker.ended = true;
    const ExitCause cause = info.si_code == CLD_EXITED   ? ExitCause::kExited
                            : info.si_code == CLD_DUMPED ? ExitCause::kDumpedCore
                                                         : ExitCause::kSignaled;
    tell(ExitedEvent{worker.id, cause, info.si_status, worker.stopped, now_});
  }
  std::erase_if(workers_, [](const Worker& worker) { return worker.pid < 0; });
}

void Guardian::reap_orphans() {
  if (sweeping_ || !os::list_children(&children_)) return;  // a sweep reaps by itself
  for (const pid_t child : children_) {
    const bool is_worker = std::any_of(workers_.begin(), workers_.end(),
                                       [&](const Worker& worker) { return worker.pid == child; });
    if (!is_worker) ::waitpid(child, nullptr, WNOHANG);
  }
}

void Guardian::sweep_once() {
  for (const Worker& worker : workers_) {
    if (::kill(-worker.pid, SIGKILL) != 0 && errno == ESRCH) ::kill(worker.pid, SIGKILL);
  }
  if (os::list_children(&children_)) {
    for (const pid_t child : children_) ::kill(child, SIGKILL);
  }
  // Their groups were signalled, so those that ended may go; the others' exits are still to be
  // told.
  std::erase_if(workers_, [](const Worker& worker) {
    if (worker.ended) ::waitpid(worker.pid, nullptr, WNOHANG);
    return worker.ended;
  });
  if (connected_ && !workers_.empty()) return;
  pid_t reaped = 0;
  while ((reaped = ::waitpid(-1, nullptr, WNOHANG)) > 0) continue;
  if (reaped == 0 || errno != ECHILD) return;  // some child still lives
  workers_.clear();
  sweeping_ = false;
  tell(SweptEvent{});
}

void Guardian::tell(const Event& event) {
  if (connected_) append_event(&unsent_, event);
}

void Guardian::flush() {
  while (connected_ && !unsent_.empty()) {
    const ssize_t put = ::send(channel_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (put < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (put < 0) return lose_agent();
    unsent_.erase(0, static_cast<std::size_t>(put));
  }
}

}  // namespace elastic::guardian
