#include "host/workers/worker_output.h"

#include <mutex>
#include <utility>

#include "core/base/duration_text.h"
#include "host/workers/output_files.h"
#include "os/file/file.h"
#include "os/loop/detachable_thread.h"

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
constexpr Duration kRelayJoinTimeout = std::chrono::seconds(2);

}  // namespace

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
    std::optional<OutputFiles> files;  // file thread only; destroyed before its loop
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
  Duration limit_ = kRelayJoinTimeout;
};

WorkerOutput::WorkerOutput(os::EventLoop* loop, const AgentOptions& options,
                           std::function<void(const std::string&)> report)
    : loop_(loop),
      options_(std::make_shared<const AgentOptions>(options)),
      report_(std::move(report)),
      opening_timer_(loop, [this] { on_opening_timeout(); }),
      response_timer_(loop, [this] { check_response(); }) {}

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
  thread_->post([round = std::move(round)](OutputFiles& files, const auto&) {
    files.continue_round(*round);
  });
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
  thread_->post([this, round = opening_->round](OutputFiles& files, const auto& reply) {
    auto result = std::make_shared<Result<AttemptFiles>>(files.begin_round(*round));
    reply([this, result] { on_opened(std::move(*result)); });
  });
}

void WorkerOutput::on_opened(Result<AttemptFiles> files) {
  is_opening_ = false;
  opening_timer_.disarm();
  if (is_cancelled_) {
    // No output of a cancelled round is copied.
    thread_->post([](OutputFiles& stale, const auto&) { stale.end_round(); });
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

void WorkerOutput::begin_examination() {
  if (thread_ == nullptr) return;
  thread_->post(
      [now = loop_->now()](OutputFiles& files, const auto&) { files.examiner().begin_round(now); });
}

void WorkerOutput::continue_examination() {
  if (thread_ == nullptr) return;
  thread_->post([now = loop_->now()](OutputFiles& files, const auto&) {
    files.examiner().continue_round(now);
  });
}

void WorkerOutput::examine(std::size_t local_rank, bool reads_kernel,
                           std::function<void(FailureFindings)> done) {
  if (thread_ == nullptr) return;
  thread_->post([worker = attempt_.workers.at(local_rank), rank = static_cast<int>(local_rank),
                 reads_kernel, done = std::move(done)](OutputFiles& files, const auto& reply) {
    auto found = std::make_shared<FailureFindings>(files.examine(worker, rank, reads_kernel));
    reply([found, done] { done(std::move(*found)); });
  });
}

void WorkerOutput::write_stacks(std::string text,
                                std::function<void(const std::string&, const Status&)> done) {
  if (thread_ == nullptr) return;
  ++stacks_in_work_;
  thread_->post([this, path = attempt_.directory + "/stacks.txt", text = std::move(text),
                 done = std::move(done)](OutputFiles&, const auto& reply) {
    const Status written = os::append_to_file(path, text);
    reply([this, path, written, done] {
      --stacks_in_work_;
      done(path, written);
    });
  });
}

void WorkerOutput::end_round() {
  if (thread_ == nullptr) return;
  thread_->post([](OutputFiles& files, const auto&) { files.end_round(); });
}

void WorkerOutput::finish(std::function<void()> done) {
  if (thread_ == nullptr || is_opening_ ||
      (!OutputFiles::is_followed(*options_) && stacks_in_work_ == 0)) {
    done();
    return;
  }
  done_ = std::move(done);
  thread_->post([this](OutputFiles& files, const auto& reply) {
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
  thread_->post(
      [this](OutputFiles&, const auto& reply) { reply([this] { has_answered_ = true; }); });
  response_timer_.arm(add_saturating(loop_->now(), kAnswerTimeout));
}

}  // namespace elastic::host
