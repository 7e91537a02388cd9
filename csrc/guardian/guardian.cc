#include "guardian/guardian.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "guardian/channel.h"
#include "os/loop/clock.h"
#include "os/process/process_tree.h"

// Theory of operation. One thread sleeps in poll until the agent sends a request, a child ends, an
// exec pipe has the result of a start, or a worker sends a message. It has a timeout only while a
// worker waits for the template or reports steps, or stacks are collected. The agent makes all
// decisions.
//
// Starts are pipelined: each request is followed by a fork at once, and the exec pipes are read
// when they become readable. A worker that ends quickly is still reported as started first.
//
// A worker that ended is reported but not reaped (WNOWAIT): while the zombie exists its pid is not
// reused, so kill(-pid) can only reach its group. Only a sweep, which kills the group first, reaps
// it. Orphans (descendants whose parent died; this process is a subreaper) are reaped when they
// end. SIGCHLD does not identify the child reliably, so each signal checks all children.
//
// A sweep kills the workers and every direct child, again each time a child ends, until wait
// returns ECHILD. The children of a dying process become direct children of the guardian before its
// exit is reported, so the sweep reaches every descendant in every session. Cleaners
// (os/process/process_tree.h) are not killed with the others: they wait for the end of the
// processes that the sweep kills, and then remove what these left in /dev/shm. A resource tracker
// must end before the next generation starts, because that may use the same names. It is killed if
// it runs for longer than kTrackerTime after the last other process. A torch_shm_manager has names
// of its own, so the sweep ends without it; only the guardian itself does not.
// Children of a worker that does not die, such as one in an uninterruptible wait, are no direct
// children: after kGroupDelay the members of its process group are killed, too.
// A process that forks and exits repeatedly has another pid by the time the signal is sent to the
// listed one. So the signals follow the listing without delay, and a pass that finds a new process
// is followed by another pass before any process is reaped: the zombies fill the limit on
// processes, no process can fork, and the next pass reaches all of them.
//
// The ends of starts are in starts.cc, workers that a template forks in fork_starts.cc.
//
// Processes that outlive the workers are named before the sweep kills them; or their end is awaited
// before it, if the agent asks for that.
//
// Snapshots of workers (snapshots.h) outlive them. The sweep is complete when the last ones are
// verified.
//
// Helpers are processes that survive a sweep. A sweep does not kill them or their descendants,
// except those that became orphans. When a helper ends, its group is killed and it is reaped.
//
// When the agent dies (end of file, or its pidfd, which also works if another process holds a copy
// of the socket) the guardian sweeps and exits. Until then it keeps its end of the channel open, so
// that end of file notifies the agent that no process is left. If the agent was killed, main.cc
// then removes its temporary directory.
//
// The guardian does not lower its oom_score_adj, because workers would inherit it. With less than a
// megabyte of resident memory it is the last process that the OOM killer selects.

namespace elastic::guardian {
namespace {

constexpr std::size_t kReadBytes = 16 << 10;
// Events that workers cause without end wait while more bytes than these are not sent: an agent
// that is stopped does not read, and its guardian's memory stays small.
constexpr std::size_t kUnsentMax = 64 << 10;

// The maximum time of repeated kill passes before the sweep reaps.
constexpr Duration kReapingDelay = std::chrono::seconds(1);
constexpr Duration kGroupDelay = std::chrono::seconds(1);  // since the sweep began
// Processes that replace themselves need passes without delay. Then no child is looked at.
constexpr int kLookingPasses = 4;
constexpr Duration kLookingTime = std::chrono::milliseconds(200);
constexpr int kReapedAtOnce = 1024;
constexpr int kAgentEndTimeoutMs = 5000;  // from the close of its files to its end
constexpr int kTimeoutMaxMs = 60'000;
constexpr Duration kPollRetry = std::chrono::milliseconds(20);

bool has_pid(const std::vector<Worker>& processes, pid_t pid) {
  return std::any_of(processes.begin(), processes.end(),
                     [&](const Worker& one) { return one.pid == pid; });
}

// How a child has ended, which stays a zombie; nullopt: it has not.
std::optional<siginfo_t> exit_of(pid_t child) {
  siginfo_t info{};
  const auto pid = static_cast<id_t>(child);
  const bool is_known = ::waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
  return is_known && info.si_pid != 0 ? std::optional(info) : std::nullopt;
}

// Works even if the child has not called setsid() yet. False: no permission.
bool kill_group(pid_t leader, int signal) {
  if (::kill(-leader, signal) == 0) return true;
  if (errno == ESRCH && ::kill(leader, signal) == 0) return true;
  return errno != EPERM;
}

}  // namespace

Guardian::Guardian(os::UniqueFd channel, os::UniqueFd signals, os::UniqueFd agent)
    : channel_(std::move(channel)),
      signals_(std::move(signals)),
      agent_(std::move(agent)),
      pid_(::getpid()),
      now_(os::monotonic_now()) {}

void Guardian::run() {
  send_event(HelloEvent{kProtocolVersion});
  flush();
  while (connected_ || sweeping_) wait();
}

// An agent that closes in order leaves its end readable. A dying one closes its files one by one:
// its locks are released at the latest when its pidfd becomes readable.
bool Guardian::agent_has_ended() {
  pollfd ends[] = {{agent_.get(), POLLIN, 0}, {channel_.get(), 0, 0}};
  if (::poll(ends, 2, 0) <= 0) return false;
  if (!agent_.valid()) return (ends[1].revents & POLLHUP) != 0;
  return ::poll(ends, 1, kAgentEndTimeoutMs) > 0;
}

void Guardian::wait() {
  enum : std::size_t { kSignals, kChannel, kAgent, kTemplate, kFixed };
  const auto wanted = static_cast<short>(unsent_.empty() ? POLLIN : POLLIN | POLLOUT);
  polled_.assign(kFixed, pollfd{-1, 0, 0});
  polled_[kSignals] = {signals_.get(), POLLIN, 0};
  if (connected_) polled_[kChannel] = {channel_.get(), wanted, 0};
  if (connected_) polled_[kAgent] = {agent_.get(), POLLIN, 0};
  if (template_.is_running()) polled_[kTemplate] = {template_.socket(), POLLIN, 0};
  for (const auto* processes : {&workers_, &helpers_}) {
    for (const Worker& one : *processes) {
      if (one.exec_pipe.valid()) polled_.push_back({one.exec_pipe.get(), POLLIN, 0});
    }
  }
  const auto first_message = static_cast<std::ptrdiff_t>(polled_.size());
  for (const Worker& one : workers_) {
    if (is_behind()) break;
    if (one.channel.socket() >= 0) polled_.push_back({one.channel.socket(), POLLIN, 0});
  }
  const auto first_snapshot = static_cast<std::ptrdiff_t>(polled_.size());
  if (connected_) snapshots_.add_to(&polled_);
  const bool is_known = poll_descriptors();
  now_ = os::monotonic_now();

  const auto is_ready = [](const pollfd& item) { return item.revents != 0; };
  const auto messages = polled_.begin() + first_message;
  const auto snapshots = polled_.begin() + first_snapshot;
  if (std::any_of(messages, snapshots, is_ready)) collect_messages();
  if (std::any_of(snapshots, polled_.end(), is_ready)) snapshots_.read();
  if (std::any_of(polled_.begin() + kFixed, messages, is_ready)) {
    collect_starts(&workers_);
    collect_starts(&helpers_);
    // A worker may have ended while the template still had its pipe open.
    collect_exits(&workers_);
  }
  if (polled_[kTemplate].revents != 0) read_template();
  if (polled_[kSignals].revents != 0) {
    signalfd_siginfo info[8];
    while (::read(signals_.get(), info, sizeof info) > 0) continue;
    collect_exits(&workers_);
    collect_exits(&helpers_);
    flush();
    release_helpers();
    cleaners_.reap();
    reap_orphans();
    check_leftovers();
  }
  if (polled_[kChannel].revents != 0) read_requests();
  // If poll failed, the agent's death is detected by the end of the channel.
  if (is_known && polled_[kAgent].revents != 0) agent_lost();
  expire_forks();
  cleaners_.expire(now_);
  if (sweeping_) sweep_once();
  watch_workers();
  snapshots_.work();
  report_snapshots(false);
  flush();
}

void Guardian::report_snapshots(bool at_once) {
  if (is_behind() && !at_once) return;
  std::string notice;
  if (const auto held = snapshots_.take_event(now_, at_once, &notice)) send_event(*held);
}

// The next round continues from what the workers have left, so it is reported before their end.
bool Guardian::settle_snapshots() {
  if (!connected_) return true;
  if (!snapshots_.settle()) {
    must_poll_again_ = true;  // the work that is left may be over before the next poll
    return false;
  }
  report_snapshots(true);
  return true;
}

bool Guardian::is_behind() const { return unsent_.size() > kUnsentMax; }

std::optional<Instant> Guardian::next_sample() const {
  return is_behind() ? std::nullopt : sampler_.next(workers_);
}

void Guardian::watch_workers() {
  const auto next = next_sample();
  if (next && now_ >= *next) {
    if (const auto progress = sampler_.take(&workers_, now_)) send_event(*progress);
    std::string signatures;
    take_signatures(&workers_, &signatures);
    if (connected_) unsent_ += signatures;
  }
  std::string events;
  if (stacks_.advance(workers_, now_, &events) && connected_) unsent_ += events;
  if (const auto stopped = stop_steps_.advance(workers_)) send_event(*stopped);
}

int Guardian::poll_timeout() const {
  std::optional<Instant> next;
  const auto add = [&](std::optional<Instant> one) {
    if (one) next = std::min(next.value_or(*one), *one);
  };
  if (connected_) {
    add(stacks_.deadline());
    add(next_sample());
    add(fork_deadline());
    if (!is_behind()) add(snapshots_.deadline());
    if (snapshots_.has_work()) return 0;
  }
  add(cleaners_.deadline());
  if (sweeping_) add(group_kill_);
  if (!next) return -1;
  const Duration left = *next - os::monotonic_now();
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::clamp<std::int64_t>(ms, 0, kTimeoutMaxMs));
}

// poll can fail for a long time: no kernel memory, or RLIMIT_NOFILE was lowered below the number of
// items. Then all descriptors, which are non-blocking, are tried at intervals.
bool Guardian::poll_descriptors() {
  const int timeout = std::exchange(must_poll_again_, false) ? 0 : poll_timeout();
  if (::poll(polled_.data(), polled_.size(), timeout) >= 0) return true;
  if (errno != EINTR) {
    const timespec pause{.tv_sec = 0, .tv_nsec = kPollRetry.count()};
    ::nanosleep(&pause, nullptr);
  }
  for (pollfd& item : polled_) item.revents = item.fd < 0 ? short{0} : short{POLLIN};
  return false;
}

void Guardian::read_requests() {
  char bytes[kReadBytes];
  const ssize_t got = receive(bytes, sizeof bytes);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return agent_lost();
  received_.append({bytes, static_cast<std::size_t>(got)});
  std::string_view payload;
  auto status = core::FrameStatus::kNeedMore;
  while ((status = received_.next(&payload)) == core::FrameStatus::kFrame) {
    Request request;
    if (!decode_request(payload, &request) || !handle(request, payload)) return agent_lost();
  }
  if (status == core::FrameStatus::kViolation) agent_lost();
}

// recvmsg returns at most one descriptor, because it stops after the bytes that it came with. If
// this process has no free descriptor, the worker inherits the stream.
ssize_t Guardian::receive(char* bytes, std::size_t size) {
  const auto message = receive_message<int>(channel_.get(), bytes, size, SCM_RIGHTS);
  if (message.ancillary) {
    passed_.emplace_back(*message.ancillary);
  } else if (message.is_truncated) {
    passed_.emplace_back();
  }
  return message.bytes;
}

// False: the request is invalid in this state.
bool Guardian::handle(const Request& request, std::string_view payload) {
  if (const auto* wanted = std::get_if<StartRequest>(&request)) return start(*wanted, payload);
  if (const auto* sent = std::get_if<SignalRequest>(&request)) {
    signal(*sent);
    return true;
  }
  if (const auto* watched = std::get_if<WatchRequest>(&request)) {
    sampler_.set_interval(watched->interval);
    return true;
  }
  if (const auto* wanted = std::get_if<StacksRequest>(&request)) {
    now_ = os::monotonic_now();
    stacks_.begin(&workers_, now_, *wanted);
    return true;
  }
  if (const auto* stop = std::get_if<drain::StopStepRequest>(&request)) {
    if (const auto reply = stop_steps_.handle(*stop, &workers_)) send_event(*reply);
    return true;
  }
  if (const auto* reason = std::get_if<StopReasonRequest>(&request)) {
    set_stop_reason(&workers_, reason->text);
    return true;
  }
  if (const auto* cut = std::get_if<CutRequest>(&request)) {
    round_change_.cut(*cut);
    stop_steps_.withdraw(&workers_);
    report_members();
    return true;
  }
  if (const auto* next = std::get_if<ContinueRequest>(&request)) {
    change_round(*next);
    return true;
  }
  if (const auto* kept = std::get_if<snapshot::KeepRequest>(&request)) {
    snapshots_.keep(*kept);
    return true;
  }
  if (std::holds_alternative<snapshot::ConnectRequest>(request)) {
    if (passed_.empty()) return false;
    snapshots_.attach(std::move(passed_.front()));
    passed_.pop_front();
    return true;
  }
  if (sweeping_) return false;
  if (const auto* wanted = std::get_if<SweepRequest>(&request)) {
    sweep(wanted->reports_leftovers);
  } else if (std::holds_alternative<AwaitLeftoversRequest>(request)) {
    await_leftovers();
  } else {
    cancel_starts(std::get<CancelStartsRequest>(request).start_timeout);
  }
  return true;
}

bool Guardian::start(const StartRequest& request, std::string_view payload) {
  const bool is_helper = request.lifetime == Lifetime::kHelper;
  if (sweeping_ && !is_helper) return false;
  if (find_worker(&workers_, request.id) != nullptr ||
      find_worker(&helpers_, request.id) != nullptr || find_fork(request.id)) {
    return false;
  }
  os::UniqueFd stream;
  if (request.passed != 0 && !passed_.empty()) {
    stream = std::move(passed_.front());
    passed_.pop_front();
  }
  switch (request.kind) {
    case StartKind::kExec: execute(request, stream.get()); return true;
    case StartKind::kTemplate:
      if (!is_helper) return false;
      start_template(request);
      return true;
    case StartKind::kFork:
      if (is_helper) return false;
      queue_fork(request, payload, std::move(stream));
      return true;
  }
  return false;
}

void Guardian::execute(const StartRequest& request, int stream) {
  Worker worker;
  StartFailure failure;
  if (spawn(request, pid_, stream, -1, &worker, &failure)) {
    (request.lifetime == Lifetime::kHelper ? helpers_ : workers_).push_back(std::move(worker));
  } else {
    report_failed_start(worker, failure);
  }
}

// A stop marks only running workers, so workers that have ended are collected first.
void Guardian::signal(const SignalRequest& request) {
  now_ = os::monotonic_now();
  collect_exits(&workers_);
  collect_exits(&helpers_);
  for (auto* processes : {&workers_, &helpers_}) {
    for (Worker& one : *processes) {
      const bool is_meant =
          request.id == one.id || (request.id == kEveryWorker && processes == &workers_);
      if (!is_meant) continue;
      if (request.is_stop && !one.ended) one.stopped = true;
      if (!signal_alone(request, &one)) kill_group(one.pid, request.signal);
    }
  }
  signal_forks(request);
  release_helpers();
}

void Guardian::sweep(bool reports_leftovers) {
  now_ = os::monotonic_now();
  awaits_leftovers_ = false;
  collect_exits(&workers_);
  for (Worker& worker : workers_) {
    worker.stopped = worker.stopped || !worker.ended;
    worker.killed = !worker.ended;
  }
  stop_forks();
  if (reports_leftovers) report_leftovers();
  begin_sweep();
}

void Guardian::begin_sweep() {
  if (std::exchange(sweeping_, true)) return;
  group_kill_ = os::monotonic_now() + kGroupDelay;
}

// Now helpers are killed, too.
void Guardian::agent_lost() {
  connected_ = false;
  awaits_leftovers_ = false;
  unsent_.clear();
  for (Worker& helper : helpers_) workers_.push_back(std::move(helper));
  helpers_.clear();
  forks_.clear();
  template_.close();
  begin_sweep();
  must_poll_again_ = true;  // this iteration has swept already, and perhaps no event comes
}

void Guardian::collect_messages() {
  for (Worker& one : workers_) {
    if (one.channel.socket() < 0) continue;
    const pid_t owner = one.channel.owner();
    const bool was_reporting = one.channel.is_reporting();
    one.channel.read_messages();
    if (os::UniqueFd passed = one.channel.take_passed(); passed.valid()) {
      snapshots_.connect(std::move(passed));
    }
    if (one.channel.owner() != owner) send_event(MarkEvent{one.id, Mark::kOpened, now_});
    if (one.channel.take_raised()) send_event(MarkEvent{one.id, Mark::kRaised, now_});
    if (one.channel.is_reporting() == was_reporting) continue;
    send_event(MarkEvent{one.id, Mark::kFirstStep, now_, one.channel.first_step()});
    if (const auto progress = sampler_.take_first(&workers_, now_)) send_event(*progress);
  }
  report_members();
}

void Guardian::report_members() {
  for (const MarkEvent& mark : round_change_.advance(&workers_, now_)) send_event(mark);
}

void Guardian::change_round(const ContinueRequest& request) {
  now_ = os::monotonic_now();
  if (!round_change_.give(request, &workers_, now_)) return;
  stop_steps_.clear();  // a stop that was agreed in the earlier round is void
  snapshots_.continue_round();
}

void Guardian::collect_exits(std::vector<Worker>* processes) {
  for (Worker& one : *processes) {
    if (one.ended) continue;
    const auto ending = exit_of(one.pid);
    if (!ending || !resolve_start(&one)) continue;
    one.ended = true;
    if (one.awaited_signal != 0) kill_group(one.pid, one.awaited_signal);
    one.succeeded = ending->si_code == CLD_EXITED && ending->si_status == 0;
    const bool has_exited = ending->si_code == CLD_EXITED;
    EndedEvent event{.id = one.id, .exit = {}};
    event.exit.kind = has_exited ? ExitKind::kExited : ExitKind::kSignaled;
    (has_exited ? event.exit.code : event.exit.signal) = ending->si_status;
    event.exit.core_dumped = ending->si_code == CLD_DUMPED;
    event.exit.stopped_by_us = one.stopped;
    event.exit.killed_by_us = one.killed;
    event.exit.at = now_;
    event.exit.stop_step = stop_steps_.stop_step(one);
    if (one.channel.valid()) event.exit.last_step = one.channel.own_step();
    send_event(event);
  }
  remove_failed_starts(processes);
}

void Guardian::release_helpers() {
  bool lost_template = false;
  std::erase_if(helpers_, [&](const Worker& helper) {
    if (!helper.ended) return false;
    kill_members(helper.pid);
    ::waitpid(helper.pid, nullptr, WNOHANG);
    lost_template = lost_template || helper.id == kTemplateId;
    return true;
  });
  if (lost_template) template_ended();
}

// The members of its group that are ours now. A cleaner ends by itself, and is reaped as an orphan.
void Guardian::kill_members(pid_t leader) {
  if (!list_swept_children()) {
    ::kill(-leader, SIGKILL);
    return;
  }
  for (const pid_t child : children_) {
    if (::getpgid(child) == leader && os::cleaner_of(child) == os::Cleaner::kNone) {
      ::kill(child, SIGKILL);
    }
  }
}

void Guardian::reap_orphans() {
  if (sweeping_ || !list_swept_children()) return;  // a sweep does its own reaping
  if (template_.is_running()) {
    // A worker is not an orphan, even if it ended before the template's message was read: the
    // message was sent before the worker ran.
    std::erase_if(children_, [](pid_t child) { return !exit_of(child); });
    read_template();
  }
  for (const pid_t child : children_) {
    if (!has_pid(workers_, child)) ::waitpid(child, nullptr, WNOHANG);
  }
}

bool Guardian::list_swept_children() {
  if (!children_file_.list(&children_)) return false;
  std::erase_if(children_, [this](pid_t child) {
    return has_pid(helpers_, child) || cleaners_.is_left(child);
  });
  return true;
}

void Guardian::sweep_once() {
  const Instant begun = os::monotonic_now();
  bool found_new = true;
  for (int pass = 0; found_new; ++pass) {
    if (os::monotonic_now() - begun > kReapingDelay) break;
    is_blind_ = is_blind_ || pass == kLookingPasses;
    found_new = kill_workers_and_orphans(begun + kLookingTime);
  }
  if (!found_new && group_kill_ && now_ >= *group_kill_) kill_groups();
  std::erase_if(children_, [this](pid_t child) { return reap(child); });
  // Ended workers can be reaped, because their groups were killed. The exits of the others must be
  // reported first.
  std::erase_if(workers_, [this](const Worker& worker) {
    if (!worker.ended) return false;
    ::waitpid(worker.pid, nullptr, WNOHANG);
    killed_.erase(worker.pid);
    return true;
  });
  if (connected_ && (!workers_.empty() || awaits_fork())) return;
  // Only when every other process has ended do cleaners begin their work.
  const bool are_cleaners = std::all_of(children_.begin(), children_.end(),
                                        [this](pid_t child) { return cleaners_.is_known(child); });
  if (are_cleaners) cleaners_.leave(os::monotonic_now());
  if (is_swept() && settle_snapshots()) finish_sweep();
}

// True if it found a child that was not killed before.
bool Guardian::kill_workers_and_orphans(Instant looks_until) {
  int refused = 0;
  bool found_new = false;
  const bool is_listed = list_swept_children();
  for (const Worker& worker : workers_) {
    const bool is_sent = is_listed ? ::kill(worker.pid, SIGKILL) == 0 || errno != EPERM
                                   : kill_group(worker.pid, SIGKILL);
    if (!is_sent) refused = worker.pid;
  }
  if (is_listed) {
    for (const pid_t child : children_) {
      if (killed_.count(child) > 0 || cleaners_.is_known(child)) continue;
      is_blind_ = is_blind_ || os::monotonic_now() > looks_until;
      if (!is_blind_ && !has_pid(workers_, child) && cleaners_.add(child)) continue;
      killed_.insert(child);
      found_new = true;
      if (::kill(child, SIGKILL) != 0 && errno == EPERM) refused = child;
    }
  }
  if (!std::exchange(kill_reported_, true)) {
    send_event(KillSentEvent{refused, is_listed});
    flush();  // where processes fork without end, a sweep may not return for longer than agents
              // wait
  }
  return found_new;
}

// Once in a sweep: the members of the workers' groups whose parent has not died.
void Guardian::kill_groups() {
  group_kill_.reset();
  // The list does not end while processes are forked faster than it is read.
  const Instant limit = os::monotonic_now() + kLookingTime;
  os::for_each_process([&](pid_t pid) {
    const pid_t group = ::getpgid(pid);
    if (group > 0 && has_pid(workers_, group) && os::cleaner_of(pid) == os::Cleaner::kNone) {
      ::kill(pid, SIGKILL);
    }
    return os::monotonic_now() < limit;
  });
}

// A worker remains a zombie until its exit was reported.
bool Guardian::reap(pid_t child) {
  if (has_pid(workers_, child) || ::waitpid(child, nullptr, WNOHANG) != child) return false;
  killed_.erase(child);
  cleaners_.forget(child);
  return true;
}

bool Guardian::is_swept() {
  if (!connected_ && cleaners_.are_left()) return false;
  // Without /proc orphans cannot be distinguished from helpers.
  if (!helpers_.empty() || cleaners_.are_left()) {
    if (!list_swept_children()) return true;
    // The kernel tells its former parent of the end of a helper's orphan, and not this process.
    must_poll_again_ =
        must_poll_again_ || std::any_of(children_.begin(), children_.end(), [this](pid_t child) {
          return killed_.count(child) == 0 && !cleaners_.is_known(child);
        });
    return children_.empty();
  }
  for (int i = 0; i < kReapedAtOnce; ++i) {
    const pid_t reaped = ::waitpid(-1, nullptr, WNOHANG);
    if (reaped <= 0) return reaped < 0 && errno == ECHILD;
    killed_.erase(reaped);
    cleaners_.forget(reaped);
  }
  must_poll_again_ = true;
  return false;
}

void Guardian::finish_sweep() {
  workers_.clear();
  stop_steps_.clear();
  round_change_.clear();
  sweeping_ = false;
  group_kill_.reset();
  is_blind_ = false;
  cleaners_.end_sweep();
  kill_reported_ = false;
  killed_.clear();
  send_event(SweptEvent{});
}

void Guardian::send_event(const Event& event) {
  if (connected_) append_event(&unsent_, event);
}

void Guardian::flush() {
  while (connected_ && !unsent_.empty()) {
    const ssize_t put = ::send(channel_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (put < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (put < 0) return agent_lost();
    unsent_.erase(0, static_cast<std::size_t>(put));
  }
}

}  // namespace elastic::guardian
