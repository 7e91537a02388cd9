#pragma once

// The transition table of a node's session: what the machine does with each input in each state.
// docs/protocol.md shows the same table.

#include <cstddef>
#include <cstdint>

#include "core/base/transitions.h"

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

constexpr std::size_t index_of(SessionState state) { return static_cast<std::size_t>(state); }
constexpr std::size_t index_of(SessionInput input) { return static_cast<std::size_t>(input); }

struct SessionTable {
  using S = SessionState;
  using I = SessionInput;
  using R = SessionReaction;
  using States = EnumSet<S>;

  static constexpr States kAnyLiving = {S::kIdle,  S::kSearching,      S::kConnected,  S::kGreeting,
                                        S::kReady, S::kGreetingSilent, S::kReadySilent};
  static constexpr States kAnySearching = {S::kSearching, S::kGreetingSilent, S::kReadySilent};
  static constexpr States kAnyConnected = {S::kConnected, S::kGreeting, S::kReady};
  static constexpr States kAnySilent = {S::kGreetingSilent, S::kReadySilent};

  static constexpr Transition<S, I, R> kRows[] = {
      {.in = kAnyLiving, .on = {I::kAuthorityLost}, .run = R::kReject, .next = S::kLost},
      {.in = {S::kIdle}, .on = {I::kConnectionNeeded}, .run = R::kSearch, .next = S::kSearching},

      {.in = kAnySearching, .on = {I::kConnected}, .run = R::kAdopt, .next = S::kConnected},
      {.in = kAnySearching, .on = {I::kAttemptFailed}, .run = R::kRetry},
      {.in = kAnySearching, .on = {I::kRetryDue}, .run = R::kConnect},
      {.in = kAnySearching, .on = {I::kLogDue}, .run = R::kLog},
      {.in = kAnySearching, .on = {I::kSearchExpired}, .run = R::kGiveUp, .next = S::kLost},
      {.in = {S::kSearching}, .on = {I::kAttemptRejected}, .run = R::kReject, .next = S::kLost},

      {.in = kAnyConnected, .on = {I::kConnectionLost}, .run = R::kSearch, .next = S::kSearching},
      {.in = kAnySilent,
       .on = {I::kConnectionLost},
       .run = R::kKeepSearching,
       .next = S::kSearching},
      {.in = kAnyConnected, .on = {I::kConnectionOver}, .run = R::kStop, .next = S::kIdle},
      {.in = kAnySilent, .on = {I::kConnectionOver}, .run = R::kStop, .next = S::kIdle},

      // A message that arrives before the hello was sent is addressed to no node.
      {.in = {S::kConnected}, .on = {I::kFactsToSend}, .run = R::kSendHello, .next = S::kGreeting},
      {.in = {S::kGreeting}, .on = {I::kClockKnown}, .run = R::kSendFacts, .next = S::kReady},

      {.in = {S::kGreeting, S::kReady}, .on = {I::kMessage}, .run = R::kReceive},
      {.in = {S::kReady, S::kReadySilent}, .on = {I::kHeartbeatDue}, .run = R::kSendHeartbeat},
      {.in = {S::kGreeting}, .on = {I::kSilence}, .run = R::kSearch, .next = S::kGreetingSilent},
      {.in = {S::kReady}, .on = {I::kSilence}, .run = R::kSearch, .next = S::kReadySilent},
      {.in = {S::kGreetingSilent}, .on = {I::kMessage}, .run = R::kRecover, .next = S::kGreeting},
      {.in = {S::kReadySilent}, .on = {I::kMessage}, .run = R::kRecover, .next = S::kReady},
  };
};

inline constexpr auto kSessionTable =
    make_transitions<TransitionTable<SessionEdge, kSessionStates, kSessionInputs>>(
        SessionTable::kRows, [](SessionState state, SessionInput) {
          return SessionEdge{SessionReaction::kIgnore, state};
        });

constexpr const SessionEdge& edge_of(SessionState state, SessionInput input) {
  return kSessionTable[index_of(state)][index_of(input)];
}

static_assert(index_of(SessionState::kLost) + 1 == kSessionStates);
static_assert(index_of(SessionInput::kAuthorityLost) + 1 == kSessionInputs);
static_assert(static_cast<std::size_t>(SessionReaction::kGiveUp) + 1 == kSessionReactions);

}  // namespace elastic::core
