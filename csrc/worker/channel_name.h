#pragma once

// The value of ELASTIC_CHANNEL, and the messages on the channel's socket: what the guardian and the
// worker's library must agree on beside the page (elastic/worker.h).
//
// Pure, and without the C++ runtime.

#include <cstdint>
#include <cstdio>

namespace elastic::worker {

inline constexpr char kVariable[] = "ELASTIC_CHANNEL";

// Messages of the worker: one byte each.
inline constexpr char kOpened = 'o';         // the owner word was set
inline constexpr char kReporting = 'p';      // the first step was reported
inline constexpr char kStacksWritten = 's';  // a request for stacks was answered
inline constexpr char kStopped = 't';        // should_stop() has returned true
inline constexpr char kWaiting = 'w';        // should_stop() waits: the word waits_at was set
inline constexpr char kMember = 'm';         // its process can take part in another round
inline constexpr char kLeft = 'x';           // the word left_round was set
inline constexpr char kSnapshots = 'k';      // with a descriptor: a socket for snapshots
inline constexpr char kWatching = 'c';       // a thread sets the word waits_since
inline constexpr char kRaised = 'e';         // an exception ends its main thread

// Messages of the guardian, to a worker that has sent kMember: one packet each.
inline constexpr char kCut = 'C';       // then the number of the round that is over, 8 bytes
inline constexpr char kNewRound = 'R';  // then its number, and "NAME=value" with a NUL each
inline constexpr int kRoundHeaderBytes = 1 + 8;

// Two descriptors, each with the device and inode that its number must still have.
struct ChannelName {
  int memory = -1;
  std::uint64_t memory_device = 0;
  std::uint64_t memory_inode = 0;
  int socket = -1;
  std::uint64_t socket_device = 0;
  std::uint64_t socket_inode = 0;
};

inline constexpr int kNameBytesMax = 128;

// Writes "NAME=value" with a final NUL.
inline void format(const ChannelName& name, char (&out)[kNameBytesMax]) {
  std::snprintf(out, sizeof out, "%s=1:%d:%llu:%llu:%d:%llu:%llu", kVariable, name.memory,
                static_cast<unsigned long long>(name.memory_device),
                static_cast<unsigned long long>(name.memory_inode), name.socket,
                static_cast<unsigned long long>(name.socket_device),
                static_cast<unsigned long long>(name.socket_inode));
}

// False if `value` is null or has another format.
inline bool parse(const char* value, ChannelName* name) {
  if (value == nullptr) return false;
  unsigned long long numbers[4] = {};
  char rest = '\0';
  const int found = std::sscanf(value, "1:%d:%llu:%llu:%d:%llu:%llu%c", &name->memory, &numbers[0],
                                &numbers[1], &name->socket, &numbers[2], &numbers[3], &rest);
  name->memory_device = numbers[0];
  name->memory_inode = numbers[1];
  name->socket_device = numbers[2];
  name->socket_inode = numbers[3];
  return found == 6;
}

}  // namespace elastic::worker
