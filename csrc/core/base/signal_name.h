#pragma once

// Names of signals for messages.

#include <string>

namespace elastic::core {

// "signal 15 (SIGTERM)"; without the name if the signal has none.
std::string signal_text(int signal);

}  // namespace elastic::core
