#include "host/workers/worker_output.h"

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "core/base/text.h"
#include "host/workers/tee.h"
#include "os/file/file.h"
#include "os/loop/event_loop.h"
#include "os/loop/thread.h"
#include "os/net/address.h"

// Theory of operation. The file thread runs its own loop. Requests are posted to it, and it posts
// replies; both queues are bounded because at most one request of each kind is pending. A thread
// that does not end in time is detached: it owns everything that it uses, and its replies are
// dropped.
//
// While the owner waits for the end, it sends the thread a request from time to time. The tee
// reads what the workers wrote last, and waits for a slow console as long as something is written.
// A thread that is blocked in a system call does not reply, and its output is dropped.

namespace elastic::host {
namespace {

constexpr Duration kAnswerTimeout = std::chrono::seconds(10);
constexpr Duration kJoinTimeout = std::chrono::seconds(2);

// Without a log directory and without streams to files there are only error files. If no temporary
// directory can be created, workers run without error files.
bool can_do_without(const AgentOptions& options) {
  const auto has_no_file = [](StreamTarget target) {
    return target == StreamTarget::kInherit || target == StreamTarget::kDiscard;
  };
  return options.log_dir.empty() &&
         std::all_of(options.workers.begin(), options.workers.end(), [&](const auto& worker) {
           return has_no_file(worker.stdout_target) && has_no_file(worker.stderr_target);
         });
}

// Whether streams are read while the workers write them: for the console, for filters, or because
// the size of the files is limited.
bool is_followed(const AgentOptions& options) {
  const auto has_target = [&](StreamTarget target) {
    return std::any_of(options.workers.begin(), options.workers.end(), [&](const auto& worker) {
      return worker.stdout_target == target || worker.stderr_target == target;
    });
  };
  const bool is_filtered = !options.stdout_filters.empty() || !options.stderr_filters.empty();
  return has_target(StreamTarget::kTee) ||
         ((is_filtered || options.log_bytes_max > 0) && has_target(StreamTarget::kFile));
}

}  // namespace

// What the file thread does: the files of each round, and the tee that copies them to the console.
//
// File thread only: every call may block on the file system.
class WorkerOutput::Files {
 public:
  // `loop` outlives the object. `report` receives errors of the files.
  Files(os::EventLoop* loop, std::shared_ptr<const AgentOptions> options,
        std::function<void(const Status&)> report)
      : loop_(loop), options_(std::move(options)), report_(std::move(report)) {}

  // Creates the files of a round and begins to copy the kTee streams' files to the console. If
  // there is no log directory and no temporary one can be created, workers have no error files.
  Result<AttemptFiles> begin_round(const RoundInfo& round);
  // The same workers take part in this round: their lines have its prefix, their files remain.
  void continue_round(const RoundInfo& round);
  FailureExaminer& examiner() { return examiner_; }
  FailureFindings examine(const WorkerFiles& files, int local_rank, bool reads_kernel);
  // The round's workers have ended.
  void end_round();
  // Calls `done` when the rest of the streams was read and the console has accepted everything; at
  // once if no stream is followed.
  void finish(std::function<void()> done);

 private:
  Result<AttemptFiles> create_files(std::uint64_t round);
  TeeRound shown_as(const RoundInfo& round) const;
  Status follow(const RoundInfo& round, const AttemptFiles& attempt);
  Status follow(TeeStream stream, StreamTarget target, int console);

  os::EventLoop* const loop_;
  const std::shared_ptr<const AgentOptions> options_;
  const std::function<void(const Status&)> report_;
  FailureExaminer examiner_;
  std::optional<RunFiles> run_files_;  // created with the first round
  std::unique_ptr<Tee> tee_;           // null while nothing is copied
};

Result<AttemptFiles> WorkerOutput::Files::begin_round(const RoundInfo& round) {
  Result<AttemptFiles> attempt = create_files(round.round);
  if (!attempt.ok() && can_do_without(*options_)) {
    AttemptFiles none;
    none.workers.resize(options_->workers.size());
    return none;
  }
  if (!attempt.ok()) return attempt;
  const Status status = follow(round, *attempt);
  if (!status.ok()) return status;
  return attempt;
}

Result<AttemptFiles> WorkerOutput::Files::create_files(std::uint64_t round) {
  if (!run_files_) {
    Result<RunFiles> files = RunFiles::create(options_->log_dir, options_->run_id);
    if (!files.ok()) return files.status();
    run_files_.emplace(*std::move(files));
  }
  const bool has_pipes = options_->log_bytes_max > 0 && is_followed(*options_);
  return run_files_->begin_round(round, options_->workers, has_pipes);
}

TeeRound WorkerOutput::Files::shown_as(const RoundInfo& round) const {
  TeeRound shown;
  shown.prefix = options_->line_prefix;
  shown.values.role_name = options_->role;
  shown.values.hostname = os::host_name();
  shown.values.round = round.round == 0 ? "?" : std::to_string(shown_round(round.round));
  shown.merges_lines = options_->merge_lines;
  for (const WorkerAssignment& worker : round.workers) shown.ranks[worker.local_rank] = worker.rank;
  return shown;
}

void WorkerOutput::Files::continue_round(const RoundInfo& round) {
  if (tee_) tee_->continue_round(shown_as(round));
}

Status WorkerOutput::Files::follow(const RoundInfo& round, const AttemptFiles& attempt) {
  if (!is_followed(*options_)) return {};
  if (!tee_) {
    Result<std::unique_ptr<Tee>> tee = Tee::create(loop_, report_);
    if (!tee.ok()) return tee.status();
    tee_ = *std::move(tee);
  }
  tee_->begin_round(shown_as(round));
  const auto filter_of = [&](const std::vector<std::string>& words, const char* name) {
    if (words.empty()) return std::shared_ptr<const LineFilter>();
    return std::make_shared<const LineFilter>(LineFilter{words, attempt.directory + name});
  };
  const auto stdout_filter = filter_of(options_->stdout_filters, "/filtered_stdout.log");
  const auto stderr_filter = filter_of(options_->stderr_filters, "/filtered_stderr.log");
  Status status;
  for (std::size_t i = 0; status.ok() && i < attempt.workers.size(); ++i) {
    const WorkerTemplate& worker = options_->workers[i];
    const WorkerFiles& files = attempt.workers[i];
    const int local_rank = static_cast<int>(i);
    status = follow({files.stdout_path, -1, local_rank, stdout_filter, files.stdout_pipe},
                    worker.stdout_target, STDOUT_FILENO);
    if (!status.ok()) break;
    status = follow({files.stderr_path, -1, local_rank, stderr_filter, files.stderr_pipe},
                    worker.stderr_target, STDERR_FILENO);
  }
  return status;
}

Status WorkerOutput::Files::follow(TeeStream stream, StreamTarget target, int console) {
  if (target == StreamTarget::kTee) stream.console = console;
  stream.bytes_max = options_->log_bytes_max;
  stream.files_max = options_->log_files_max;
  const bool is_needed = stream.console >= 0 || stream.filter != nullptr || !stream.pipe.empty();
  return is_needed && !stream.path.empty() ? tee_->follow(stream) : Status();
}

FailureFindings WorkerOutput::Files::examine(const WorkerFiles& files, int local_rank,
                                             bool reads_kernel) {
  if (tee_) tee_->read_pipes(local_rank);
  return examiner_.examine(files, reads_kernel);
}

void WorkerOutput::Files::end_round() {
  if (tee_) tee_->end_round();
}

void WorkerOutput::Files::finish(std::function<void()> done) {
  if (!tee_) {
    done();
    return;
  }
  tee_->end_round();
  tee_->finish([this, done = std::move(done)] {
    tee_.reset();
    done();
  });
}

class WorkerOutput::FileThread {
 public:
  static Result<std::unique_ptr<FileThread>> start(os::EventLoop* replies,
                                                   std::shared_ptr<const AgentOptions> options,
                                                   std::function<void(const std::string&)> report) {
    Result<std::unique_ptr<os::EventLoop>> loop = os::EventLoop::create();
    if (!loop.ok()) return loop.status();
    auto shared = std::make_shared<Shared>();
    shared->loop = *std::move(loop);
    auto exists = std::make_shared<bool>(true);
    shared->files.emplace(
        shared->loop.get(), std::move(options),
        [raw = shared.get(), alive = std::weak_ptr<bool>(exists),
         report = std::move(report)](const Status& error) {
          raw->reply(alive, [report, text = std::string(error.message())] { report(text); });
        });
    shared->replies = replies;
    Result<os::DetachableThread> thread = os::DetachableThread::start("elastic-files", [shared] {
      shared->loop->run();
      shared->files.reset();
    });
    if (!thread.ok()) return thread.status();
    return std::unique_ptr<FileThread>(
        new FileThread(std::move(shared), std::move(exists), *std::move(thread)));
  }
  FileThread(const FileThread&) = delete;
  FileThread& operator=(const FileThread&) = delete;
  ~FileThread() {
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->replies = nullptr;
    }
    exists_.reset();
    shared_->loop->stop();
    thread_.join_within(limit_);
  }

  void abandon() { limit_ = Duration::zero(); }

  // Runs `work(files, reply)` on the file thread. reply(done) runs `done` on the owner's loop
  // while the owner exists.
  template <typename Work>
  void post(Work work) {
    shared_->loop->post([work = std::move(work), shared = shared_.get(),
                         alive = std::weak_ptr<bool>(exists_)]() mutable {
      work(*shared->files,
           [shared, alive](std::function<void()> done) { shared->reply(alive, std::move(done)); });
    });
  }

 private:
  struct Shared {
    std::unique_ptr<os::EventLoop> loop;
    std::optional<Files> files;  // file thread only; destroyed before its loop
    std::mutex mutex;
    os::EventLoop* replies = nullptr;  // guarded by mutex; null after the owner was destroyed

    // Runs `done` on the owner's loop, unless the owner is destroyed before.
    void reply(const std::weak_ptr<bool>& alive, std::function<void()> done) {
      const std::lock_guard lock(mutex);
      if (replies == nullptr) return;
      replies->post([alive, done = std::move(done)] {
        if (!alive.expired()) done();
      });
    }
  };

  FileThread(std::shared_ptr<Shared> shared, std::shared_ptr<bool> exists,
             os::DetachableThread thread)
      : shared_(std::move(shared)), exists_(std::move(exists)), thread_(std::move(thread)) {}

  std::shared_ptr<Shared> shared_;
  std::shared_ptr<bool> exists_;
  os::DetachableThread thread_;
  Duration limit_ = kJoinTimeout;
};

WorkerOutput::WorkerOutput(os::EventLoop* loop, const AgentOptions& options,
                           std::function<void(const std::string&)> report)
    : loop_(loop),
      options_(std::make_shared<const AgentOptions>(options)),
      report_(std::move(report)),
      opening_timer_(loop, [this] { on_opening_timeout(); }),
      response_timer_(loop, [this] { check_response(); }) {
  if (options.capture_stderr) capture_.emplace(loop);
}

WorkerOutput::~WorkerOutput() = default;

void WorkerOutput::begin_round(std::shared_ptr<const RoundInfo> round,
                               std::function<void(Status)> opened) {
  opening_ = Opening{std::move(round), std::move(opened)};
  if (!is_opening_) open_next();
}

void WorkerOutput::cancel_round() {
  opening_.reset();
  is_cancelled_ = is_opening_;
}

void WorkerOutput::continue_round(std::shared_ptr<const RoundInfo> round) {
  if (thread_ == nullptr) return;
  thread_->post(
      [round = std::move(round)](Files& files, const auto&) { files.continue_round(*round); });
}

void WorkerOutput::open_next() {
  if (thread_ == nullptr) {
    auto thread = FileThread::start(loop_, options_, report_);
    if (!thread.ok()) {
      const Opening opening = *std::exchange(opening_, std::nullopt);
      opening.opened(thread.status());
      return;
    }
    thread_ = *std::move(thread);
  }
  is_opening_ = true;
  is_cancelled_ = false;
  opening_timer_.arm(add_saturating(loop_->now(), options_->guardian.start_timeout));
  thread_->post([this, round = opening_->round](Files& files, const auto& reply) {
    auto result = std::make_shared<Result<AttemptFiles>>(files.begin_round(*round));
    reply([this, result] { on_opened(std::move(*result)); });
  });
}

void WorkerOutput::on_opened(Result<AttemptFiles> files) {
  is_opening_ = false;
  opening_timer_.disarm();
  if (is_cancelled_) {
    // No output of a cancelled round is copied.
    thread_->post([](Files& stale, const auto&) { stale.end_round(); });
    if (opening_) open_next();
    return;
  }
  if (files.ok()) attempt_ = *std::move(files);
  const Opening opening = *std::exchange(opening_, std::nullopt);
  opening.opened(files.status());
}

// The thread is blocked in a system call. It is left behind; a later round starts a new one.
void WorkerOutput::on_opening_timeout() {
  is_opening_ = false;
  thread_->abandon();
  thread_.reset();
  const std::string directory = options_->log_dir.empty()
                                    ? "the directory for temporary files (TMPDIR)"
                                    : "the log directory " + options_->log_dir;
  const std::optional<Opening> opening = std::exchange(opening_, std::nullopt);
  if (!opening) return;
  opening->opened(Status(StatusCode::kDeadlineExceeded,
                         directory + " did not respond within " +
                             core::duration_text(options_->guardian.start_timeout) +
                             "; use a directory on another file system"));
}

std::vector<WorkerStream> WorkerOutput::open_channels() {
  return capture_ ? capture_->begin_round(options_->workers) : std::vector<WorkerStream>();
}

void WorkerOutput::watch_tracebacks(std::function<void(int)> sink) {
  if (capture_) capture_->watch_tracebacks(std::move(sink));
}

OutputCapture::Tail WorkerOutput::tail(int local_rank) {
  return capture_ ? capture_->tail(local_rank) : OutputCapture::Tail();
}

void WorkerOutput::begin_examination() {
  if (thread_ == nullptr) return;
  thread_->post(
      [now = loop_->now()](Files& files, const auto&) { files.examiner().begin_round(now); });
}

void WorkerOutput::continue_examination() {
  if (capture_) capture_->continue_round();
  if (thread_ == nullptr) return;
  thread_->post(
      [now = loop_->now()](Files& files, const auto&) { files.examiner().continue_round(now); });
}

void WorkerOutput::examine(std::size_t local_rank, bool reads_kernel,
                           std::function<void(FailureFindings)> done) {
  if (thread_ == nullptr) return;
  thread_->post([worker = attempt_.workers.at(local_rank), rank = static_cast<int>(local_rank),
                 reads_kernel, done = std::move(done)](Files& files, const auto& reply) {
    auto found = std::make_shared<FailureFindings>(files.examine(worker, rank, reads_kernel));
    reply([found, done] { done(std::move(*found)); });
  });
}

void WorkerOutput::write_stacks(std::string text,
                                std::function<void(const std::string&, const Status&)> done) {
  if (thread_ == nullptr) return;
  ++stacks_in_work_;
  thread_->post([this, path = attempt_.directory + "/stacks.txt", text = std::move(text),
                 done = std::move(done)](Files&, const auto& reply) {
    const Status written = os::append_to_file(path, text);
    reply([this, path, written, done] {
      --stacks_in_work_;
      done(path, written);
    });
  });
}

void WorkerOutput::end_round() {
  if (capture_) capture_->end_round();
  if (thread_ == nullptr) return;
  thread_->post([](Files& files, const auto&) { files.end_round(); });
}

void WorkerOutput::finish(std::function<void()> done) {
  finish_files([this, done = std::move(done)] {
    if (!capture_) return done();
    capture_->finish(done);
  });
}

void WorkerOutput::finish_files(std::function<void()> done) {
  if (thread_ == nullptr || is_opening_ || (!is_followed(*options_) && stacks_in_work_ == 0)) {
    done();
    return;
  }
  done_ = std::move(done);
  thread_->post([this](Files& files, const auto& reply) {
    files.finish([this, reply] {
      reply([this] {
        response_timer_.disarm();
        if (done_) std::exchange(done_, nullptr)();
      });
    });
  });
  has_answered_ = true;
  check_response();
}

void WorkerOutput::check_response() {
  if (!has_answered_) {
    thread_->abandon();
    std::exchange(done_, nullptr)();
    return;
  }
  has_answered_ = false;
  thread_->post([this](Files&, const auto& reply) { reply([this] { has_answered_ = true; }); });
  response_timer_.arm(add_saturating(loop_->now(), kAnswerTimeout));
}

}  // namespace elastic::host
