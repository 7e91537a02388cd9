#include "core/base/duration_text.h"

#include <cmath>
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

std::string with_remaining(const std::string& message, std::optional<Duration> remaining) {
  return remaining ? message + " in " + duration_text(*remaining) : message;
}

}  // namespace elastic::core
