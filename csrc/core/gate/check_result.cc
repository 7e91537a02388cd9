#include "core/gate/check_result.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <system_error>
#include <vector>

#include "core/base/text.h"

namespace elastic::gate {
namespace {

// Deeper objects are not read; output of a program must not exhaust the stack.
constexpr int kDepthMax = 32;
// Of lines that begin like an object.
constexpr int kObjectsMax = 256;

// What an object says about the node. Only its own members count, not those of inner objects.
struct Members {
  std::optional<std::string> verdict;
  std::optional<std::string> severity;
  std::optional<double> fail_count;
  std::string reason;
  std::vector<std::string> failed_checks;
};

// Reads one object, and keeps what Members names.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool object(Members* members) {
    if (!take('{')) return false;
    if (take('}')) return true;
    do {
      std::string name;
      if (!string(&name) || !take(':') || !member(name, members)) return false;
    } while (take(','));
    return take('}');
  }
  std::size_t position() const { return at_; }

 private:
  bool member(const std::string& name, Members* members) {
    std::string text;
    const char first = peek();
    if (name == "failed_checks" && first == '[') return list(&members->failed_checks);
    if (first == '"') {
      if (!string(&text)) return false;
      if (name == "verdict") members->verdict = text;
      if (name == "overall_severity") members->severity = text;
      if (name == "reason" || name == "message" || name == "summary") members->reason = text;
      return true;
    }
    const std::size_t begin = at_;
    if (!value(1)) return false;
    if (name == "fail_count") members->fail_count = number(text_.substr(begin, at_ - begin));
    return true;
  }

  static std::optional<double> number(std::string_view text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool is_whole = error == std::errc() && end == text.data() + text.size();
    return is_whole ? std::optional(value) : std::nullopt;
  }

  // The strings of a list; of objects in it those that are called "name" or "check" would need the
  // format of one daemon, so other values are skipped.
  bool list(std::vector<std::string>* strings) {
    if (!take('[')) return false;
    if (take(']')) return true;
    do {
      std::string text;
      if (peek() != '"') {
        if (!value(1)) return false;
      } else if (!string(&text)) {
        return false;
      } else {
        strings->push_back(std::move(text));
      }
    } while (take(','));
    return take(']');
  }

  bool value(int depth) {
    if (depth > kDepthMax) return false;
    std::string ignored;
    switch (peek()) {
      case '"': return string(&ignored);
      case '{': return items('}', depth, true);
      case '[': return items(']', depth, false);
      default: return scalar();
    }
  }

  bool items(char end, int depth, bool has_names) {
    ++at_;
    if (take(end)) return true;
    do {
      std::string name;
      if (has_names && (!string(&name) || !take(':'))) return false;
      if (!value(depth + 1)) return false;
    } while (take(','));
    return take(end);
  }

  bool scalar() {
    const std::size_t begin = at_;
    const auto is_part = [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == 'E' || c == '+' || c == '-' ||
             c == '.';
    };
    while (at_ < text_.size() && is_part(text_[at_])) ++at_;
    const std::string_view word = text_.substr(begin, at_ - begin);
    return word == "true" || word == "false" || word == "null" || number(word).has_value();
  }

  bool string(std::string* out) {
    if (!take('"')) return false;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '"') return true;
      if (static_cast<unsigned char>(c) < 0x20) return false;
      if (c != '\\') {
        out->push_back(c);
      } else if (!escape(out)) {
        return false;
      }
    }
    return false;
  }

  bool escape(std::string* out) {
    if (at_ == text_.size()) return false;
    const char c = text_[at_++];
    switch (c) {
      case 'n':
      case 'r':
      case 't':
      case 'b':
      case 'f': out->push_back(' '); return true;
      case '"':
      case '\\':
      case '/': out->push_back(c); return true;
      case 'u': return code_point(out);
      default: return false;
    }
  }

  // A half of a surrogate pair becomes U+FFFD, as what is no character does elsewhere.
  bool code_point(std::string* out) {
    if (text_.size() - at_ < 4) return false;
    std::uint32_t code = 0;
    const char* const begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, begin + 4, code, 16);
    if (error != std::errc() || end != begin + 4) return false;
    at_ += 4;
    if (code >= 0xD800 && code < 0xE000) code = 0xFFFD;
    const auto add = [&](std::uint32_t byte) { out->push_back(static_cast<char>(byte)); };
    if (code < 0x80) {
      add(code);
    } else if (code < 0x800) {
      add(0xC0 | code >> 6);
      add(0x80 | (code & 0x3F));
    } else {
      add(0xE0 | code >> 12);
      add(0x80 | (code >> 6 & 0x3F));
      add(0x80 | (code & 0x3F));
    }
    return true;
  }

  char peek() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != text_.npos) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

std::string lower(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

std::optional<CheckResult> result_of(const Members& members) {
  if (members.verdict) {
    const std::string word = lower(*members.verdict);
    const Verdict verdict = word == "good"  ? Verdict::kGood
                            : word == "bad" ? Verdict::kBad
                                            : Verdict::kUnknown;
    return CheckResult{
        verdict, members.reason.empty() ? "its verdict is " + *members.verdict : members.reason};
  }
  if (members.severity) {
    const std::string word = lower(*members.severity);
    const bool is_good = word == "pass" || word == "info" || word == "warning";
    return CheckResult{
        is_good              ? Verdict::kGood
        : word == "critical" ? Verdict::kBad
                             : Verdict::kUnknown,
        members.reason.empty() ? "overall_severity is " + *members.severity : members.reason};
  }
  if (members.fail_count) {
    if (*members.fail_count <= 0) return CheckResult{Verdict::kGood, members.reason};
    std::string failed;
    for (const std::string& one : members.failed_checks) {
      failed += (failed.empty() ? "" : ", ") + one;
    }
    return CheckResult{Verdict::kBad, !failed.empty()           ? "failed checks: " + failed
                                      : !members.reason.empty() ? members.reason
                                                                : "fail_count is above 0"};
  }
  return std::nullopt;
}

// LBNL NHC and scripts for it write "ERROR:  nhc:  Health check failed:  check_x:  the text".
std::string_view without_preface(std::string_view line) {
  constexpr std::string_view kPreface = "Health check failed:";
  if (const auto found = line.find(kPreface); found != line.npos) {
    line.remove_prefix(found + kPreface.size());
  }
  line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  return line;
}

}  // namespace

std::optional<CheckResult> verdict_in(std::string_view output) {
  std::optional<CheckResult> found;
  int objects = 0;
  for (std::size_t at = 0; at < output.size() && objects < kObjectsMax;) {
    if (output[at] == '{') {
      ++objects;
      Members members;
      Reader reader(output.substr(at));
      if (reader.object(&members)) {
        if (auto result = result_of(members)) found = std::move(result);
        at += reader.position() - 1;
      }
    }
    const std::size_t end = output.find('\n', at);
    at = end == output.npos ? output.size() : end + 1;
  }
  return found;
}

CheckResult result_of(const CheckEnd& end) {
  CheckResult result;
  const WorkerExit& exit = end.exit;
  if (end.limit) {
    result.reason = "it did not end within " + core::duration_text(*end.limit);
  } else if (!end.error.empty()) {
    result.reason = end.error;
  } else if (exit.kind != ExitKind::kExited) {
    result.reason = (exit.kind == ExitKind::kSignaled ? "it was " : "it ") + exit.describe();
  } else if (auto verdict = verdict_in(end.output)) {
    result = *std::move(verdict);
  } else {
    if (exit.code == 0) result.verdict = Verdict::kGood;
    if (exit.code > 0 && exit.code <= kBadCodeMax) result.verdict = Verdict::kBad;
    result.reason = without_preface(core::last_line(end.output));
  }
  if (result.reason.empty()) result.reason = "it " + exit.describe();
  result.reason = core::to_printable(result.reason, core::Lines::kOne, kReasonBytesMax);
  return result;
}

}  // namespace elastic::gate
