#pragma once

// Reads the output of other processes from named pipes, and writes it to files of limited size.
//
// A process that writes many small pieces wakes the loop once in kReadInterval. An idle pipe costs
// nothing. A paused object reads nothing, so the pipes fill and their writers wait.
//
// Loop thread only. A call may block on the file system of the files.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "elastic/status.h"
#include "elastic/time.h"
#include "os/base/fd.h"
#include "os/file/log_tail.h"
#include "os/file/rotating_file.h"
#include "os/loop/event_loop.h"

namespace elastic::os {

class LogPipes {
 public:
  using PipeId = LogTail::FileId;
  static constexpr Duration kReadInterval = LogTail::kReadInterval;

  // `loop` and `observer` outlive the object. The ids of pipes are negative. `report` receives a
  // file's first error.
  LogPipes(EventLoop* loop, LogTail::Observer* observer, std::function<void(const Status&)> report);
  LogPipes(const LogPipes&) = delete;
  LogPipes& operator=(const LogPipes&) = delete;
  ~LogPipes();

  // Creates a named pipe, which the next process that opens it writes to.
  Result<PipeId> follow(const std::string& pipe_path, RotatingFile file);
  // Reads what is in the pipe now, also while paused.
  void read_now(PipeId id);
  // All writers have ended: delivers the content of the pipe, removes its name and closes it. Also
  // while paused, because the pipe does not outlive this process.
  void close(PipeId id);
  void pause() { is_paused_ = true; }
  void resume();

 private:
  struct Pipe;
  enum class Found : std::uint8_t { kMore, kSome, kNothing };

  void mark_unread(Pipe* pipe);
  void read_turn();
  Found read_some(Pipe* pipe);

  EventLoop* const loop_;
  LogTail::Observer* const observer_;
  const std::function<void(const Status&)> report_;
  std::map<PipeId, std::unique_ptr<Pipe>> pipes_;
  PipeId last_id_ = 0;
  bool is_paused_ = false;
  std::string buffer_;
  EventLoop::Timer turn_;
};

}  // namespace elastic::os
