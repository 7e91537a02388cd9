#pragma once

// Copies the workers' log files to the console while they grow: whole lines, each with the prefix
// of its worker, in the order in which the worker wrote them. Lines that contain certain words are
// also copied to a file.
//
// The files are the buffer: while the console is slow they are not read, and workers do not block.
// Files of limited size cannot be one: their workers write to pipes, and wait for a slow console.
//
// File thread only: every call may block on the file system.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/workers/output_lines.h"
#include "elastic/status.h"
#include "os/base/fd.h"
#include "os/file/console_writer.h"
#include "os/file/log_tail.h"
#include "os/file/stream_channel.h"
#include "os/loop/registration.h"

namespace elastic::host {

// A file to which the lines that contain one of the words are copied; created with the first one.
struct LineFilter {
  std::vector<std::string> words;
  std::string path;
};

// The lines of one round.
struct TeeRound {
  std::string prefix;                             // a template; see core::LinePrefix
  core::PrefixValues values;                      // of the template, without the ranks
  bool merges_lines = false;                      // identical lines of several workers become one
  std::map<int, int> ranks;                       // by local rank
  Duration line_pause = std::chrono::seconds(1);  // then an unfinished line is copied
};

// One stream of one worker.
struct TeeStream {
  std::string path;
  int console = -1;  // -1: not copied to a console
  int local_rank = 0;
  std::shared_ptr<const LineFilter> filter;  // null: none
  // A named pipe that the worker writes to; what is read from it is also written to the file, whose
  // size is limited. "": the worker writes to the file.
  std::string pipe = {};
  std::uint64_t bytes_max = 0;
  int files_max = 1;
};

class Tee final : private os::LogTail::Observer {
 public:
  // `loop` outlives the tee. `report` receives errors of the files that the tee writes, and of
  // the consoles.
  static Result<std::unique_ptr<Tee>> create(os::EventLoop* loop,
                                             std::function<void(const Status&)> report = {});
  Tee(const Tee&) = delete;
  Tee& operator=(const Tee&) = delete;
  ~Tee() override;

  // Applies to the files that are followed from now on.
  void begin_round(TeeRound round);
  // Applies to the files that are followed, with the same local ranks: to lines that are read from
  // now on.
  void continue_round(TeeRound round);
  // Copies the existing file, and all bytes that are appended to it.
  Status follow(const TeeStream& stream);
  // Reads what the worker has written to its pipes so far.
  void read_pipes(int local_rank);
  // The workers of the files have ended: copies the rest and stops following the files.
  void end_round();
  // Calls `done` (from the loop; it may destroy the tee) when the console has accepted everything,
  // or has accepted nothing for ten seconds. Call it after end_round().
  void finish(std::function<void()> done);

 private:
  struct Merged;
  struct Filtered;
  struct Stream;

  Tee(os::EventLoop* loop, std::function<void(const Status&)> report);
  void on_bytes(os::LogTail::FileId file, std::string_view bytes) override;
  void on_closed(os::LogTail::FileId file) override;
  Result<os::LogTail::FileId> open(const TeeStream& wanted, Stream* stream);
  void pause();
  void resume();
  core::LineSplitter::Sink sink_for(Stream* stream);
  core::LineSplitter::Sink filter_for(Stream* stream);
  void write_filtered(Filtered* filtered);
  core::LineMerger::Sink merged_sink(Merged* merged);
  void add_line(Stream* stream, std::string_view text, char terminator);
  void append(int console, const core::LinePrefix& prefix, std::string_view text, char terminator);
  std::string_view time_text();
  void push_lines();
  void push_later();
  void check_pauses();
  void arm_pauses();

  struct Console {
    bool is_terminal = false;
    bool is_redrawing = false;  // the last line ended with a carriage return
    std::string lines;          // not passed to the writer yet
  };

  os::EventLoop* const loop_;
  const std::function<void(const Status&)> report_;
  // ---- The current round.
  std::shared_ptr<const TeeRound> round_;
  std::map<int, std::shared_ptr<Merged>> merged_;  // by console
  std::map<const LineFilter*, std::shared_ptr<Filtered>> filtered_;

  std::map<os::LogTail::FileId, std::unique_ptr<Stream>> streams_;
  std::map<int, Console> consoles_;
  std::string time_;
  Instant time_at_;
  bool is_push_scheduled_ = false;
  const std::shared_ptr<bool> exists_ = std::make_shared<bool>(true);
  os::Timer pause_timer_;
  std::unique_ptr<os::ConsoleWriter> writer_;
  std::unique_ptr<os::LogTail> tail_;
  os::ChannelReader pipes_;
};

}  // namespace elastic::host
