#include "core/workers/log_lines.h"

#include <cstdint>
#include <cstring>

// Theory of operation. The splitter searches for the next "\n" or "\r" and passes on the bytes
// before it. Only the beginning of an unfinished line is kept between calls, and whether the last
// byte was a "\r", whose meaning depends on the next byte. A line that lies in one piece of input
// is not copied.

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

}  // namespace elastic::core
