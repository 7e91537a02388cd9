#pragma once

// Durations in messages.

#include <optional>
#include <string>

#include "elastic/time.h"

namespace elastic::core {

// "50 ms", "2.5 s", "10 min", "1 h 5 min", as elastic.text.duration writes them: three significant
// digits below a minute, then whole seconds, from an hour on whole minutes.
std::string duration_text(Duration duration);
// "<message> in 2 s", or the message alone.
std::string with_remaining(const std::string& message, std::optional<Duration> remaining);

}  // namespace elastic::core
