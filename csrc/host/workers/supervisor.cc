#include "host/workers/supervisor.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <mutex>
#include <utility>
#include <variant>

#include "core/base/text.h"
#include "elastic/worker_group.h"
#include "host/base/event_thread.h"
#include "os/base/process.h"
#include "os/loop/event_loop.h"
#include "os/loop/wait.h"
#include "os/process/process_tree.h"

// Theory of operation. Calls and the guardian's events are fed to the machine
// (core/workers/worker_group); its actions are queued and executed in order, including those of
// calls that the sink makes.
//
// The link ends in two ways. If the supervisor is destroyed, it closes its half of the stream; the
// guardian kills all processes and exits, which closes the other half. If the guardian dies, its
// workers receive their parent-death signal. If this process is a subreaper, their orphans become
// its children, and it kills them before it reports the loss.

namespace elastic::host {
namespace {

constexpr std::size_t kCommandBytesMax = 200;

constexpr std::size_t kChannelReadBytes = 64 << 10;

// Below the template's id.
constexpr std::uint32_t kHelperNumbers = guardian::kTemplateId - guardian::kFirstHelperId;

// A process with much device memory may take seconds to end.
constexpr Duration kCloseTimeout = std::chrono::seconds(5);

// The children of a killed orphan are adopted when it has ended. SIGCHLD belongs to the embedding
// program, so the orphans are polled at this interval, for a limited time.
constexpr Duration kOrphanInterval = std::chrono::milliseconds(2);
constexpr Duration kOrphanTimeout = std::chrono::seconds(5);

std::string pids_text(const std::vector<pid_t>& pids) {
  std::string text;
  for (const pid_t pid : pids) text += (text.empty() ? "" : ", ") + std::to_string(pid);
  return text;
}

}  // namespace

// A guardian whose link is closed, and the thread that waits for its end.
struct Supervisor::ClosingGuardian {
  os::Helper helper;
  std::mutex mutex;
  bool is_reaped = false;  // guarded by mutex: its pid is its own until then

  void wait_for_end();
  bool kill_suspended();
};

// The guardian closes its half of the stream when no process of the workers is left.
void Supervisor::ClosingGuardian::wait_for_end() {
  char bytes[256];
  const int channel = helper.channel.get();
  while (os::wait_ready(channel, POLLIN, {}).ok()) {
    const ssize_t got = ::read(channel, bytes, sizeof bytes);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) break;
  }
  const std::lock_guard lock(mutex);
  os::end_helper(helper.pid);
  is_reaped = true;
}

// Whether the guardian did not run.
bool Supervisor::ClosingGuardian::kill_suspended() {
  const std::lock_guard lock(mutex);
  if (is_reaped || !os::is_suspended(helper.pid)) return false;
  ::kill(helper.pid, SIGKILL);
  return true;
}

Result<std::unique_ptr<Supervisor>> Supervisor::create(os::EventLoop* loop,
                                                       const WorkerGroupOptions& options, Sink sink,
                                                       int shared) {
  if (options.start_timeout <= Duration::zero()) {
    return Status(StatusCode::kInvalidArgument, "start_timeout must be greater than 0");
  }
  if (!options.warm_template.argv.empty() && guardian::contains_nul(options.warm_template)) {
    return Status(StatusCode::kInvalidArgument, "warm_template: an argument contains a NUL");
  }
  const Result<std::string> path = find_guardian(options.guardian_path);
  if (!path.ok()) return path.status();
  std::optional<OrphanSweep> orphans;
  if (options.become_subreaper) {
    Result<OrphanSweep> prepared = OrphanSweep::prepare(*path);
    if (!prepared.ok()) return prepared.status();
    orphans = std::move(*prepared);
  }
  Result<os::Helper> helper =
      os::spawn_helper(*path, std::to_string(::getpid()), guardian::kChannelDescriptor, shared);
  if (!helper.ok()) return helper.status();
  os::restore_descriptor_limit(helper->pid);  // the workers inherit the guardian's
  std::unique_ptr<Supervisor> supervisor(
      new Supervisor(loop, std::move(*helper), std::move(orphans), options, std::move(sink)));
  if (Status status = supervisor->begin(); !status.ok()) return status;
  return supervisor;
}

Supervisor::Supervisor(os::EventLoop* loop, os::Helper helper, std::optional<OrphanSweep> orphans,
                       const WorkerGroupOptions& options, Sink sink)
    : loop_(loop),
      options_(options),
      template_(!options.warm_template.argv.empty(), loop->now()),
      guardian_(std::move(helper)),
      orphans_(std::move(orphans)),
      sink_(std::move(sink)),
      deadline_timer_(loop, [this] { step(group_event::Tick{}); }),
      orphan_timer_(loop, [this] { sweep_orphans(); }),
      silence_timer_(loop, [this] { silent_ ? judge_silent_guardian() : report_silence(); }) {}

Status Supervisor::begin() {
  auto watch = loop_->watch(guardian_.channel.get(), EPOLLIN, this);
  if (!watch.ok()) return watch.status();
  watch_ = std::move(*watch);
  if (!options_.warm_template.argv.empty()) start_template();
  return {};
}

Supervisor::~Supervisor() {
  close();
  if (!closing_ || closing_->join_within(kCloseTimeout)) return;
  // A guardian that takes longer continues alone, and the detached thread reaps it. If it does
  // not run, the kernel kills its workers with it, and what they started is ours then.
  if (!closing_guardian_->kill_suspended()) return;
  closing_->join_within(kCloseTimeout);
  const Instant deadline = os::monotonic_now() + kOrphanTimeout;
  while (orphans_ && !orphans_->kill_once().empty() && os::monotonic_now() < deadline) {
    (void)os::wait_ready(-1, 0, {.deadline = os::monotonic_now() + kOrphanInterval});
  }
}

void Supervisor::close() {
  watch_.reset();
  deadline_timer_.disarm();
  orphan_timer_.disarm();
  silence_timer_.disarm();
  if (!std::exchange(connected_, false)) return;
  // Not close(): a process that the embedding program forked may hold a copy of the socket.
  ::shutdown(guardian_.channel.get(), SHUT_WR);
  closing_guardian_ = std::make_shared<ClosingGuardian>();
  closing_guardian_->helper = std::move(guardian_);
  auto thread = os::DetachableThread::start(
      "elastic-closing", [guardian = closing_guardian_] { guardian->wait_for_end(); });
  if (thread.ok()) closing_.emplace(*std::move(thread));
}

Status Supervisor::start(const std::vector<WorkerCommand>& commands,
                         std::vector<WorkerStream> streams) {
  if (!connected_) return {StatusCode::kFailedPrecondition, "the guardian has ended"};
  if (machine_.live()) {
    return {StatusCode::kFailedPrecondition, "the workers of the last start have not ended yet"};
  }
  // Half of the start timeout is left to execute a worker for which the template is too slow.
  const WarmTemplate::Start warm =
      template_.begin_generation(commands.size(), options_.start_timeout / 2, loop_->now());
  Result<std::vector<StartOrder>> requests =
      encode_starts(commands, std::move(streams), warm.kind, warm.wait);
  if (!requests.ok()) return requests.status();
  report_template(warm.notice);
  start_orders_ = std::move(*requests);
  step(group_event::Start{static_cast<int>(commands.size()), options_.start_timeout,
                          options_.leftover_grace});
  return {};
}

void Supervisor::stop(int signal, Duration grace, SignalScope scope) {
  if (connected_) step(group_event::Stop{signal, grace, scope});
}

void Supervisor::forward(int signal, SignalScope scope, std::optional<int> local_rank) {
  if (connected_) step(group_event::Forward{signal, scope, local_rank});
}

template <typename Request>
void Supervisor::send(const Request& request) {
  if (!connected_) return;
  guardian::append_request(&unsent_.bytes, request);
  flush();
}

void Supervisor::watch(Duration interval, ProgressSink progress, MarkSink marks) {
  progress_sink_ = std::move(progress);
  mark_sink_ = std::move(marks);
  send(guardian::WatchRequest{interval});
}

void Supervisor::collect_stacks(Duration limit, StacksSink done) {
  stacks_sink_ = std::move(done);
  evidence_.clear();
  send(guardian::StacksRequest{.limit = limit});
}

void Supervisor::measure_work(StacksSink done) {
  stacks_sink_ = std::move(done);
  evidence_.clear();
  send(guardian::StacksRequest{.measures_work = true});
}

void Supervisor::request(const guardian::ExtensionRequest& request, os::UniqueFd passed) {
  std::visit(
      [&](const auto& one) {
        if (!passed.valid()) return send(one);
        std::string bytes;
        guardian::append_request(&bytes, one);
        unsent_.append(bytes, std::move(passed));
        flush();
      },
      request);
}

void Supervisor::set_stop_reason(const std::string& text) {
  send(guardian::StopReasonRequest{text});
}

void Supervisor::cut(std::uint64_t round) { send(guardian::CutRequest{round}); }

Status Supervisor::continue_round(std::uint64_t round,
                                  const std::vector<std::vector<std::string>>& env) {
  if (!connected_) return {StatusCode::kFailedPrecondition, "the guardian has ended"};
  if (!machine_.live()) return {StatusCode::kFailedPrecondition, "no workers are running"};
  Status status = append_continue(&unsent_.bytes, round, env, start_orders_.size());
  if (!status.ok()) return status;
  flush();
  return {};
}

Status Supervisor::start_helper(std::uint32_t number, const WorkerCommand& command,
                                os::UniqueFd output, HelperSink ended) {
  if (!connected_) return {StatusCode::kFailedPrecondition, "the guardian has ended"};
  const std::uint32_t id = guardian::kFirstHelperId + number % kHelperNumbers;
  auto order = encode_helper(id, command, std::move(output));
  if (!order.ok()) return order.status();
  if (helpers_.count(id) > 0) {
    return {StatusCode::kResourceExhausted, "the program of an earlier check still exists"};
  }
  Helper& helper = helpers_[id] = {*std::move(order), std::move(ended)};
  unsent_.append(helper.order);
  flush();
  return {};
}

void Supervisor::kill_helper(std::uint32_t number) {
  const std::uint32_t id = guardian::kFirstHelperId + number % kHelperNumbers;
  const auto found = helpers_.find(id);
  if (found == helpers_.end()) return;
  found->second.ended = nullptr;
  send(guardian::SignalRequest{.signal = SIGKILL, .id = id});
}

void Supervisor::helper_ended(std::uint32_t id, const WorkerExit& exit) {
  const auto found = helpers_.find(id);
  if (found == helpers_.end()) return;
  const HelperSink ended = std::move(found->second.ended);
  helpers_.erase(found);
  if (ended) ended(exit);
}

void Supervisor::when_warm(std::function<void()> done) {
  if (!template_.is_importing()) return done();
  warm_sink_ = std::move(done);
}

void Supervisor::on_ready(std::uint32_t events) {
  if ((events & EPOLLOUT) != 0) flush();
  if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) read_events();
}

void Supervisor::step(const GroupEvent& event) {
  std::vector<GroupAction> actions;
  machine_.step(event, loop_->now(), &actions);
  for (GroupAction& action : actions) actions_.push_back(std::move(action));
  if (acting_) return;  // called by the sink; the outer step executes these actions
  acting_ = true;
  while (!actions_.empty()) {
    const GroupAction action = std::move(actions_.front());
    actions_.pop_front();
    std::visit([this](const auto& what) { act(what); }, action);
  }
  acting_ = false;
  if (const auto deadline = machine_.next_deadline()) {
    deadline_timer_.arm(*deadline);
  } else {
    deadline_timer_.disarm();
  }
  flush();
}

void Supervisor::act(const group_action::StartAll&) {
  for (const StartOrder& order : start_orders_) unsent_.append(order);
}

void Supervisor::act(const group_action::StartAgain& action) {
  unsent_.append(start_orders_[static_cast<std::size_t>(action.local_rank)]);
}

void Supervisor::act(const group_action::Signal& action) {
  guardian::append_request(&unsent_.bytes, action.request);
}

void Supervisor::act(const group_action::CancelStarts&) {
  guardian::append_request(&unsent_.bytes, guardian::CancelStartsRequest{options_.start_timeout});
}

void Supervisor::act(const group_action::AwaitLeftovers&) {
  guardian::append_request(&unsent_.bytes, guardian::AwaitLeftoversRequest{});
}

void Supervisor::act(const group_action::Sweep& action) {
  guardian::append_request(&unsent_.bytes, guardian::SweepRequest{action.reports_leftovers});
}

void Supervisor::act(const group_action::Emit& action) {
  WorkerEvent event = action.event;
  if (event.kind == WorkerEvent::Kind::kGroupEnded) start_orders_.clear();
  if (event.kind == WorkerEvent::Kind::kStuck && !event.kill_sent) {
    silent_.emplace(loop_->now());
    stuck_ = event;
    return judge_silent_guardian();
  }
  if (event.kind == WorkerEvent::Kind::kStuck && event.pid > 0) {
    event.message += " (" + os::describe_wait(event.pid) + ")";
  }
  sink_(event);
}

void Supervisor::act(const group_action::CloseLink&) { broken_ = true; }

void Supervisor::flush() {
  if (!connected_) return;
  while (!unsent_.bytes.empty()) {
    // EAGAIN, or the end of the stream, which the next read() reports.
    if (unsent_.send_some(guardian_.channel.get()) < 0) break;
  }
  if (unsent_.bytes.empty() == !waits_to_send_) return;
  waits_to_send_ = !waits_to_send_;
  watch_.modify(waits_to_send_ ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void Supervisor::read_events() {
  char bytes[kChannelReadBytes];
  const ssize_t got = ::read(guardian_.channel.get(), bytes, sizeof bytes);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return lose_guardian("");
  received_.append({bytes, static_cast<std::size_t>(got)});
  std::string_view payload;
  auto status = core::FrameStatus::kNeedMore;
  while ((status = received_.next(&payload)) == core::FrameStatus::kFrame) {
    guardian::Event event;
    if (!guardian::decode_event(payload, &event)) broken_ = true;
    if (!broken_) std::visit([this](const auto& what) { on_event(what); }, event);
    if (broken_) break;
  }
  if (broken_ || status == core::FrameStatus::kViolation) {
    lose_guardian("violated the protocol and ");
  }
}

void Supervisor::on_event(const guardian::HelloEvent& event) {
  broken_ = greeted_ || event.version != guardian::kProtocolVersion;
  greeted_ = true;
}

void Supervisor::on_event(const guardian::StartedEvent& event) {
  if (event.id == guardian::kTemplateId) return;
  if (is_helper(event.id)) {
    if (const auto found = helpers_.find(event.id); found != helpers_.end()) {
      found->second.order = {};
    }
    return;
  }
  if (event.id < start_orders_.size()) start_orders_[event.id].stream.reset();
  step(group_event::Started{static_cast<int>(event.id), event.pid, event.at});
}

void Supervisor::on_event(const guardian::EndedEvent& event) {
  if (event.id == guardian::kTemplateId) return on_template(template_.on_end(event.exit));
  if (is_helper(event.id)) return helper_ended(event.id, event.exit);
  step(event);
}

void Supervisor::on_event(const guardian::KillSentEvent& event) {
  if (std::exchange(silent_, std::nullopt)) silence_timer_.disarm();
  stuck_.reset();
  step(group_event::KillSent{event.refused_pid, event.found_all});
}

void Supervisor::on_event(const guardian::LeftoverEvent& event) {
  if (event.is_awaited && event.count == 0) return step(group_event::LeftoversGone{});
  if (event.is_awaited && machine_.state() != GroupState::kLeftovers) return;
  const std::string others =
      event.count > 1 ? " and " + std::to_string(event.count - 1) + " more" : "";
  const std::string what =
      event.is_awaited
          ? "waiting up to " + core::duration_text(options_.leftover_grace) + " for processes"
          : "killing processes";
  WorkerEvent notice;
  notice.kind = WorkerEvent::Kind::kNotice;
  notice.at = loop_->now();
  notice.message = "the workers have succeeded; " + what + " that they left running: pid " +
                   std::to_string(event.pid) + " (" +
                   core::to_printable(event.command, core::Lines::kOne, kCommandBytesMax) + ")" +
                   others;
  sink_(notice);
}

void Supervisor::on_event(const guardian::SweptEvent&) { step(group_event::Swept{}); }
void Supervisor::on_event(const guardian::TemplateEvent& event) {
  on_template(template_.on(event));
}

void Supervisor::on_template(const WarmTemplate::Reaction& reaction) {
  if (reaction.starts) start_template();
  report_template(reaction.notice);
  if (warm_sink_ && !template_.is_importing()) std::exchange(warm_sink_, {})();
}

void Supervisor::report_template(const std::string& notice) {
  if (notice.empty()) return;
  WorkerEvent event;
  event.kind = WorkerEvent::Kind::kNotice;
  event.at = loop_->now();
  event.message = notice;
  sink_(event);
}

void Supervisor::start_template() {
  guardian::append_start(&unsent_.bytes, guardian::kTemplateId, options_.warm_template,
                         guardian::Lifetime::kHelper, 0, guardian::StartKind::kTemplate);
  flush();
}

void Supervisor::on_event(const guardian::ProgressEvent& event) {
  if (progress_sink_ && event.slowest < start_orders_.size()) progress_sink_(event);
}

void Supervisor::on_event(const guardian::MarkEvent& event) {
  if (mark_sink_ && event.id < start_orders_.size()) mark_sink_(event);
}

void Supervisor::on_event(const guardian::StacksEvent& event) {
  if (event.id >= start_orders_.size()) return;
  evidence_.push_back({.rank = static_cast<std::int32_t>(event.id),
                       .step = event.step,
                       .state = static_cast<char>(event.state),
                       .wait_channel = std::string(event.wait_channel),
                       .text = std::string(event.text),
                       .collectives = std::string(event.collectives),
                       .groups = std::string(event.groups),
                       .cpu = event.cpu,
                       .io_bytes = event.io_bytes,
                       .is_at_work = event.is_at_work,
                       .polling_threads = event.polling_threads});
}

void Supervisor::on_event(const guardian::SignaturesEvent& event) {
  if (event.id < start_orders_.size()) {
    signatures_.push_back({.rank = static_cast<std::int32_t>(event.id),
                           .groups = std::string(event.groups),
                           .signatures = std::string(event.signatures)});
  }
  if (!event.is_last) return;
  auto signatures = std::exchange(signatures_, {});
  if (signatures_sink_) signatures_sink_(std::move(signatures));
}

void Supervisor::on_event(const guardian::StacksDoneEvent&) {
  auto evidence = std::exchange(evidence_, {});
  if (const auto sink = std::exchange(stacks_sink_, {})) sink(std::move(evidence));
}

// Its own end makes the kernel kill the workers (parent-death signal), and leaves their descendants
// to this process.
void Supervisor::judge_silent_guardian() {
  if (!silent_->must_end(os::wait_of(guardian_.pid).state, loop_->now())) {
    silence_timer_.arm_after(core::SilentGuardian::kPause);
    if (silent_->take_report()) report_starved_guardian();
    return;
  }
  silent_.reset();
  ::kill(guardian_.pid, SIGKILL);
  silence_timer_.arm_after(kOrphanTimeout);
}

void Supervisor::report_starved_guardian() {
  WorkerEvent notice;
  notice.kind = WorkerEvent::Kind::kNotice;
  notice.at = loop_->now();
  notice.message = "the guardian (pid " + std::to_string(guardian_.pid) +
                   ") kills the workers late, because it waits for a processor: it has " +
                   core::duration_text(core::SilentGuardian::kStarvedMax) +
                   " more; check how many processes run on this host";
  sink_(notice);
}

void Supervisor::report_silence() {
  stuck_->message +=
      "; the guardian (pid " + std::to_string(guardian_.pid) + ") still exists after SIGKILL";
  sink_(*stuck_);
}

void Supervisor::lose_guardian(std::string how) {
  watch_.reset();
  connected_ = false;
  silence_timer_.disarm();
  const bool was_killed = stuck_ && !silent_;
  silent_.reset();
  if (was_killed) how = "did not kill the workers in time and ";
  unsent_.clear();
  loss_ = "the guardian (pid " + std::to_string(guardian_.pid) + ") " + how;
  guardian_.channel.reset();
  orphan_deadline_ = loop_->now() + kOrphanTimeout;
  sweep_orphans();
}

void Supervisor::sweep_orphans() {
  // What it started is orphaned by its end. The sweep would reap it, too, while it ends.
  if (!guardian_end_) guardian_end_ = os::try_end_helper(guardian_.pid);
  std::vector<pid_t> left;
  if (guardian_end_ && orphans_) left = orphans_->kill_once();
  if (!(left.empty() && guardian_end_) && loop_->now() < orphan_deadline_) {
    return orphan_timer_.arm_after(kOrphanInterval);
  }
  std::string loss = loss_ + guardian_end_.value_or("still exists after SIGKILL");
  if (!greeted_) loss += " before it sent its hello: check that it has this version of elastic";
  if (left.empty()) {
    loss += "; its workers were killed";
  } else {
    loss += "; " + std::to_string(left.size()) +
            (left.size() == 1 ? " process of its workers still exists after SIGKILL (pid "
                              : " processes of its workers still exist after SIGKILL (pid ") +
            pids_text(left) + ")";
  }
  step(group_event::GuardianLost{std::move(loss)});
}

}  // namespace elastic::host

// A Supervisor on a separate thread. All work is done there; the public calls wait for it.

namespace elastic {

class WorkerGroup::Impl {
 public:
  std::unique_ptr<host::EventThread<host::Supervisor, WorkerEvent>> thread;
};

Result<std::unique_ptr<WorkerGroup>> WorkerGroup::create(const WorkerGroupOptions& options) {
  auto thread = host::EventThread<host::Supervisor, WorkerEvent>::start(
      "elastic-workers", [&](os::EventLoop* loop, host::Supervisor::Sink sink) {
        return host::Supervisor::create(loop, options, std::move(sink));
      });
  if (!thread.ok()) return thread.status();
  return std::unique_ptr<WorkerGroup>(
      new WorkerGroup(std::make_unique<Impl>(Impl{*std::move(thread)})));
}

WorkerGroup::WorkerGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
WorkerGroup::~WorkerGroup() = default;

Status WorkerGroup::start(std::vector<WorkerCommand> commands) {
  Status status(StatusCode::kFailedPrecondition, "cannot start workers: this is a forked child");
  impl_->thread->call([&](host::Supervisor& supervisor) { status = supervisor.start(commands); });
  return status;
}

void WorkerGroup::stop(int signal, Duration grace, SignalScope scope) {
  impl_->thread->call([&](host::Supervisor& supervisor) { supervisor.stop(signal, grace, scope); });
}

void WorkerGroup::forward(int signal, SignalScope scope, std::optional<int> local_rank) {
  impl_->thread->call(
      [&](host::Supervisor& supervisor) { supervisor.forward(signal, scope, local_rank); });
}

std::optional<WorkerEvent> WorkerGroup::next_event(Instant deadline,
                                                   const std::function<bool()>& interrupted) {
  return impl_->thread->next_event(deadline, interrupted);
}

void WorkerGroup::wake() { impl_->thread->wake(); }

}  // namespace elastic
