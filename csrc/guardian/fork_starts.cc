#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "guardian/guardian.h"
#include "os/loop/clock.h"

// Theory of operation. A worker that is to be forked is a ForkStart until the template has reported
// its pid; then it is a worker like any other. A request waits until the template is ready, and is
// then answered within kAnswerLimit. A worker that the template cannot fork is executed: the
// guardian has kept the request.
//
// One worker must never run twice. A worker waits until the guardian has received its pid and has
// released it, and ends if the template dies before it has sent the pid. So a late template is
// killed, and the worker is executed when the template has ended and its last messages were read.

namespace elastic::guardian {
namespace {

// From the request or the last answer. A template on a busy host, or one whose modules are on a
// slow file system, takes some seconds.
constexpr Duration kAnswerLimit = std::chrono::seconds(5);

// The fields of a request, as guardian/template.h describes them.
class Fields {
 public:
  void text(std::string_view text) { bytes_.append(text).push_back('\0'); }
  void number(long long value) { text(std::to_string(value)); }
  void list(const std::vector<std::string_view>& items) {
    number(static_cast<long long>(items.size()));
    for (const std::string_view item : items) text(item);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

bool is_meant(const SignalRequest& request, std::uint32_t id) {
  return request.id == id || request.id == kEveryWorker;
}

}  // namespace

void Guardian::start_template(const StartRequest& request) {
  Worker worker;
  StartFailure failure{Stage::kPipe, 0, kNoCandidate};
  const os::UniqueFd socket = template_.open();
  template_is_ready_ = false;
  template_is_late_ = false;
  imported_.clear();
  if (socket.valid() && spawn(request, pid_, -1, socket.get(), &worker, &failure)) {
    helpers_.push_back(std::move(worker));
    return;
  }
  if (!socket.valid()) failure.error = errno;
  template_.close();
  describe(request, &worker);
  report_failed_start(worker, failure);
}

void Guardian::queue_fork(const StartRequest& request, std::string_view payload,
                          os::UniqueFd stream) {
  ForkStart start;
  start.payload = payload;
  start.stream = std::move(stream);
  describe(request, &start.worker);
  start.deadline = add_saturating(os::monotonic_now(), request.template_wait);
  if (!template_.is_running()) {
    return execute_instead(std::move(start), "the template process has ended");
  }
  if (!request.cpus.empty()) {
    return execute_instead(std::move(start), "it is bound to CPUs of its own");
  }
  forks_.push_back(std::move(start));
  if (template_is_ready_) send_forks();
}

std::optional<std::size_t> Guardian::find_fork(std::uint32_t id) const {
  for (std::size_t i = 0; i < forks_.size(); ++i) {
    if (forks_[i].worker.id == id) return i;
  }
  return std::nullopt;
}

Guardian::ForkStart Guardian::take_fork(std::size_t index) {
  ForkStart start = std::move(forks_[index]);
  forks_.erase(forks_.begin() + static_cast<std::ptrdiff_t>(index));
  return start;
}

bool Guardian::awaits_fork() const {
  return std::any_of(forks_.begin(), forks_.end(), [](const auto& one) { return one.is_sent; });
}

std::optional<Instant> Guardian::fork_deadline() const {
  std::optional<Instant> first;
  for (const ForkStart& one : forks_) {
    if (one.deadline != Instant::max())
      first = std::min(first.value_or(one.deadline), one.deadline);
  }
  return first;
}

void Guardian::send_forks() {
  std::vector<ForkStart> unsent;
  for (std::size_t i = 0; i < forks_.size(); ++i) {
    ForkStart& start = forks_[i];
    if (start.is_sent) continue;
    Request request;
    decode_request(start.payload, &request);  // it was valid when it arrived
    const auto& wanted = std::get<StartRequest>(request);
    const os::UniqueFd pipe = open_exec_pipe(&start.worker);
    const auto stream_or = [&](std::uint8_t bit, int own) {
      return start.stream.valid() && (wanted.passed & bit) != 0 ? start.stream.get() : own;
    };
    if (wanted.has_channel) start.worker.channel = Channel::create();
    std::vector<int> numbers = {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO};
    std::vector<int> passed = {pipe.get(), STDIN_FILENO, stream_or(kPassedStdout, STDOUT_FILENO),
                               stream_or(kPassedStderr, STDERR_FILENO)};
    // The variable names the guardian's own numbers, as for a program that inherits them.
    for (const int descriptor : start.worker.channel.inherited()) {
      if (descriptor < 0) continue;
      numbers.push_back(descriptor);
      passed.push_back(descriptor);
    }
    Fields fields;
    fields.number(pid_);
    fields.number(wanted.id);
    fields.list(wanted.argv);
    fields.list(environment_of(wanted, start.worker.channel));
    fields.text(wanted.cwd);
    fields.text(wanted.stdout_path);
    fields.text(wanted.stderr_path);
    for (const int number : numbers) fields.number(number);
    if (!pipe.valid() || template_.send(fields.bytes(), passed) != 0) {
      unsent.push_back(take_fork(i--));
      continue;
    }
    start.worker.channel.release_worker_end();
    start.is_sent = true;
    start.deadline = os::monotonic_now() + kAnswerLimit;
  }
  for (ForkStart& start : unsent) {
    execute_instead(std::move(start), "the request could not be sent to the template process");
  }
}

void Guardian::read_template() {
  using Kind = TemplateMessage::Kind;
  while (std::optional<TemplateMessage> message = template_.receive()) {
    const auto report = [&](TemplateNews news) {
      send_event(TemplateEvent{news, kTemplateId, now_, message->text});
    };
    switch (message->kind) {
      case Kind::kImporting:
        imported_ = message->text;
        report(TemplateNews::kImporting);
        break;
      case Kind::kReady:
        template_is_ready_ = true;
        report(TemplateNews::kReady);
        send_forks();
        break;
      case Kind::kUnfit:
        report(TemplateNews::kUnfit);
        execute_all_instead(message->text);
        break;
      case Kind::kStale:
        template_is_ready_ = false;
        report(TemplateNews::kStale);
        execute_all_instead(message->text + " was changed");
        break;
      case Kind::kForked: adopt(message->id, message->pid, message->release); break;
      case Kind::kRefused: refuse_fork(message->id, message->text); break;
      case Kind::kLeftOut: report(TemplateNews::kLeftOut); break;
    }
  }
}

void Guardian::adopt(std::uint32_t id, pid_t pid, const os::UniqueFd& release) {
  extend_forks();
  const std::optional<std::size_t> found = find_fork(id);
  siginfo_t info{};
  const bool is_child =
      pid > 1 && ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
  if (!found || !forks_[*found].is_sent) {  // cancelled
    if (is_child) ::kill(pid, SIGKILL);
    return;
  }
  ForkStart start = take_fork(*found);
  if (!is_child) {
    EndedEvent event = not_started(id, Stage::kFork, ECHILD, start.worker.argv0, now_);
    event.exit.stopped_by_us = sweeping_;
    send_event(event);
    return;
  }
  start.worker.pid = pid;
  start.worker.stopped = start.worker.killed = sweeping_;
  for (const SignalRequest& request : start.signals) {
    if (request.is_stop) start.worker.stopped = true;
    ::kill(pid, request.signal);
  }
  workers_.push_back(std::move(start.worker));
  // An error means that the worker has ended; its exit is collected as any other.
  [[maybe_unused]] const ssize_t put = ::write(release.get(), "r", 1);
}

void Guardian::refuse_fork(std::uint32_t id, const std::string& reason) {
  extend_forks();
  if (const auto found = find_fork(id)) execute_instead(take_fork(*found), reason);
}

// All requests are sent together, and a template answers one after the other.
void Guardian::extend_forks() {
  if (template_is_late_) return;
  for (ForkStart& start : forks_) {
    if (start.is_sent) start.deadline = os::monotonic_now() + kAnswerLimit;
  }
}

void Guardian::execute_instead(ForkStart start, const std::string& reason) {
  const bool is_stopped = sweeping_ || std::any_of(start.signals.begin(), start.signals.end(),
                                                   [](const auto& one) { return one.is_stop; });
  if (is_stopped) {
    report_stopped_start(start.worker);
    return;
  }
  send_event(TemplateEvent{TemplateNews::kExecuted, start.worker.id, now_, reason});
  Request request;
  decode_request(start.payload, &request);
  execute(std::get<StartRequest>(request), start.stream.get());
}

void Guardian::report_stopped_start(const Worker& worker) {
  EndedEvent event = not_started(worker.id, Stage::kFork, ECANCELED, worker.argv0, now_);
  event.exit.stopped_by_us = true;
  send_event(event);
}

void Guardian::execute_all_instead(const std::string& reason) {
  for (ForkStart& start : std::exchange(forks_, {})) execute_instead(std::move(start), reason);
}

// A worker whose request was not sent yet has nothing to stop, and hears no other signal.
void Guardian::signal_forks(const SignalRequest& request) {
  for (ForkStart& start : forks_) {
    if (start.is_sent && is_meant(request, start.worker.id)) start.signals.push_back(request);
  }
  if (request.is_stop) stop_forks();
}

void Guardian::stop_forks() {
  std::erase_if(forks_, [this](const ForkStart& start) {
    if (start.is_sent) return false;
    report_stopped_start(start.worker);
    return true;
  });
}

void Guardian::cancel_forks(Duration start_timeout) {
  if (awaits_fork()) kill_late_template();
  for (const ForkStart& start : std::exchange(forks_, {})) {
    report_failed_start(start.worker, {Stage::kFork, ETIMEDOUT, kNoCandidate}, start_timeout);
  }
}

void Guardian::kill_late_template() {
  if (std::exchange(template_is_late_, true)) return;
  const Worker* const helper = find_worker(&helpers_, kTemplateId);
  if (helper != nullptr) ::kill(helper->pid, SIGKILL);
}

void Guardian::expire_forks() {
  if (forks_.empty()) return;
  std::vector<ForkStart> waited;
  for (std::size_t i = 0; i < forks_.size(); ++i) {
    ForkStart& start = forks_[i];
    if (start.deadline > now_) continue;
    if (!start.is_sent) {
      waited.push_back(take_fork(i--));
      continue;
    }
    start.deadline = Instant::max();
    kill_late_template();
  }
  const std::string what = imported_.empty() ? "starts" : "imports " + imported_;
  for (ForkStart& start : waited) {
    execute_instead(std::move(start), "the template process still " + what);
  }
}

// Its messages are complete, because the process has ended.
void Guardian::template_ended() {
  read_template();
  template_.close();
  template_is_ready_ = false;
  execute_all_instead(template_is_late_ ? "the template process did not answer within five seconds"
                                        : "the template process has ended");
}

}  // namespace elastic::guardian
