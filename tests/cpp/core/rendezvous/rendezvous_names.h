#pragma once

// The names of the rendezvous machine's table, as docs/rendezvous.md has them.

#include <array>
#include <string_view>

#include "core/rendezvous/rendezvous_events.h"

namespace elastic::core {

inline constexpr std::array<std::string_view, kNodeRows> kNodeRowNames = {
    "absent", "joined", "working", "stopped", "done", "absent, job closed", "present, job closed"};
inline constexpr std::array<std::string_view, kNodeMessages> kNodeMessageNames = {
    "Join", "Failed", "Gone", "Done", "Leave", "Close", "Heartbeat", "SessionLost", "ProcessEnded"};
inline constexpr std::array<std::string_view, 15> kResponseNames = {
    "admit", "refresh", "enqueue", "fail",   "stop",  "finish",      "leave", "close",
    "alive", "suspect", "lose",    "resend", "evict", "send result", "ignore"};
static_assert(static_cast<std::size_t>(Response::kIgnore) + 1 == kResponseNames.size());

}  // namespace elastic::core
