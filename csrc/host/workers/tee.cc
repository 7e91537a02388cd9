#include "host/workers/tee.h"

#include <utility>

// Theory of operation. LogTail delivers pieces of files, a LineSplitter for each file splits them
// into lines, and ConsoleWriter writes the lines with their prefixes. When more than kPendingMax
// bytes wait for the console the tail is paused; it resumes when half of them are written.

namespace elastic::host {
namespace {

constexpr std::size_t kPendingMax = 1024 * 1024;
constexpr Duration kStallTimeout = std::chrono::seconds(10);

}  // namespace

Result<std::unique_ptr<Tee>> Tee::create(os::EventLoop* loop) {
  std::unique_ptr<Tee> tee(new Tee(loop));
  auto writer = os::ConsoleWriter::start(loop, [raw = tee.get()] { raw->on_progress(); });
  if (!writer.ok()) return writer.status();
  auto tail = os::LogTail::create(loop, tee.get());
  if (!tail.ok()) return tail.status();
  tee->writer_ = *std::move(writer);
  tee->tail_ = *std::move(tail);
  return tee;
}

Tee::Tee(os::EventLoop* loop) : loop_(loop), stall_timer_(loop, [this] { end(); }) {}

Tee::~Tee() = default;

Status Tee::follow(const std::string& path, int console, std::string prefix) {
  const Result<os::LogTail::FileId> file = tail_->follow(path);
  if (!file.ok()) return file.status();
  streams_[*file] = Stream{console, std::move(prefix), {}};
  return {};
}

void Tee::end_round() {
  for (const auto& [file, stream] : streams_) tail_->close(file);
}

void Tee::finish(std::function<void()> done) {
  done_ = std::move(done);
  stall_timer_.arm(add_saturating(loop_->now(), kStallTimeout));
  check_finished();
}

void Tee::on_bytes(os::LogTail::FileId file, std::string_view bytes) {
  Stream& stream = streams_.at(file);
  stream.lines.feed(bytes, [&](std::string_view line) { copy_to_console(stream, line); });
  if (writer_->pending_bytes() > kPendingMax) tail_->pause();
}

void Tee::on_closed(os::LogTail::FileId file) {
  Stream& stream = streams_.at(file);
  stream.lines.flush([&](std::string_view line) { copy_to_console(stream, line); });
  streams_.erase(file);
  check_finished();
}

void Tee::on_progress() {
  if (done_) stall_timer_.arm(add_saturating(loop_->now(), kStallTimeout));
  if (writer_->pending_bytes() <= kPendingMax / 2) tail_->resume();
  check_finished();
}

void Tee::copy_to_console(const Stream& stream, std::string_view line) {
  scratch_ = stream.prefix;
  scratch_ += line;
  writer_->push(stream.console, scratch_);
}

// Deferred to the timer, because `done` may destroy the tee, and this may run inside a callback of
// one of its members.
void Tee::check_finished() {
  if (done_ && streams_.empty() && writer_->pending_bytes() == 0) stall_timer_.arm(loop_->now());
}

void Tee::end() {
  const std::function<void()> done = std::exchange(done_, nullptr);
  done();
}

}  // namespace elastic::host
