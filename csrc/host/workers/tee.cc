#include "host/workers/tee.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "core/base/describe.h"
#include "os/base/posix_error.h"
#include "os/file/rotating_file.h"
#include "os/loop/clock.h"
#include "os/loop/event_loop.h"

// Theory of operation. LogTail delivers pieces of files; ChannelReader delivers what workers write
// to pipes, which is written to the limited files here. A LineSplitter for each stream splits the
// pieces into lines, and ConsoleWriter writes the lines with their prefixes; the lines of one
// iteration are passed to it together. When more than kPendingMax bytes wait for the console both
// are paused; they resume when half of them are written.
//
// Two kinds of lines wait for time: the unfinished ones, and those that may be merged with lines
// of other workers. One timer serves both.

namespace elastic::host {
namespace {

constexpr std::size_t kPendingMax = 1024 * 1024;
constexpr Duration kTimeResolution = std::chrono::milliseconds(1);
constexpr std::size_t kPrefixesMax = 256;
// A filter decides about each part of a longer line.
constexpr std::size_t kFilteredLineBytesMax = 1024 * 1024;
// Removes the rest of a progress bar from the row that the next line is written to.
constexpr std::string_view kEraseRow = "\x1B[K";

core::LinePrefix prefix_of(const TeeRound& round, const std::vector<int>& local_ranks) {
  std::vector<int> ranks;
  for (const int local_rank : local_ranks) ranks.push_back(round.ranks.at(local_rank));
  std::sort(ranks.begin(), ranks.end());
  const bool has_ranks = ranks.front() >= 0;  // before their first round workers have none
  core::PrefixValues values = round.values;
  values.local_rank = core::ranges_text(local_ranks);
  values.rank = has_ranks ? core::ranges_text(ranks) : "?";
  return {round.prefix, values};
}

}  // namespace

struct Tee::Merged {
  int console = -1;
  std::shared_ptr<const TeeRound> round;
  core::LineMerger merger;
  std::map<std::vector<int>, core::LinePrefix> prefixes;
  std::size_t streams = 0;  // that are still followed
};

// The lines that match are written to the file as a whole, once each has ended.
struct Tee::Filtered {
  std::shared_ptr<const LineFilter> filter;
  os::UniqueFd file;
  std::string lines;
  bool has_reported = false;  // that it cannot be written

  bool matches(std::string_view text) const {
    return std::any_of(filter->words.begin(), filter->words.end(), [text](const auto& word) {
      return text.find(word) != std::string_view::npos;
    });
  }
  // A file that cannot be written loses lines, which are also in the worker's own file.
  Status write_lines() {
    if (lines.empty()) return {};
    const std::string all = std::exchange(lines, {});
    if (!file.valid()) {
      file.reset(::open(filter->path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    }
    std::string_view left = all;
    while (file.valid() && !left.empty()) {
      const ssize_t put = ::write(file.get(), left.data(), left.size());
      if (put <= 0) break;
      left.remove_prefix(static_cast<std::size_t>(put));
    }
    return left.empty() ? Status() : os::posix_error("cannot write " + filter->path, errno);
  }
};

struct Tee::Stream {
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() {
    if (!pipe.empty()) ::unlink(pipe.c_str());
  }

  std::string pipe;                     // with a limited file: what the worker writes to
  std::optional<os::RotatingFile> log;  // the limited file
  bool has_reported = false;            // that it cannot be written
  int console = -1;
  int local_rank = 0;
  core::LinePrefix prefix;
  core::LineSplitter lines;
  Instant last_read;
  std::shared_ptr<Merged> merged;                         // null: lines are not merged
  std::shared_ptr<Filtered> filtered;                     // null: none
  core::LineSplitter whole_lines{kFilteredLineBytesMax};  // for the filter
};

Result<std::unique_ptr<Tee>> Tee::create(os::EventLoop* loop,
                                         std::function<void(const Status&)> report) {
  std::unique_ptr<Tee> tee(new Tee(loop, std::move(report)));
  auto writer = os::ConsoleWriter::start(
      loop, kPendingMax, [raw = tee.get()] { raw->resume(); },
      [raw = tee.get()](int console, int error) {
        const std::string name = console == STDERR_FILENO ? "stderr" : "stdout";
        raw->report_(os::posix_error("cannot write the lines of workers to " + name, error));
      });
  if (!writer.ok()) return writer.status();
  auto tail = os::LogTail::create(loop, tee.get());
  if (!tail.ok()) return tail.status();
  tee->writer_ = *std::move(writer);
  tee->tail_ = *std::move(tail);
  return tee;
}

Tee::Tee(os::EventLoop* loop, std::function<void(const Status&)> report)
    : loop_(loop),
      report_(std::move(report)),
      round_(std::make_shared<TeeRound>()),
      pause_timer_(loop, [this] { check_pauses(); }),
      pipes_(loop, this) {}

Tee::~Tee() = default;

void Tee::begin_round(TeeRound round) {
  round_ = std::make_shared<const TeeRound>(std::move(round));
  merged_.clear();
  filtered_.clear();
}

void Tee::continue_round(TeeRound round) {
  round_ = std::make_shared<const TeeRound>(std::move(round));
  for (const auto& [file, stream] : streams_) {
    if (round_->ranks.count(stream->local_rank) == 0) continue;
    stream->prefix = prefix_of(*round_, {stream->local_rank});
    if (stream->merged == nullptr) continue;
    stream->merged->round = round_;
    stream->merged->prefixes.clear();
  }
}

Result<os::LogTail::FileId> Tee::open(const TeeStream& wanted, Stream* stream) {
  if (wanted.pipe.empty()) return tail_->follow(wanted.path);
  Result<os::RotatingFile> log =
      os::RotatingFile::open(wanted.path, wanted.bytes_max, wanted.files_max);
  if (!log.ok()) return log.status();
  Result<os::UniqueFd> reader = os::create_named_pipe(wanted.pipe);
  if (!reader.ok()) return reader.status();
  stream->pipe = wanted.pipe;
  stream->log = *std::move(log);
  return pipes_.follow(*std::move(reader));
}

Status Tee::follow(const TeeStream& wanted) {
  auto added = std::make_unique<Stream>();
  Stream& stream = *added;
  const Result<os::LogTail::FileId> file = open(wanted, &stream);
  if (!file.ok()) return file.status();
  streams_[*file] = std::move(added);
  stream.console = wanted.console;
  stream.local_rank = wanted.local_rank;
  stream.prefix = prefix_of(*round_, {wanted.local_rank});
  if (wanted.console >= 0) {
    consoles_.try_emplace(wanted.console).first->second.is_terminal = ::isatty(wanted.console) == 1;
  }
  if (wanted.console >= 0 && round_->merges_lines) {
    std::shared_ptr<Merged>& merged = merged_[wanted.console];
    if (merged == nullptr) {
      merged = std::make_shared<Merged>();
      merged->console = wanted.console;
      merged->round = round_;
    }
    merged->merger.add_worker(wanted.local_rank);
    ++merged->streams;
    stream.merged = merged;
  }
  if (wanted.filter != nullptr) {
    std::shared_ptr<Filtered>& filtered = filtered_[wanted.filter.get()];
    if (filtered == nullptr) {
      filtered = std::make_shared<Filtered>();
      filtered->filter = wanted.filter;
    }
    stream.filtered = filtered;
  }
  return {};
}

void Tee::read_pipes(int local_rank) {
  for (const auto& [file, stream] : streams_) {
    if (stream->local_rank == local_rank) pipes_.read_now(file);
  }
}

void Tee::end_round() {
  for (const auto& [file, stream] : streams_) {
    tail_->close(file);
    pipes_.close(file);
  }
}

void Tee::finish(std::function<void()> done) {
  writer_->finish(std::move(done));
  if (streams_.empty()) writer_->close_input();
}

void Tee::on_bytes(os::LogTail::FileId file, std::string_view bytes) {
  Stream& stream = *streams_.at(file);
  if (stream.log) {
    const Status written = stream.log->write(bytes);
    if (!written.ok() && !std::exchange(stream.has_reported, true)) report_(written);
  }
  if (stream.console < 0 && stream.filtered == nullptr) return;
  stream.last_read = loop_->now();
  if (stream.filtered != nullptr) {
    stream.whole_lines.feed(bytes, filter_for(&stream));
    write_filtered(stream.filtered.get());
  }
  if (stream.console < 0) return;
  stream.lines.feed(bytes, sink_for(&stream));
  push_later();
}

// Once for all streams that are read in this iteration.
void Tee::push_later() {
  if (std::exchange(is_push_scheduled_, true)) return;
  loop_->defer([this, alive = std::weak_ptr<bool>(exists_)] {
    if (alive.expired()) return;
    is_push_scheduled_ = false;
    push_lines();
    arm_pauses();
    if (writer_->is_full()) pause();
  });
}

void Tee::on_closed(os::LogTail::FileId file) {
  Stream& stream = *streams_.at(file);
  if (stream.filtered != nullptr) {
    stream.whole_lines.flush(filter_for(&stream));
    write_filtered(stream.filtered.get());
  }
  stream.lines.flush(sink_for(&stream));
  if (Merged* merged = stream.merged.get()) {
    merged->merger.remove_worker(stream.local_rank);
    if (--merged->streams == 0) merged->merger.flush(merged_sink(merged));
  }
  push_lines();
  streams_.erase(file);
  if (streams_.empty()) writer_->close_input();
}

void Tee::pause() {
  tail_->pause();
  pipes_.pause();
}

void Tee::resume() {
  tail_->resume();
  pipes_.resume();
}

core::LineSplitter::Sink Tee::sink_for(Stream* stream) {
  return [this, stream](std::string_view text, char terminator) {
    add_line(stream, text, terminator);
  };
}

core::LineSplitter::Sink Tee::filter_for(Stream* stream) {
  return [this, stream](std::string_view text, char) {
    Filtered& filtered = *stream->filtered;
    if (!filtered.matches(text)) return;
    stream->prefix.append_to(&filtered.lines,
                             stream->prefix.has_time() ? time_text() : std::string_view());
    filtered.lines.append(text).push_back('\n');
  };
}

void Tee::write_filtered(Filtered* filtered) {
  const Status written = filtered->write_lines();
  if (!written.ok() && !std::exchange(filtered->has_reported, true)) report_(written);
}

core::LineMerger::Sink Tee::merged_sink(Merged* merged) {
  return [this, merged](const std::vector<int>& local_ranks, std::string_view text) {
    if (merged->prefixes.size() >= kPrefixesMax) merged->prefixes.clear();
    auto known = merged->prefixes.find(local_ranks);
    if (known == merged->prefixes.end()) {
      known = merged->prefixes.emplace(local_ranks, prefix_of(*merged->round, local_ranks)).first;
    }
    append(merged->console, known->second, text, '\n');
  };
}

void Tee::add_line(Stream* stream, std::string_view text, char terminator) {
  if (Merged* merged = stream->merged.get(); merged != nullptr && terminator == '\n') {
    merged->merger.feed(stream->local_rank, text, loop_->now(), merged_sink(merged));
  } else {
    append(stream->console, stream->prefix, text, terminator);
  }
}

void Tee::append(int number, const core::LinePrefix& prefix, std::string_view text,
                 char terminator) {
  Console& console = consoles_[number];
  if (console.is_terminal && console.is_redrawing) console.lines += kEraseRow;
  console.is_redrawing = terminator == '\r';
  prefix.append_to(&console.lines, prefix.has_time() ? time_text() : std::string_view());
  console.lines.append(text).push_back(terminator);
}

std::string_view Tee::time_text() {
  const Instant now = loop_->now();
  if (time_.empty() || now - time_at_ >= kTimeResolution) {
    time_ = os::local_time_text(os::wall_time(now));
    time_at_ = now;
  }
  return time_;
}

void Tee::push_lines() {
  for (auto& [number, console] : consoles_) {
    if (console.lines.empty()) continue;
    writer_->push(number, console.lines);
    console.lines.clear();
  }
}

void Tee::check_pauses() {
  const Instant now = loop_->now();
  for (const auto& [file, stream] : streams_) {
    if (stream->lines.has_unfinished_line() && now - stream->last_read >= round_->line_pause) {
      stream->lines.pause(sink_for(stream.get()));
    }
    if (Merged* merged = stream->merged.get()) {
      merged->merger.advance(now, merged_sink(merged));
    }
  }
  push_lines();
  arm_pauses();
}

void Tee::arm_pauses() {
  Instant due = Instant::max();
  for (const auto& [file, stream] : streams_) {
    if (stream->lines.has_unfinished_line())
      due = std::min(due, add_saturating(stream->last_read, round_->line_pause));
    if (stream->merged != nullptr) {
      due = std::min(due, stream->merged->merger.next_deadline().value_or(Instant::max()));
    }
  }
  if (due == Instant::max()) {
    pause_timer_.disarm();
  } else {
    pause_timer_.arm(due);
  }
}

}  // namespace elastic::host
