#include "coordinator/line_writer.h"

#include <chrono>
#include <future>
#include <utility>

#include "os/loop/clock.h"
#include "os/loop/event_loop.h"

namespace elastic::coordinator {
namespace {

constexpr std::size_t kPendingMax = 1 << 20;
constexpr auto kLastWait = std::chrono::seconds(1);

// Local time: "2026-01-31 12:00:00.123 ".
std::string time_prefix() {
  std::string text = os::local_time_text(os::wall_time(os::monotonic_now()));
  text[text.find('T')] = ' ';
  return text + " ";
}

}  // namespace

Result<std::unique_ptr<LineWriter>> LineWriter::start(int fd) {
  auto thread = os::LoopThread::start("elastic-lines");
  if (!thread.ok()) return thread.status();
  std::unique_ptr<LineWriter> self(new LineWriter(fd, *std::move(thread)));
  Status status;
  self->thread_->call([&status, raw = self.get()] {
    auto writer = os::ConsoleWriter::start(&raw->thread_->loop(), kPendingMax, [] {});
    status = writer.status();
    if (writer.ok()) raw->writer_ = *std::move(writer);
  });
  if (!status.ok()) return status;
  return self;
}

LineWriter::~LineWriter() {
  if (writer_ == nullptr) return;
  std::promise<void> written;
  thread_->call([&] {
    writer_->finish([&written] { written.set_value(); });
    writer_->close_input();
  });
  written.get_future().wait_for(kLastWait);
  thread_->call([this] { writer_.reset(); });
}

void LineWriter::write(std::string_view line) {
  std::string text = time_prefix();
  text.append(line).push_back('\n');
  thread_->loop().post([this, text = std::move(text)] { push(text); });
}

void LineWriter::push(const std::string& line) {
  if (writer_->pending_bytes() + line.size() > kPendingMax) {
    ++dropped_lines_;
    return;
  }
  if (const std::size_t dropped = std::exchange(dropped_lines_, 0); dropped > 0) {
    writer_->push(fd_, time_prefix() + "(" + std::to_string(dropped) +
                           (dropped == 1 ? " line was" : " lines were") +
                           " dropped: the output was not read)\n");
  }
  writer_->push(fd_, line);
}

}  // namespace elastic::coordinator
