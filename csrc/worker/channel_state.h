#pragma once

// What the files of the library share.

#include <cstdint>

namespace elastic::worker {

// Whether this process has the channel.
bool is_attached();
// The channel's socket; -1 if its number belongs to another file by now.
int own_socket();
// Sends a message of one byte, without waiting. Async-signal-safe.
bool notify(char message);
// Ends the wait of should_stop(), which looks again.
void wake_stopping_thread();
// From now on this is the number of the round, not the environment's.
void set_round(std::uint64_t round);
// In a forked child: forgets the membership, which is its parent's.
void detach_membership();

}  // namespace elastic::worker
