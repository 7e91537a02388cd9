#include "host/gate/check_runner.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "core/workers/worker_env.h"
#include "os/base/posix_error.h"
#include "os/loop/event_loop.h"

// Theory of operation. A check's stdout and stderr are one pipe. It is read to its end while the
// check runs, so that a check that prints much does not block, and only the last bytes are kept.
// What a check has left running may hold the pipe open: with the exit of the check the rest that
// is there is read, and the pipe is closed.

namespace elastic::host {
namespace {

constexpr std::size_t kReadBytes = 64 << 10;
// What is read after the exit: a pipe holds no more.
constexpr std::size_t kRestBytesMax = 1 << 20;

}  // namespace

class CheckRunner::Output final : public os::FdHandler {
 public:
  static Result<std::unique_ptr<Output>> open(os::EventLoop* loop, os::UniqueFd* write_end) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return os::posix_error("pipe", errno);
    os::UniqueFd read_end(ends[0]);
    *write_end = os::UniqueFd(ends[1]);
    ::fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
    std::unique_ptr<Output> output(new Output(std::move(read_end)));
    auto watch = loop->watch(output->pipe_.get(), EPOLLIN, output.get());
    if (!watch.ok()) return watch.status();
    output->watch_ = *std::move(watch);
    return output;
  }

  void on_ready(std::uint32_t) override {
    if (read_some() == Got::kEnd) watch_.reset();
  }

  std::string take_rest() {
    for (std::size_t read = 0; read < kRestBytesMax; read += kReadBytes) {
      if (read_some() != Got::kBytes) break;
    }
    watch_.reset();
    if (tail_.size() > gate::kOutputBytesMax) {
      tail_.erase(0, tail_.size() - gate::kOutputBytesMax);
    }
    return std::move(tail_);
  }

 private:
  explicit Output(os::UniqueFd pipe) : pipe_(std::move(pipe)) {}

  enum class Got { kBytes, kNothing, kEnd };
  Got read_some() {
    char bytes[kReadBytes];
    const ssize_t got = ::read(pipe_.get(), bytes, sizeof bytes);
    if (got == 0) return Got::kEnd;
    if (got < 0) return Got::kNothing;
    tail_.append(bytes, static_cast<std::size_t>(got));
    if (tail_.size() > 2 * gate::kOutputBytesMax) {
      tail_.erase(0, tail_.size() - gate::kOutputBytesMax);
    }
    return Got::kBytes;
  }

  os::UniqueFd pipe_;
  std::string tail_;
  os::Watch watch_;
};

CheckRunner::CheckRunner(os::EventLoop* loop, const AgentOptions& options, Sink sink)
    : loop_(*loop), options_(options), sink_(std::move(sink)) {}

CheckRunner::~CheckRunner() = default;

std::vector<std::string> CheckRunner::environment(gate::Occasion occasion) const {
  const std::vector<std::string> common = core::without_ranks(options_.env);
  const std::string seconds = std::to_string(
      std::chrono::duration_cast<std::chrono::seconds>(options_.node_check_timeout).count());
  const std::vector<std::string> own = {
      "ELASTIC_CHECK=" + std::string(gate::to_string(occasion)),
      "ELASTIC_CHECK_TIMEOUT=" + seconds,
      "LOCAL_WORLD_SIZE=" + std::to_string(options_.workers.size()),
      "TORCHELASTIC_RUN_ID=" + options_.run_id,
  };
  return core::merge_environment({&common, &own});
}

void CheckRunner::run(Supervisor* supervisor, const gate::check_action::Run& action) {
  const NodeCheck& check = options_.node_checks[action.check];
  const std::uint32_t run = action.run;
  const auto refuse = [&](const Status& why) {
    WorkerExit exit;
    exit.kind = ExitKind::kUnknown;
    sink_(run, {.exit = exit, .limit = {}, .output = {}, .error = std::string(why.message())});
  };
  os::UniqueFd write_end;
  auto output = Output::open(&loop_, &write_end);
  if (!output.ok()) return refuse(output.status());
  const Status started = supervisor->start_helper(
      run, {.argv = check.argv, .env = environment(action.occasion), .cwd = options_.cwd},
      std::move(write_end), [this, run](const WorkerExit& exit) { ended(run, exit); });
  if (!started.ok()) return refuse(started);
  outputs_.emplace(run, *std::move(output));
}

void CheckRunner::kill(Supervisor* supervisor, std::uint32_t run) {
  supervisor->kill_helper(run);
  outputs_.erase(run);
}

void CheckRunner::ended(std::uint32_t run, const WorkerExit& exit) {
  const auto found = outputs_.find(run);
  if (found == outputs_.end()) return;  // it was killed
  std::string output = found->second->take_rest();
  outputs_.erase(found);
  sink_(run, {.exit = exit, .limit = {}, .output = std::move(output)});
}

}  // namespace elastic::host
