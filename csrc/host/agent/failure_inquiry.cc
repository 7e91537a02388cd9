#include "host/agent/failure_inquiry.h"

#include <algorithm>
#include <utility>

#include "core/rendezvous/rendezvous_fields.h"
#include "core/workers/failure_cause.h"
#include "core/workers/output_lines.h"
#include "os/loop/clock.h"
#include "os/loop/event_loop.h"
#include "os/net/address.h"

namespace elastic::host {

FailureInquiry::FailureInquiry(os::EventLoop* loop, WorkerOutput* output, Sink sink, LateSink late)
    : loop_(loop),
      output_(output),
      sink_(std::move(sink)),
      late_(std::move(late)),
      host_name_(os::host_name()),
      traceback_timer_(loop, [this] { check_tracebacks(); }) {
  output_->watch_tracebacks([this](int local_rank) { note_traceback(local_rank); });
}

FailureInquiry::~FailureInquiry() = default;

void FailureInquiry::begin_round(std::size_t workers) {
  workers_.assign(workers, Worker{});
  reset();
  output_->begin_examination();
}

void FailureInquiry::continue_round() {
  for (Worker& worker : workers_) worker.raised_at.reset();
  reset();
  output_->continue_examination();
}

void FailureInquiry::reset() {
  ++round_;
  stopped_at_.reset();
  examines_stopped_ = false;
  pending_ = 0;
  tracebacks_.clear();
}

void FailureInquiry::note_traceback(int local_rank) {
  const Instant due = loop_->now() + kEndTimeout;
  tracebacks_[local_rank] = due;
  if (!traceback_timer_.armed()) traceback_timer_.arm(due);
}

void FailureInquiry::check_tracebacks() {
  Instant next = Instant::max();
  for (auto it = tracebacks_.begin(); it != tracebacks_.end();) {
    const auto [local_rank, due] = *it;
    if (due > loop_->now()) {
      next = std::min(next, due);
      ++it;
      continue;
    }
    it = tracebacks_.erase(it);
    check_traceback(local_rank);
  }
  if (next != Instant::max()) traceback_timer_.arm(next);
}

void FailureInquiry::check_traceback(int local_rank) {
  const auto index = static_cast<std::size_t>(local_rank);
  if (stopped_at_ || index >= workers_.size() || !workers_[index].is_running) return;
  const std::string lines = output_->tail(local_rank).lines;
  if (!lines.empty()) return report_late(local_rank, lines);
  // Its stderr goes to a file.
  output_->examine(index, false, [this, round = round_, index](const FailureFindings& findings) {
    const bool is_late = round == round_ && !stopped_at_ && workers_[index].is_running;
    if (is_late) report_late(static_cast<int>(index), findings.stderr_bytes);
  });
}

void FailureInquiry::report_late(int local_rank, const std::string& lines) {
  if (core::is_uncaught_exception(lines)) late_(local_rank, core::last_exception(lines));
}

void FailureInquiry::worker_raised(int local_rank, Instant at) {
  const auto index = static_cast<std::size_t>(local_rank);
  if (index >= workers_.size() || !workers_[index].is_running) return;
  workers_[index].raised_at = at;
  note_traceback(local_rank);
}

void FailureInquiry::worker_started(int local_rank, int pid) {
  workers_.at(static_cast<std::size_t>(local_rank)) = {pid, true};
}

void FailureInquiry::worker_ended(int local_rank, int pid, const WorkerExit& exit) {
  workers_.at(static_cast<std::size_t>(local_rank)).is_running = false;
  if (exit.succeeded() || exit.kind == ExitKind::kNotStarted) return;
  if (!exit.stopped_by_us || examines_stopped_) examine(local_rank, pid, exit);
}

void FailureInquiry::workers_stopped(bool has_failed) {
  if (!stopped_at_) stopped_at_ = loop_->now();
  if (!has_failed || std::exchange(examines_stopped_, true)) return;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].is_running) examine(static_cast<int>(i), workers_[i].pid, WorkerExit{});
  }
}

void FailureInquiry::examine(int local_rank, int pid, const WorkerExit& exit) {
  ++pending_;
  output_->examine(static_cast<std::size_t>(local_rank), core::is_own_exit(exit),
                   [this, round = round_, local_rank, pid, exit](const FailureFindings& findings) {
                     if (round != round_) return;
                     core::FailureFound found{{local_rank, pid, exit}};
                     add_evidence(&found.worker, findings);
                     if (core::has_failed(exit, found.worker.reported_at, stopped_at_)) {
                       sink_(found);
                     }
                     if (--pending_ == 0 && done_) std::exchange(done_, nullptr)();
                   });
}

void FailureInquiry::add_evidence(core::WorkerExited* failed, const FailureFindings& findings) {
  const WorkerExit& exit = failed->exit;
  OutputCapture::Tail tail = output_->tail(failed->local_rank);
  failed->output = std::move(tail.lines);
  std::string lines = failed->output;
  if (lines.empty()) {
    lines = core::last_lines(findings.stderr_bytes, OutputCapture::kReportLines,
                             core::OutputTail::kBytesMax);
    failed->output = lines;
  }
  std::optional<Instant> traceback_at = tail.traceback_at;
  if (!traceback_at) {
    traceback_at = workers_.at(static_cast<std::size_t>(failed->local_rank)).raised_at;
  }
  if (!core::is_uncaught_exception(lines)) traceback_at.reset();
  const Instant ended_at = exit.kind == ExitKind::kUnknown ? loop_->now() : exit.at;
  FailureEvidence& evidence = failed->evidence;
  evidence = core::diagnose(exit, lines, findings.error_message, findings.kernel);
  failed->reported_at = core::report_time(evidence, traceback_at, findings.reported_at, ended_at);
  failed->fingerprint = core::fingerprint_of(exit, evidence, lines);
  evidence.host = host_name_;
  evidence.time = os::wall_time(std::min(ended_at, failed->reported_at.value_or(ended_at)));
  evidence.output = core::last_lines(lines, OutputCapture::kReportLines, kEvidenceBytesMax);
}

void FailureInquiry::finish_round(std::function<void()> done) {
  if (pending_ == 0) return done();
  done_ = std::move(done);
}

void FailureInquiry::end_examination() {
  pending_ = 0;
  ++round_;  // later replies are ignored
  done_ = nullptr;
}

}  // namespace elastic::host
