#pragma once

// The transition table of a node's session: what the machine does with each input in each state.
// docs/protocol.md shows the same table.

#include <array>
#include <cstddef>
#include <cstdint>

namespace elastic::core {

enum class SessionState : std::uint8_t {
  kIdle,            // no connection, and none is needed: before the start and after the end
  kSearching,       // no connection; attempts to connect are repeated
  kConnected,       // connected, and nothing to send yet
  kGreeting,        // the hello was sent; a failure's time needs the coordinator's clock first
  kReady,           // messages are sent at once
  kGreetingSilent,  // as kGreeting, but no reply: a second connection is attempted
  kReadySilent,     // as kReady, but no reply: a second connection is attempted
  kLost,            // the coordinator was not reached in time
};
inline constexpr std::size_t kSessionStates = 8;

// What an event or an expired timer means, given the session's data.
enum class SessionInput : std::uint8_t {
  kConnectionNeeded,  // the session begins, or the node joins
  kConnected,
  kAttemptFailed,
  kAttemptRejected,  // no connection was ever made, and every further attempt would fail too
  kConnectionLost,
  kConnectionOver,  // lost, and the node has nothing more to send or to receive
  kMessage,         // the coordinator sent a message
  kFactsToSend,     // the outbox has messages to send
  kClockKnown,      // the coordinator's clock is known, or is not needed
  kHeartbeatDue,
  kSilence,  // no reply to a heartbeat for too long
  kRetryDue,
  kLogDue,
  kSearchExpired,
  kAuthorityLost,  // the coordinator has lost its authority, or had no majority for too long
};
inline constexpr std::size_t kSessionInputs = 15;

enum class SessionReaction : std::uint8_t {
  kIgnore,
  kSearch,         // connect at once, and start the search limit
  kAdopt,          // use the new connection, and end the search
  kRetry,          // connect to the next endpoint after a backoff
  kReject,         // report the exit code that belongs to the input
  kKeepSearching,  // the old connection closed; the search for a second one continues
  kStop,           // cancel the attempt, and end the search
  kReceive,
  kRecover,  // the old connection replied: as kStop, then receive
  kSendHello,
  kSendFacts,  // send the node's state, then a heartbeat
  kSendHeartbeat,
  kConnect,
  kLog,     // log the error
  kGiveUp,  // report that the coordinator was not reached
};
inline constexpr std::size_t kSessionReactions = 15;

struct SessionEdge {
  SessionReaction reaction = SessionReaction::kIgnore;
  SessionState next = SessionState::kIdle;
};

using SessionTable = std::array<std::array<SessionEdge, kSessionInputs>, kSessionStates>;

constexpr std::size_t index_of(SessionState state) { return static_cast<std::size_t>(state); }
constexpr std::size_t index_of(SessionInput input) { return static_cast<std::size_t>(input); }

constexpr SessionTable make_session_table() {
  using S = SessionState;
  using I = SessionInput;
  using R = SessionReaction;
  SessionTable table{};
  const auto at = [&table](S state, I input) -> SessionEdge& {
    return table[index_of(state)][index_of(input)];
  };
  for (std::size_t state = 0; state < kSessionStates; ++state) {
    table[state].fill({R::kIgnore, static_cast<S>(state)});
  }

  for (std::size_t state = 0; state < index_of(S::kLost); ++state) {
    at(static_cast<S>(state), I::kAuthorityLost) = {R::kReject, S::kLost};
  }
  at(S::kIdle, I::kConnectionNeeded) = {R::kSearch, S::kSearching};

  for (const S state : {S::kSearching, S::kGreetingSilent, S::kReadySilent}) {
    at(state, I::kConnected) = {R::kAdopt, S::kConnected};
    at(state, I::kAttemptFailed) = {R::kRetry, state};
    at(state, I::kRetryDue) = {R::kConnect, state};
    at(state, I::kLogDue) = {R::kLog, state};
    at(state, I::kSearchExpired) = {R::kGiveUp, S::kLost};
  }
  at(S::kSearching, I::kAttemptRejected) = {R::kReject, S::kLost};

  for (const S state : {S::kConnected, S::kGreeting, S::kReady}) {
    at(state, I::kConnectionLost) = {R::kSearch, S::kSearching};
    at(state, I::kConnectionOver) = {R::kStop, S::kIdle};
  }
  for (const S state : {S::kGreetingSilent, S::kReadySilent}) {
    at(state, I::kConnectionLost) = {R::kKeepSearching, S::kSearching};
    at(state, I::kConnectionOver) = {R::kStop, S::kIdle};
  }

  // A message that arrives before the hello was sent is addressed to no node.
  at(S::kConnected, I::kFactsToSend) = {R::kSendHello, S::kGreeting};

  at(S::kGreeting, I::kMessage) = {R::kReceive, S::kGreeting};
  at(S::kGreeting, I::kClockKnown) = {R::kSendFacts, S::kReady};
  at(S::kGreeting, I::kSilence) = {R::kSearch, S::kGreetingSilent};
  at(S::kGreetingSilent, I::kMessage) = {R::kRecover, S::kGreeting};

  at(S::kReady, I::kMessage) = {R::kReceive, S::kReady};
  at(S::kReady, I::kHeartbeatDue) = {R::kSendHeartbeat, S::kReady};
  at(S::kReady, I::kSilence) = {R::kSearch, S::kReadySilent};
  at(S::kReadySilent, I::kMessage) = {R::kRecover, S::kReady};
  at(S::kReadySilent, I::kHeartbeatDue) = {R::kSendHeartbeat, S::kReadySilent};
  return table;
}

inline constexpr SessionTable kSessionTable = make_session_table();

constexpr const SessionEdge& edge_of(SessionState state, SessionInput input) {
  return kSessionTable[index_of(state)][index_of(input)];
}

static_assert(index_of(SessionState::kLost) + 1 == kSessionStates);
static_assert(index_of(SessionInput::kAuthorityLost) + 1 == kSessionInputs);
static_assert(static_cast<std::size_t>(SessionReaction::kGiveUp) + 1 == kSessionReactions);

}  // namespace elastic::core
