// The transition table of a session: the machine follows it, and docs/protocol.md shows it.

#include "core/session/session_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "core/session/session_machine.h"
#include "core/session/session_machine_harness.h"
#include "elastic/agent.h"

namespace elastic::core {
namespace {

using namespace session_machine_test;
using namespace std::chrono_literals;
using ::testing::Contains;
using ::testing::StartsWith;
using Input = SessionInput;
using Reaction = SessionReaction;
using State = SessionState;

constexpr std::array<std::string_view, kSessionStates> kSessionStateNames = {
    "idle",  "searching",        "connected",     "greeting",
    "ready", "greeting, silent", "ready, silent", "lost"};
constexpr std::array<std::string_view, kSessionInputs> kSessionInputNames = {
    "connection needed", "connected",       "attempt failed",
    "attempt rejected",  "connection lost", "connection lost, nothing left to send",
    "message",           "facts to send",   "coordinator's clock known",
    "heartbeat due",     "silence",         "retry due",
    "log due",           "search expired",  "authority lost"};
constexpr std::array<std::string_view, kSessionReactions> kSessionReactionNames = {
    "ignore",         "search",         "adopt",   "retry",   "reject",
    "keep searching", "stop",           "receive", "recover", "send hello",
    "send facts",     "send heartbeat", "connect", "log",     "give up"};

std::string name_of(Reaction reaction) {
  return std::string(kSessionReactionNames[static_cast<std::size_t>(reaction)]);
}

// Empty cells ignore the input.
std::string table_text() {
  std::string text = "| |";
  for (const std::string_view state : kSessionStateNames) text += " " + std::string(state) + " |";
  text += "\n|---|";
  for (std::size_t i = 0; i < kSessionStates; ++i) text += "---|";
  text += "\n";
  for (std::size_t input = 0; input < kSessionInputs; ++input) {
    text += "| " + std::string(kSessionInputNames[input]) + " |";
    for (std::size_t state = 0; state < kSessionStates; ++state) {
      const SessionEdge& edge = kSessionTable[state][input];
      if (edge.reaction != Reaction::kIgnore) text += " " + name_of(edge.reaction);
      if (edge.next != static_cast<State>(state)) {
        text += " → " + std::string(kSessionStateNames[index_of(edge.next)]);
      }
      text += " |";
    }
    text += "\n";
  }
  return text;
}

TEST(SessionTable, DocumentShowsTheTable) {
  std::ifstream file(ELASTIC_TEST_DOCS "protocol.md");
  std::stringstream page;
  page << file.rdbuf();
  EXPECT_TRUE(page.str().find(table_text()) != std::string::npos)
      << "put this into docs/protocol.md:\n"
      << table_text();
}

TEST(SessionTable, IgnoredInputsKeepTheStateAndALostSessionIgnoresAll) {
  for (std::size_t state = 0; state < kSessionStates; ++state) {
    for (const SessionEdge& edge : kSessionTable[state]) {
      if (edge.reaction == Reaction::kIgnore) {
        EXPECT_EQ(index_of(edge.next), state);
      }
      if (static_cast<State>(state) == State::kLost) {
        EXPECT_EQ(edge.reaction, Reaction::kIgnore);
      }
    }
  }
}

class Session {
 public:
  using Texts = std::vector<std::string>;

  State state() const { return machine_.state(); }
  std::optional<Duration> wait() const {
    const auto next = machine_.next_deadline();
    if (!next) return std::nullopt;
    return *next - now_;
  }

  Texts begin() {
    actions_.clear();
    machine_.begin(now_, &actions_);
    return texts();
  }
  Texts step(const M::Event& event) {
    actions_.clear();
    machine_.step(event, now_, &actions_);
    return texts();
  }
  Texts after(Duration wait) {
    now_ += wait;
    return step(M::Tick{});
  }
  Texts fail_attempt(std::optional<int> exit_code) {
    return step(M::AttemptFailed{Status(StatusCode::kUnavailable, "refused"), exit_code});
  }
  Texts lose_connection() {
    return step(M::ConnectionLost{Status(StatusCode::kUnavailable, "reset by peer")});
  }
  Texts hello() { return step(M::HelloReceived{1, now_}); }
  void join() {
    begin();
    step(M::Connected{});
    step(M::Submit{session_machine_test::join()});
    hello();
    step(M::HeartbeatAcknowledged{last_heartbeat_, now_});
    step(M::Received{rdzv::Waiting{kNode, "for more"}});
  }
  // A resume with a failure waits for the coordinator's clock.
  void resume_with_a_failure() {
    join();
    step(M::Received{round(1)});
    step(M::Submit{rdzv::Failed{kNode, 1, failure_at(now_)}});
    lose_connection();
    step(M::Connected{});
  }
  void bring_about(State state) {
    switch (state) {
      case State::kIdle: break;
      case State::kSearching: begin(); break;
      case State::kConnected:
        begin();
        step(M::Connected{});
        break;
      case State::kGreeting: resume_with_a_failure(); break;
      case State::kReady: join(); break;
      case State::kGreetingSilent:
        resume_with_a_failure();
        after(1s);
        break;
      case State::kReadySilent:
        join();
        after(1s);
        after(1s);
        break;
      case State::kLost:
        begin();
        fail_attempt(kExitRejected);
        break;
    }
    ASSERT_EQ(machine_.state(), state);
  }

  // The actions of the last event that is needed for the input.
  Texts feed(Input input) {
    const bool is_greeted = state() >= State::kGreeting && state() < State::kLost;
    switch (input) {
      case Input::kConnectionNeeded: return begin();
      case Input::kConnected: return step(M::Connected{});
      case Input::kAttemptFailed: return fail_attempt(std::nullopt);
      case Input::kAttemptRejected: return fail_attempt(kExitRejected);
      case Input::kConnectionLost: return lose_connection();
      case Input::kConnectionOver:
        if (is_greeted) {
          step(M::Received{rdzv::Closed{kNode, std::make_shared<const JobResult>()}});
        } else {
          step(M::Submit{rdzv::Leave{kNode, "SIGTERM"}});
        }
        return lose_connection();
      case Input::kMessage: return step(M::Activity{});
      case Input::kFactsToSend: return step(M::Submit{rdzv::Close{kNode, {}}});
      case Input::kClockKnown: return hello();
      case Input::kHeartbeatDue: return after(1s);
      case Input::kSilence:
        if (state() == State::kReady) after(1s);
        return after(1s);
      case Input::kRetryDue: fail_attempt(std::nullopt); return after(*wait());
      case Input::kLogDue: return after(10s);
      case Input::kSearchExpired: return after(600s);
      case Input::kAuthorityLost: return step(M::CoordinatorExpired{"no majority"});
    }
    return {};
  }

 private:
  Texts texts() {
    Texts texts;
    for (const M::Action& action : actions_) {
      if (const auto* sent = std::get_if<M::SendHeartbeat>(&action)) last_heartbeat_ = sent->sent;
      texts.push_back(text_of(action, now_));
    }
    return texts;
  }

  Instant now_ = Instant(1h);
  Instant last_heartbeat_;
  std::vector<M::Action> actions_;
  M machine_{settings(), {"node1:29400"}, 7};
};

void expect_effect(Reaction reaction, const Session& session, const Session::Texts& texts) {
  switch (reaction) {
    case Reaction::kIgnore:
    case Reaction::kKeepSearching:
    case Reaction::kReceive:
    case Reaction::kStop: EXPECT_THAT(texts, ::testing::IsEmpty()); break;
    case Reaction::kSearch:
    case Reaction::kConnect: EXPECT_THAT(texts, Contains("connect")); break;
    case Reaction::kAdopt: EXPECT_TRUE(session.state() >= State::kConnected); break;
    case Reaction::kRetry: EXPECT_LE(session.wait(), 1s); break;
    case Reaction::kReject:
    case Reaction::kGiveUp: EXPECT_THAT(texts, Contains(StartsWith("lost "))); break;
    case Reaction::kRecover: EXPECT_THAT(texts, Contains("cancel attempt")); break;
    case Reaction::kSendHello: EXPECT_THAT(texts, Contains("hello")); break;
    case Reaction::kSendFacts:
    case Reaction::kSendHeartbeat: EXPECT_THAT(texts, Contains("heartbeat")); break;
    case Reaction::kLog: EXPECT_THAT(texts, Contains(StartsWith("log: "))); break;
  }
}

// The state after the input and those that the same event leads to: a new connection sends what
// there is to send, as far as it needs no clock.
State state_after(State state, Input input) {
  const bool has_failure = state == State::kGreeting || state == State::kGreetingSilent;
  const bool has_joined = has_failure || state == State::kReady || state == State::kReadySilent;
  if (input == Input::kClockKnown) state = edge_of(state, Input::kMessage).next;
  State next = edge_of(state, input).next;
  if (input == Input::kConnected && has_joined) next = edge_of(next, Input::kFactsToSend).next;
  if (input == Input::kConnected || input == Input::kFactsToSend) {
    if (!has_failure) next = edge_of(next, Input::kClockKnown).next;
  }
  return next;
}

bool is_timer(Input input) {
  return input == Input::kSilence || input == Input::kHeartbeatDue ||
         (input >= Input::kRetryDue && input <= Input::kSearchExpired);
}

TEST(SessionTable, MachineFollowsTheTable) {
  for (std::size_t i = 0; i < kSessionStates; ++i) {
    for (std::size_t k = 0; k < kSessionInputs; ++k) {
      const auto state = static_cast<State>(i);
      const auto input = static_cast<Input>(k);
      const SessionEdge& edge = edge_of(state, input);
      // Where a timer is ignored, it is not armed.
      if (is_timer(input) && edge.reaction == Reaction::kIgnore) continue;
      SCOPED_TRACE(std::string(kSessionInputNames[k]) + " in the state " +
                   std::string(kSessionStateNames[i]));
      Session session;
      session.bring_about(state);
      if (::testing::Test::HasFatalFailure()) return;
      const Session::Texts texts = session.feed(input);
      EXPECT_EQ(session.state(), state_after(state, input));
      if (edge.reaction != Reaction::kIgnore) expect_effect(edge.reaction, session, texts);
    }
  }
}

}  // namespace
}  // namespace elastic::core
