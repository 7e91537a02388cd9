#include "core/workers/output_lines.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/text.h"

// Theory of operation
//
// The splitter searches for the next "\n" or "\r" and passes on the bytes
// before it. Only the beginning of an unfinished line is kept between calls, and whether the last
// byte was a "\r", whose meaning depends on the next byte. A line that lies in one piece of input
// is not copied.
//
// The lines to merge wait in a queue. A line of a worker joins the first waiting line with
// the same text that is behind this worker's last line, so that its order is kept; otherwise it is
// appended. Only the front of the queue is passed on.

namespace elastic::core {
namespace {

// memchr() for each terminator is several times faster than find_first_of().
std::size_t find_terminator(std::string_view bytes) {
  const void* newline = std::memchr(bytes.data(), '\n', bytes.size());
  const std::size_t end =
      newline == nullptr
          ? bytes.size()
          : static_cast<std::size_t>(static_cast<const char*>(newline) - bytes.data());
  const void* carriage_return = std::memchr(bytes.data(), '\r', end);
  if (carriage_return == nullptr) return newline == nullptr ? std::string_view::npos : end;
  return static_cast<std::size_t>(static_cast<const char*>(carriage_return) - bytes.data());
}

// The size of the bytes without a UTF-8 character at their end that is not complete yet.
std::size_t whole_characters(std::string_view bytes) {
  constexpr std::size_t kCharacterBytesMax = 4;
  for (std::size_t back = 1; back < kCharacterBytesMax && back <= bytes.size(); ++back) {
    const auto byte = static_cast<std::uint8_t>(bytes[bytes.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;  // not the first byte of its character
    const std::size_t size = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return bytes.size() - (size > back ? back : 0);
  }
  return bytes.size();
}

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

std::optional<std::string> variable_value(std::string_view name, const PrefixValues& values) {
  if (name == "role_name") return values.role_name;
  if (name == "rank") return values.rank;
  if (name == "local_rank") return values.local_rank;
  if (name == "hostname") return values.hostname;
  if (name == "round") return values.round;
  return std::nullopt;
}

// The length of a terminal's escape sequence at the beginning of `text`; 0: no escape sequence.
std::size_t escape_length(std::string_view text) {
  if (text[0] != '\x1B') return 0;
  if (text.size() < 2 || text[1] != '[') return std::min<std::size_t>(text.size(), 2);
  std::size_t end = 2;
  while (end < text.size() && (text[end] < '@' || text[end] > '~')) ++end;
  return std::min(text.size(), end + 1);
}

// The line as a terminal shows it, without control characters.
std::string clean(std::string_view line) {
  while (line.ends_with('\r')) line.remove_suffix(1);
  if (const std::size_t redrawn = line.rfind('\r'); redrawn != std::string_view::npos) {
    line.remove_prefix(redrawn + 1);
  }
  std::string out;
  while (!line.empty()) {
    std::size_t taken = escape_length(line);
    if (taken == 0) {
      taken = character_length(line);
      const auto first = static_cast<std::uint8_t>(line[0]);
      const bool is_c1 =  // U+0080 to U+009F: some terminals execute them
          taken == 2 && first == 0xC2 && static_cast<std::uint8_t>(line[1]) < 0xA0;
      const bool is_control = (first < 0x20 && first != '\t') || first == 0x7F || is_c1;
      if (taken == 0) {
        out += kReplacementCharacter;
      } else if (!is_control) {
        out += line.substr(0, taken);
      }
    }
    line.remove_prefix(std::max<std::size_t>(taken, 1));
  }
  return out;
}

// A line of a C++ stack trace of PyTorch ("[rank0]: frame #12: c10::…"), or of a Python stack that
// faulthandler printed ("  File "x.py", line 3 in f"), which has no source lines between.
bool is_stack_frame(std::string_view line) {
  constexpr std::size_t kPrefixMax = 16;  // "[rank123]: "
  const bool is_python = line.starts_with("  File \"");
  const std::string_view mark = is_python ? "\", line " : "frame #";
  const std::size_t at = line.find(mark);
  if (at == line.npos) return false;
  if (!is_python && at > 0 && (at > kPrefixMax || line[at - 1] != ' ')) return false;
  line.remove_prefix(at + mark.size());
  const std::size_t digits = std::min(line.find_first_not_of("0123456789"), line.size());
  return digits > 0 && line.substr(digits).starts_with(is_python ? " in " : ": ");
}

// The lines of a text, of which a run of stack frames is shortened. Not cleaned.
std::vector<std::string> with_short_stacks(std::string_view bytes) {
  std::vector<std::string> lines;
  std::size_t frames = 0;  // of the run at the end
  const auto end_run = [&] {
    if (frames > kFramesShown + 1) {
      lines.back() = "\xE2\x80\xA6 " + std::to_string(frames - kFramesShown) + " frames";  // "…"
    }
    frames = 0;
  };
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    const std::string_view line = bytes.substr(0, end);
    bytes.remove_prefix(end == bytes.npos ? bytes.size() : end + 1);
    const bool is_frame = is_stack_frame(line);
    if (!is_frame) end_run();
    // One frame more is kept: it is the last one, or the count of the others replaces it.
    if (!is_frame || ++frames <= kFramesShown + 1) lines.emplace_back(line);
  }
  end_run();
  return lines;
}

// The end of a cleaned line, cut between two characters.
std::string_view end_of(std::string_view line, std::size_t bytes_max) {
  if (line.size() <= bytes_max) return line;
  line.remove_prefix(line.size() - bytes_max);
  while (!line.empty() && (static_cast<std::uint8_t>(line[0]) & 0xC0) == 0x80) {
    line.remove_prefix(1);
  }
  return line;
}

}  // namespace

void LineSplitter::feed(std::string_view bytes, const Sink& sink) {
  while (!bytes.empty()) {
    if (return_is_pending_) {
      return_is_pending_ = false;
      const bool is_pair = bytes.front() == '\n';
      if (is_pair) bytes.remove_prefix(1);
      end_line("", is_pair ? '\n' : '\r', sink);
      continue;
    }
    const std::size_t end = find_terminator(bytes);
    if (end == std::string_view::npos) {
      partial_ += bytes;
      break;
    }
    if (bytes[end] == '\n') {
      end_line(bytes.substr(0, end), '\n', sink);
    } else {
      partial_ += bytes.substr(0, end);
      return_is_pending_ = true;
    }
    bytes.remove_prefix(end + 1);
  }
  while (partial_.size() > line_bytes_max_) {
    pass_on(whole_characters(std::string_view(partial_).substr(0, line_bytes_max_)), sink);
  }
}

// Passes on the beginning of an unfinished line. What follows is marked as its rest.
void LineSplitter::pass_on(std::size_t size, const Sink& sink) {
  const std::string rest = partial_.substr(size);
  partial_.resize(size);
  end_line("", '\n', sink);
  partial_ = std::string(kContinuation) + rest;
  is_continued_ = true;
}

bool LineSplitter::has_unfinished_line() const {
  return whole_characters(partial_) > (is_continued_ ? kMarkBytes : 0);
}

void LineSplitter::pause(const Sink& sink) {
  if (!has_unfinished_line()) return;
  if (return_is_pending_ || is_redrawing_) {
    return_is_pending_ = false;
    end_line("", '\r', sink);
    return;
  }
  pass_on(whole_characters(partial_), sink);
}

void LineSplitter::flush(const Sink& sink) {
  return_is_pending_ = false;
  if (partial_.size() > (is_continued_ ? kMarkBytes : 0)) end_line("", '\n', sink);
}

void LineSplitter::end_line(std::string_view tail, char terminator, const Sink& sink) {
  const bool is_rest_empty = is_continued_ && partial_.size() == kMarkBytes && tail.empty();
  const bool is_empty = partial_.empty() && tail.empty();
  is_continued_ = false;
  is_redrawing_ = terminator == '\r';
  if (is_rest_empty || (is_empty && terminator == '\r')) {
    partial_.clear();
    return;
  }
  if (partial_.empty()) {
    sink(tail, terminator);
    return;
  }
  partial_ += tail;
  sink(partial_, terminator);
  partial_.clear();
}

LinePrefix::LinePrefix(std::string_view text, const PrefixValues& values) : parts_(1) {
  while (!text.empty()) {
    const std::size_t dollar = text.find('$');
    parts_.back() += text.substr(0, dollar);
    if (dollar == std::string_view::npos) break;
    text.remove_prefix(dollar);
    if (text.starts_with("$$")) {
      parts_.back() += '$';
      text.remove_prefix(2);
      continue;
    }
    const bool has_brace = text.starts_with("${");
    const std::size_t begin = has_brace ? 2 : 1;
    std::size_t end = begin;
    while (end < text.size() && is_name_char(text[end])) ++end;
    const bool is_closed = !has_brace || (end < text.size() && text[end] == '}');
    const std::string_view name = is_closed ? text.substr(begin, end - begin) : std::string_view();
    const std::optional<std::string> value = variable_value(name, values);
    const bool is_known = value || name == "time";
    const std::size_t whole = is_known && has_brace ? end + 1 : end;
    if (value) {
      parts_.back() += *value;
    } else if (is_known) {
      parts_.emplace_back();
    } else {
      parts_.back() += text.substr(0, whole);
    }
    text.remove_prefix(whole);
  }
}

void LinePrefix::append_to(std::string* out, std::string_view time) const {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (i > 0) *out += time;
    *out += parts_[i];
  }
}

void LineMerger::add_worker(int worker) { next_.emplace(worker, 0); }

void LineMerger::remove_worker(int worker) { next_.erase(worker); }

void LineMerger::feed(int worker, std::string_view text, Instant now, const Sink& sink) {
  if (!join(worker, text)) {
    lines_.push_back({std::string(text), {worker}, now});
    bytes_ += text.size();
    next_[worker] = popped_ + lines_.size();
  }
  while (lines_.size() > kLinesMax || bytes_ > kBytesMax) pop(sink);
  advance(now, sink);
}

bool LineMerger::join(int worker, std::string_view text) {
  const std::uint64_t from = std::max(next_[worker], popped_) - popped_;
  for (std::size_t i = static_cast<std::size_t>(from); i < lines_.size(); ++i) {
    Line& line = lines_[i];
    if (line.text != text) continue;
    line.workers.insert(std::upper_bound(line.workers.begin(), line.workers.end(), worker), worker);
    next_[worker] = popped_ + i + 1;
    return true;
  }
  return false;
}

void LineMerger::advance(Instant now, const Sink& sink) {
  while (!lines_.empty() &&
         (is_complete(lines_.front()) || now - lines_.front().since >= kMergeTimeout)) {
    pop(sink);
  }
}

void LineMerger::flush(const Sink& sink) {
  while (!lines_.empty()) pop(sink);
}

std::optional<Instant> LineMerger::next_deadline() const {
  if (lines_.empty()) return std::nullopt;
  return lines_.front().since + kMergeTimeout;
}

// A line also names workers that have ended since, so their number alone does not decide.
bool LineMerger::is_complete(const Line& line) const {
  return line.workers.size() >= next_.size() &&
         std::all_of(next_.begin(), next_.end(), [&line](const auto& awaited) {
           return std::binary_search(line.workers.begin(), line.workers.end(), awaited.first);
         });
}

void LineMerger::pop(const Sink& sink) {
  const Line line = std::move(lines_.front());
  lines_.pop_front();
  ++popped_;
  bytes_ -= line.text.size();
  sink(line.workers, line.text);
}

void OutputTail::append(std::string_view bytes) {
  if (bytes.size() >= kBytesMax) {
    bytes_ = bytes.substr(bytes.size() - kBytesMax);
    return;
  }
  if (bytes_.size() + bytes.size() > 2 * kBytesMax) {
    bytes_.erase(0, bytes_.size() - (kBytesMax - bytes.size()));
  }
  bytes_ += bytes;
}

std::string_view OutputTail::bytes() const {
  const std::string_view all = bytes_;
  return all.size() > kBytesMax ? all.substr(all.size() - kBytesMax) : all;
}

std::string last_lines(std::string_view bytes, std::size_t lines_max, std::size_t bytes_max) {
  while (bytes.ends_with('\n') || bytes.ends_with('\r')) bytes.remove_suffix(1);
  const std::vector<std::string> all = with_short_stacks(bytes);
  std::vector<std::string> lines;  // the last one first
  std::size_t size = 0;
  for (auto raw = all.rbegin(); raw != all.rend() && lines.size() < lines_max; ++raw) {
    std::string line = clean(*raw);
    const bool fits = size + line.size() + 1 <= bytes_max;
    if (!fits && !lines.empty()) break;
    lines.emplace_back(end_of(line, bytes_max));
    size += line.size() + 1;
  }
  std::string out;
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    if (line != lines.rbegin()) out += '\n';
    out += *line;
  }
  return out;
}

}  // namespace elastic::core
