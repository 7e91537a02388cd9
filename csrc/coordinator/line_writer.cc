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
  auto writer = os::LoopObject<os::ConsoleWriter>::start("elastic-lines", [](os::EventLoop* loop) {
    return os::ConsoleWriter::start(loop, kPendingMax, [] {});
  });
  if (!writer.ok()) return writer.status();
  return std::unique_ptr<LineWriter>(new LineWriter(fd, *std::move(writer)));
}

LineWriter::~LineWriter() {
  std::promise<void> written;
  const bool is_asked = writer_->call([&written](os::ConsoleWriter& writer) {
    writer.finish([&written] { written.set_value(); });
    writer.close_input();
  });
  if (is_asked) written.get_future().wait_for(kLastWait);
  writer_.reset();  // before the promise, which it may set until then
}

void LineWriter::write(std::string_view line) {
  std::string text = time_prefix();
  text.append(line).push_back('\n');
  writer_->post([this, text = std::move(text)](os::ConsoleWriter& writer) { push(&writer, text); });
}

void LineWriter::push(os::ConsoleWriter* writer, const std::string& line) {
  if (writer->pending_bytes() + line.size() > kPendingMax) {
    ++dropped_lines_;
    return;
  }
  if (const std::size_t dropped = std::exchange(dropped_lines_, 0); dropped > 0) {
    writer->push(fd_, time_prefix() + "(" + std::to_string(dropped) +
                          (dropped == 1 ? " line was" : " lines were") +
                          " dropped: the output was not read)\n");
  }
  writer->push(fd_, line);
}

}  // namespace elastic::coordinator
