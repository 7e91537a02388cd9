#include "core/base/text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>

namespace elastic::core {
namespace {

// Half to even, as Python rounds.
long long rounded(double value) { return static_cast<long long>(std::nearbyint(value)); }

std::string with_rest(long long count, const char* unit, long long rest, const char* rest_unit) {
  std::string text = std::to_string(count) + " " + unit;
  if (rest != 0) text += " " + std::to_string(rest) + " " + rest_unit;
  return text;
}

bool is_plain(char byte) { return byte >= ' ' && byte <= '~'; }

// The length of the printable character at the beginning of `text`; 0: it is none.
std::size_t printable_length(std::string_view text, Lines lines) {
  const char first = text.front();
  if (is_plain(first)) return 1;
  if (first == '\n' || first == '\t') return lines == Lines::kMany ? 1 : 0;
  const std::size_t length = character_length(text);
  const bool is_c1 = length == 2 && first == '\xC2' && static_cast<std::uint8_t>(text[1]) < 0xA0;
  return length < 2 || is_c1 ? 0 : length;  // of one byte, the others are control characters
}

}  // namespace

std::string duration_text(Duration duration) {
  constexpr double kMillisecondsEnd = 0.9995;  // from here on three digits are "1e+03 ms"
  constexpr double kSecondsEnd = 59.95;        // from here on three digits are "60 s"
  constexpr int kMinute = 60;
  constexpr int kHour = 3600;
  const double seconds = to_seconds(duration);
  if (seconds < kSecondsEnd) {
    const bool is_short = seconds < kMillisecondsEnd;
    char text[32];
    std::snprintf(text, sizeof text, is_short ? "%.3g ms" : "%.3g s",
                  is_short ? seconds * 1000 : seconds);
    return text;
  }
  const long long whole = rounded(seconds);
  if (whole < kHour) return with_rest(whole / kMinute, "min", whole % kMinute, "s");
  const long long minutes = rounded(seconds / kMinute);
  return with_rest(minutes / kMinute, "h", minutes % kMinute, "min");
}

std::string without_numbers(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool is_digit = c >= '0' && c <= '9';
    if (!is_digit) {
      out += c;
    } else if (!out.ends_with('#')) {
      out += '#';
    }
  }
  return out;
}

std::string_view last_line(std::string_view text) {
  while (text.ends_with('\n')) text.remove_suffix(1);
  return text.substr(text.rfind('\n') + 1);  // npos + 1 is 0
}

std::string with_remaining(const std::string& message, std::optional<Duration> remaining) {
  return remaining ? message + " in " + duration_text(*remaining) : message;
}

// glibc has sigabbrev_np() since 2.32; we support 2.28.
const char* signal_name(int signal) {
  switch (signal) {
    case SIGHUP: return "SIGHUP";
    case SIGINT: return "SIGINT";
    case SIGQUIT: return "SIGQUIT";
    case SIGILL: return "SIGILL";
    case SIGTRAP: return "SIGTRAP";
    case SIGABRT: return "SIGABRT";
    case SIGBUS: return "SIGBUS";
    case SIGFPE: return "SIGFPE";
    case SIGKILL: return "SIGKILL";
    case SIGUSR1: return "SIGUSR1";
    case SIGSEGV: return "SIGSEGV";
    case SIGUSR2: return "SIGUSR2";
    case SIGPIPE: return "SIGPIPE";
    case SIGALRM: return "SIGALRM";
    case SIGTERM: return "SIGTERM";
    case SIGSTKFLT: return "SIGSTKFLT";
    case SIGXCPU: return "SIGXCPU";
    case SIGXFSZ: return "SIGXFSZ";
    case SIGVTALRM: return "SIGVTALRM";
    case SIGPROF: return "SIGPROF";
    case SIGIO: return "SIGIO";
    case SIGPWR: return "SIGPWR";
    case SIGSYS: return "SIGSYS";
    default: return nullptr;
  }
}

std::string signal_text(int signal) {
  std::string text = "signal " + std::to_string(signal);
  if (const char* name = signal_name(signal)) text += std::string(" (") + name + ")";
  return text;
}

bool is_lost_peer(std::string_view error) {
  const auto has_one_of = [error](const auto& signs) {
    return std::any_of(signs.begin(), signs.end(), [error](std::string_view sign) {
      return error.find(sign) != std::string_view::npos;
    });
  };
  constexpr std::array<std::string_view, 2> kOfNccl = {
      "remote process exited or there was a network error", "ncclRemoteError"};
  // The kernel says it about other connections of the script, too.
  constexpr std::array<std::string_view, 3> kOfTheKernel = {
      "Connection reset by peer", "Connection closed by peer", "Broken pipe"};
  constexpr std::array<std::string_view, 5> kTransports = {"gloo", "pair.cc", "TCPStore",
                                                           "torch.distributed.", "NCCL"};
  return has_one_of(kOfNccl) || (has_one_of(kOfTheKernel) && has_one_of(kTransports));
}

std::size_t character_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t first = byte(0);
  const std::size_t length = first < 0x80    ? 1
                             : first < 0xC2  ? 0
                             : first < 0xE0  ? 2
                             : first < 0xF0  ? 3
                             : first <= 0xF4 ? 4
                                             : 0;
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and code points above U+10FFFF.
  if (first == 0xE0 && byte(1) < 0xA0) return 0;
  if (first == 0xED && byte(1) > 0x9F) return 0;
  if (first == 0xF0 && byte(1) < 0x90) return 0;
  if (first == 0xF4 && byte(1) > 0x8F) return 0;
  return length;
}

bool is_printable(std::string_view text, Lines lines) {
  while (!text.empty()) {
    const std::size_t length = printable_length(text, lines);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string to_printable(std::string_view text, Lines lines, std::size_t bytes_max) {
  std::string out;
  out.reserve(std::min(text.size(), bytes_max));
  while (!text.empty()) {
    const std::size_t length = printable_length(text, lines);
    const std::string_view shown = length > 0 ? text.substr(0, length) : kReplacementCharacter;
    if (out.size() + shown.size() > bytes_max) break;
    out += shown;
    text.remove_prefix(std::max<std::size_t>(character_length(text), 1));
  }
  return out;
}

}  // namespace elastic::core
