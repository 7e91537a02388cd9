#include "host/workers/output_capture.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "core/workers/failure_cause.h"
#include "core/workers/output_lines.h"
#include "os/file/console_writer.h"
#include "os/file/stream_channel.h"
#include "os/loop/event_loop.h"

// Theory of operation. The relay runs on the loop of a thread of its own, and passes what it reads
// to a ConsoleWriter. While more than kQueuedMax bytes are pending there it does not read, so the
// channels fill while the console is slow. Streams that are not shown are always read.
//
// When a worker fails, its last lines are needed at once: its channel is read whatever is queued.
//
// A channel ends when its last writer closes it. After a round the relay does not wait for that:
// all writers were killed, so all output has already arrived.

namespace elastic::host {
namespace {

constexpr std::size_t kQueuedMax = 64 * 1024;
// With more than this, what ended workers have left in their channels is dropped: the console has
// accepted nothing for several rounds.
constexpr std::size_t kQueuedRestMax = 16 * 1024 * 1024;
// Parts of one traceback with chained exceptions arrive within this time.
constexpr Duration kTracebackGap = std::chrono::milliseconds(50);

}  // namespace

// Relay thread only.
class OutputCapture::Relay final : private os::LogTail::Observer {
 public:
  // `on_traceback` is called on this thread.
  static Result<std::unique_ptr<Relay>> create(os::EventLoop* loop,
                                               std::function<void(std::size_t)> on_traceback) {
    std::unique_ptr<Relay> relay(new Relay(loop));
    relay->on_traceback_ = std::move(on_traceback);
    auto writer =
        os::ConsoleWriter::start(loop, kQueuedMax, [raw = relay.get()] { raw->reader_.resume(); });
    if (!writer.ok()) return writer.status();
    relay->writer_ = *std::move(writer);
    return relay;
  }

  void begin_round(std::size_t workers) { workers_.assign(workers, nullptr); }
  // False: the channel cannot be read.
  bool add(std::size_t local_rank, os::StreamChannel* channel, bool is_hidden);
  void continue_round();
  Tail tail(std::size_t local_rank);
  void end_round();
  void finish(std::function<void()> done);

 private:
  struct Worker {
    std::size_t local_rank = 0;
    os::ChannelReader::ChannelId channel = 0;
    int terminal = -1;  // the pseudo-terminal; -1: it has none, or has closed it
    bool is_hidden = false;
    core::OutputTail tail;
    std::optional<Instant> traceback_at;       // of the last traceback
    std::optional<Instant> last_traceback_at;  // of its last part, if exceptions are chained
  };

  explicit Relay(os::EventLoop* loop) : loop_(loop), reader_(loop, this) {}
  void on_bytes(os::LogTail::FileId channel, std::string_view bytes) override;
  void on_closed(os::LogTail::FileId channel) override;
  void note_traceback(Worker* worker, std::size_t new_bytes);

  os::EventLoop* const loop_;
  std::vector<std::shared_ptr<Worker>> workers_;  // of the round, by local rank; null: none
  std::map<os::ChannelReader::ChannelId, std::shared_ptr<Worker>> channels_;
  os::ChannelReader reader_;
  std::unique_ptr<os::ConsoleWriter> writer_;
  std::function<void(std::size_t)> on_traceback_;
};

bool OutputCapture::Relay::add(std::size_t local_rank, os::StreamChannel* channel, bool is_hidden) {
  auto worker = std::make_shared<Worker>();
  worker->local_rank = local_rank;
  worker->is_hidden = is_hidden;
  if (channel->is_terminal) worker->terminal = channel->reader.get();
  const auto id = reader_.follow(std::move(channel->reader), !is_hidden);
  if (!id.ok()) return false;
  worker->channel = *id;
  workers_[local_rank] = channels_[*id] = std::move(worker);
  return true;
}

void OutputCapture::Relay::continue_round() {
  for (const auto& worker : workers_) {
    if (worker == nullptr) continue;
    reader_.read_now(worker->channel);
    worker->tail = {};
    worker->traceback_at.reset();
    worker->last_traceback_at.reset();
  }
}

OutputCapture::Tail OutputCapture::Relay::tail(std::size_t local_rank) {
  if (local_rank >= workers_.size() || workers_[local_rank] == nullptr) return {};
  const Worker& worker = *workers_[local_rank];
  reader_.read_now(worker.channel);
  return {core::last_lines(worker.tail.bytes(), kReportLines, core::OutputTail::kBytesMax),
          worker.traceback_at};
}

void OutputCapture::Relay::end_round() {
  for (const auto& [channel, worker] : channels_) reader_.close(channel);
}

void OutputCapture::Relay::finish(std::function<void()> done) {
  writer_->finish(std::move(done));
  end_round();
  if (channels_.empty()) writer_->close_input();
}

void OutputCapture::Relay::on_bytes(os::LogTail::FileId channel, std::string_view bytes) {
  Worker& worker = *channels_.at(channel);
  worker.tail.append(bytes);
  note_traceback(&worker, bytes.size());
  if (worker.terminal >= 0) os::copy_window_size(STDERR_FILENO, worker.terminal);
  if (worker.is_hidden || writer_->pending_bytes() > kQueuedRestMax) return;
  writer_->push(STDERR_FILENO, bytes);
  if (writer_->is_full()) reader_.pause();
}

void OutputCapture::Relay::on_closed(os::LogTail::FileId channel) {
  channels_.at(channel)->terminal = -1;
  channels_.erase(channel);
  if (channels_.empty()) writer_->close_input();
}

// Searches the new bytes, and those before them in which a traceback may have begun.
void OutputCapture::Relay::note_traceback(Worker* worker, std::size_t new_bytes) {
  constexpr std::string_view kHeader = core::kTracebackHeader;
  std::string_view recent = worker->tail.bytes();
  recent.remove_prefix(recent.size() - std::min(recent.size(), new_bytes + kHeader.size() - 1));
  // Much faster than find().
  if (::memmem(recent.data(), recent.size(), kHeader.data(), kHeader.size()) == nullptr) return;
  const Instant now = loop_->read_clock();
  if (!worker->last_traceback_at || now - *worker->last_traceback_at > kTracebackGap) {
    worker->traceback_at = now;
    on_traceback_(worker->local_rank);
  }
  worker->last_traceback_at = now;
}

OutputCapture::OutputCapture(os::EventLoop* loop)
    : loop_(loop),
      takes_stderr_(os::is_inherited(STDERR_FILENO)),
      // The order of discarded bytes does not matter.
      takes_stdout_(takes_stderr_ && os::is_inherited(STDOUT_FILENO) &&
                    os::is_same_file(STDOUT_FILENO, STDERR_FILENO) &&
                    !os::is_null_device(STDERR_FILENO)) {}

OutputCapture::~OutputCapture() = default;

bool OutputCapture::is_captured(const WorkerTemplate& worker) const {
  return worker.stderr_target == StreamTarget::kDiscard ||
         (worker.stderr_target == StreamTarget::kInherit && takes_stderr_);
}

bool OutputCapture::start_relay() {
  if (relay_ != nullptr) return true;
  const auto report = [this, alive = std::weak_ptr<bool>(exists_), loop = loop_](std::size_t rank) {
    loop->post([this, alive, rank] {
      if (!alive.expired() && on_traceback_) on_traceback_(static_cast<int>(rank));
    });
  };
  auto relay = os::LoopObject<Relay>::start(
      "elastic-output", [&](os::EventLoop* loop) { return Relay::create(loop, report); });
  if (!relay.ok()) return false;
  relay_ = *std::move(relay);
  return true;
}

std::vector<WorkerStream> OutputCapture::begin_round(const std::vector<WorkerTemplate>& workers) {
  std::vector<WorkerStream> taken(workers.size());
  const bool is_any_captured = std::any_of(
      workers.begin(), workers.end(), [this](const auto& worker) { return is_captured(worker); });
  if (!is_any_captured || !start_relay()) return taken;
  relay_->call([&](Relay& relay) {
    relay.begin_round(workers.size());
    for (std::size_t i = 0; i < workers.size(); ++i) {
      if (!is_captured(workers[i])) continue;
      const bool is_hidden = workers[i].stderr_target == StreamTarget::kDiscard;
      Result<os::StreamChannel> channel =
          is_hidden ? os::open_pipe_channel() : os::open_channel_like(STDERR_FILENO);
      // No descriptor or terminal is left: the other workers inherit.
      if (!channel.ok() || !relay.add(i, &*channel, is_hidden)) break;
      taken[i].descriptor = std::move(channel->writer);
      taken[i].is_stdout =
          !is_hidden && takes_stdout_ && workers[i].stdout_target == StreamTarget::kInherit;
    }
  });
  return taken;
}

void OutputCapture::continue_round() {
  if (relay_ != nullptr) relay_->call(&Relay::continue_round);
}

OutputCapture::Tail OutputCapture::tail(int local_rank) {
  if (relay_ == nullptr) return {};
  return relay_->ask(
      [&](Relay& relay) { return relay.tail(static_cast<std::size_t>(local_rank)); });
}

void OutputCapture::end_round() {
  if (relay_ != nullptr) relay_->call(&Relay::end_round);
}

void OutputCapture::finish(std::function<void()> done) {
  if (relay_ == nullptr) return done();
  const auto answer = [this, alive = std::weak_ptr<bool>(exists_), done = std::move(done)] {
    loop_->post([alive, done] {
      if (!alive.expired()) done();
    });
  };
  relay_->call([&](Relay& relay) { relay.finish(answer); });
}

}  // namespace elastic::host
