#pragma once

// Copies the workers' log files to the console while they grow: whole lines, each with the prefix
// of its worker, in the order in which the worker wrote them.
//
// The files are the buffer: while the console is slow they are not read, and workers do not block.
// Loop thread only.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "core/workers/log_lines.h"
#include "elastic/status.h"
#include "os/file/console_writer.h"
#include "os/file/log_tail.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

class Tee final : private os::LogTail::Observer {
 public:
  // `loop` outlives the tee.
  static Result<std::unique_ptr<Tee>> create(os::EventLoop* loop);
  Tee(const Tee&) = delete;
  Tee& operator=(const Tee&) = delete;
  ~Tee() override;

  // Copies the existing file `path`, and all bytes that are appended to it, to `console`.
  Status follow(const std::string& path, int console, std::string prefix);
  // The workers of the files have ended: copies the rest and stops following the files.
  void end_round();
  // Calls `done` (from the loop; it may destroy the tee) when the console has accepted everything,
  // or has accepted nothing for ten seconds. Call it after end_round().
  void finish(std::function<void()> done);

 private:
  struct Stream {
    int console = -1;
    std::string prefix;
    core::LineSplitter lines;
  };

  explicit Tee(os::EventLoop* loop);
  void on_bytes(os::LogTail::FileId file, std::string_view bytes) override;
  void on_closed(os::LogTail::FileId file) override;
  void on_progress();
  void copy_to_console(const Stream& stream, std::string_view line);
  void check_finished();
  void end();

  os::EventLoop* const loop_;
  std::map<os::LogTail::FileId, Stream> streams_;
  std::string scratch_;
  std::function<void()> done_;
  os::EventLoop::Timer stall_timer_;
  std::unique_ptr<os::ConsoleWriter> writer_;
  std::unique_ptr<os::LogTail> tail_;
};

}  // namespace elastic::host
