#include "core/base/transitions.h"

#include <gtest/gtest.h>

namespace elastic::core {
namespace {

enum class State : std::uint8_t { kIdle, kBusy };
enum class Input : std::uint8_t { kStart, kTick, kStop };
enum class Output : std::uint8_t { kNothing, kBegin, kLog, kFault };
struct Edge {
  Output output = Output::kNothing;
  State next = State::kIdle;
};

constexpr Transition<State, Input, Output> kRows[] = {
    {.in = {State::kIdle}, .on = {Input::kStart}, .run = Output::kBegin, .next = State::kBusy},
    {.in = {State::kIdle, State::kBusy}, .on = {Input::kTick}, .run = Output::kLog},
    {.in = {State::kBusy}, .on = {Input::kStop}, .next = State::kIdle},
};
constexpr auto kTable =
    make_transitions<TransitionTable<Edge, 2, 3>>(kRows, [](State state, Input) {
      return Edge{Output::kFault, state};
    });

constexpr Edge edge(State state, Input input) {
  return kTable[static_cast<std::size_t>(state)][static_cast<std::size_t>(input)];
}

TEST(Transitions, ARowIsForEachPairOfItsStatesAndInputs) {
  EXPECT_EQ(edge(State::kIdle, Input::kStart).output, Output::kBegin);
  EXPECT_EQ(edge(State::kIdle, Input::kStart).next, State::kBusy);
  for (const State state : {State::kIdle, State::kBusy}) {
    EXPECT_EQ(edge(state, Input::kTick).output, Output::kLog);
    EXPECT_EQ(edge(state, Input::kTick).next, state);
  }
  EXPECT_EQ(edge(State::kBusy, Input::kStop).output, Output::kNothing);
  EXPECT_EQ(edge(State::kBusy, Input::kStop).next, State::kIdle);
}

TEST(Transitions, APairWithoutARowIsTheOthers) {
  EXPECT_EQ(edge(State::kBusy, Input::kStart).output, Output::kFault);
  EXPECT_EQ(edge(State::kIdle, Input::kStop).output, Output::kFault);
}

}  // namespace
}  // namespace elastic::core
