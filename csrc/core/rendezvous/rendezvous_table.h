#pragma once

// What the rendezvous does with a message, by the state of the node that sent it: the table that
// the machine runs and that docs/rendezvous.md shows.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace elastic::core {

// A node's state as the machine knows it.
enum class NodeRow : std::uint8_t {
  kAbsent,         // not known: it never joined, left, or was declared lost
  kJoined,         // has no workers and wants the next round: candidate, waiting or spare
  kWorking,        // a member of the round; its workers run or are being stopped
  kStopped,        // a member whose workers are gone, or a finished node that was called back
  kDone,           // all of its workers succeeded; it waits for the others
  kAbsentClosed,   // the job is closed and the node is not known
  kPresentClosed,  // the job is closed and the node has not gone yet
};
inline constexpr std::size_t kNodeRows = 7;

enum class NodeMessage : std::uint8_t {
  kJoin,
  kFailed,
  kGone,
  kDone,
  kLeave,
  kClose,
  kHeartbeat,
  kSessionLost,
  kProcessEnded
};
inline constexpr std::size_t kNodeMessages = 9;

// The others are made by the coordinator, and are no sign of life.
constexpr bool is_from_node(NodeMessage message) {
  return message != NodeMessage::kSessionLost && message != NodeMessage::kProcessEnded;
}

enum class Response : std::uint8_t {
  kAdmit,       // the node becomes joined
  kRefresh,     // its new data replace the old data; replied to again
  kEnqueue,     // joined; ends the round if it still ran
  kFail,        // ends the round if it still ran; records the failure
  kStop,        // its workers have ended; ends the round if it still ran
  kFinish,      // done; the last member ends the job
  kLeave,       // the node is removed; if it was a working member the round ends
  kClose,       // the job is closed with this result
  kAlive,       // counts as a heartbeat
  kSuspect,     // lost after reconnect_grace unless it resumes
  kLose,        // lost at once if its session is closed
  kResend,      // the last decision is sent again
  kSupersede,   // receives Superseded; nothing changes
  kEvict,       // unknown here; receives Evicted
  kSendResult,  // receives the result
  kIgnore,
};

using enum Response;
inline constexpr std::array<std::array<Response, kNodeMessages>, kNodeRows> kResponses = {{
    // Join     Failed      Gone        Done        Leave    Close    Heartbeat  SessionLost
    // ProcessEnded (last column)
    {kAdmit, kEvict, kEvict, kEvict, kIgnore, kClose, kEvict, kIgnore, kIgnore},       // absent
    {kRefresh, kFail, kIgnore, kSupersede, kLeave, kClose, kAlive, kSuspect, kLose},   // joined
    {kEnqueue, kFail, kStop, kFinish, kLeave, kClose, kAlive, kSuspect, kLose},        // working
    {kEnqueue, kFail, kIgnore, kSupersede, kLeave, kClose, kAlive, kSuspect, kLose},   // stopped
    {kResend, kSupersede, kIgnore, kResend, kLeave, kClose, kAlive, kSuspect, kLose},  // done
    {kAdmit, kSendResult, kSendResult, kSendResult, kIgnore, kSendResult, kSendResult, kIgnore,
     kIgnore},                                                                           // absent*
    {kSendResult, kIgnore, kStop, kStop, kLeave, kSendResult, kAlive, kLeave, kIgnore},  // present*
}};

constexpr Response response_to(NodeRow row, NodeMessage message) {
  return kResponses[static_cast<std::size_t>(row)][static_cast<std::size_t>(message)];
}

inline constexpr std::array<std::string_view, kNodeRows> kNodeRowNames = {
    "absent", "joined", "working", "stopped", "done", "absent, job closed", "present, job closed"};
inline constexpr std::array<std::string_view, kNodeMessages> kNodeMessageNames = {
    "Join", "Failed", "Gone", "Done", "Leave", "Close", "Heartbeat", "SessionLost", "ProcessEnded"};
inline constexpr std::array<std::string_view, 16> kResponseNames = {
    "admit", "refresh", "enqueue", "fail",   "stop",      "finish", "leave",       "close",
    "alive", "suspect", "lose",    "resend", "supersede", "evict",  "send result", "ignore"};
static_assert(static_cast<std::size_t>(NodeMessage::kProcessEnded) + 1 == kNodeMessages);
static_assert(static_cast<std::size_t>(NodeRow::kPresentClosed) + 1 == kNodeRows);
static_assert(static_cast<std::size_t>(Response::kIgnore) + 1 == kResponseNames.size());

}  // namespace elastic::core
