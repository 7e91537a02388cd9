#include "core/workers/log_lines.h"

#include <optional>

// Theory of operation. The splitter searches for the next "\n" or "\r" and passes on the bytes
// before it. Only two things are kept between calls: the beginning of an unfinished line, and
// whether the last byte was a "\r", whose meaning depends on the next byte. So a line that lies in
// one piece of input is copied once, to add its terminator.

namespace elastic::core {

void LineSplitter::feed(std::string_view bytes, const Sink& sink) {
  while (!bytes.empty()) {
    if (return_is_pending_) {
      return_is_pending_ = false;
      const bool is_pair = bytes.front() == '\n';
      if (is_pair) bytes.remove_prefix(1);
      end_line("", is_pair ? '\n' : '\r', sink);
      continue;
    }
    const std::size_t end = bytes.find_first_of("\r\n");
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
  while (partial_.size() > kLineBytesMax) {
    const std::string rest = partial_.substr(kLineBytesMax);
    partial_.resize(kLineBytesMax);
    end_line("", '\n', sink);
    partial_ = rest;
  }
}

void LineSplitter::flush(const Sink& sink) {
  return_is_pending_ = false;
  if (!partial_.empty()) end_line("", '\n', sink);
}

void LineSplitter::end_line(std::string_view tail, char terminator, const Sink& sink) {
  partial_ += tail;
  if (terminator == '\r' && partial_.empty()) return;
  partial_ += terminator;
  sink(partial_);
  partial_.clear();
}

namespace {

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

}  // namespace

std::string expand_prefix(std::string_view text, std::string_view role_name, int rank,
                          int local_rank) {
  const auto value_of = [&](std::string_view name) -> std::optional<std::string> {
    if (name == "role_name") return std::string(role_name);
    if (name == "rank") return std::to_string(rank);
    if (name == "local_rank") return std::to_string(local_rank);
    return std::nullopt;
  };
  std::string out;
  while (!text.empty()) {
    const std::size_t dollar = text.find('$');
    out += text.substr(0, dollar);
    if (dollar == std::string_view::npos) break;
    text.remove_prefix(dollar);
    if (text.starts_with("$$")) {
      out += '$';
      text.remove_prefix(2);
      continue;
    }
    const bool has_brace = text.starts_with("${");
    const std::size_t begin = has_brace ? 2 : 1;
    std::size_t end = begin;
    while (end < text.size() && is_name_char(text[end])) ++end;
    const bool is_closed = !has_brace || (end < text.size() && text[end] == '}');
    const auto value = is_closed ? value_of(text.substr(begin, end - begin)) : std::nullopt;
    const std::size_t whole = value && has_brace ? end + 1 : end;
    if (value) {
      out += *value;
    } else {
      out += text.substr(0, whole);
    }
    text.remove_prefix(whole);
  }
  return out;
}

}  // namespace elastic::core
