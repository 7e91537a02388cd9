#pragma once

// The table of a state machine, built at compile time from rows. Each row names states, inputs,
// what is done, and the next state, so that a machine reads as a list of rules:
//
//   {.in = {kIdle, kBusy}, .on = {kStop}, .run = &Machine::stop, .next = kStopping},

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <tuple>

#include "core/base/check.h"

namespace elastic::core {

// Some of the at most 64 values of an enumeration.
template <typename Enum>
class EnumSet {
 public:
  constexpr EnumSet(std::initializer_list<Enum> members) {
    for (const Enum one : members) bits_ |= bit(one);
  }
  constexpr bool has(Enum one) const { return (bits_ & bit(one)) != 0; }

 private:
  static constexpr std::uint64_t bit(Enum one) {
    return std::uint64_t{1} << static_cast<unsigned>(one);
  }
  std::uint64_t bits_ = 0;
};

template <typename State, typename Input, typename Run>
struct Transition {
  EnumSet<State> in;
  EnumSet<Input> on;
  Run run{};                       // what is done; the default: nothing
  std::optional<State> next = {};  // nullopt: the same state
};

template <typename Edge, std::size_t kStates, std::size_t kInputs>
using TransitionTable = std::array<std::array<Edge, kInputs>, kStates>;

// `Edge` has two members at the beginning: what is done, and the next state. `other(state, input)`
// gives the edge of a pair without a row. A pair with two rows does not compile.
template <typename Table, typename State, typename Input, typename Run, std::size_t kRows,
          typename Other>
constexpr Table make_transitions(const Transition<State, Input, Run> (&rows)[kRows],
                                 const Other& other) {
  Table table{};
  static_assert(std::tuple_size_v<Table> <= 64);
  for (std::size_t i = 0; i < table.size(); ++i) {
    for (std::size_t j = 0; j < table[i].size(); ++j) {
      const auto state = static_cast<State>(i);
      const auto input = static_cast<Input>(j);
      const Transition<State, Input, Run>* found = nullptr;
      for (const Transition<State, Input, Run>& row : rows) {
        if (!row.in.has(state) || !row.on.has(input)) continue;
        ELASTIC_CHECK(found == nullptr);
        found = &row;
      }
      table[i][j] = other(state, input);
      if (found != nullptr) table[i][j] = {found->run, found->next.value_or(state)};
    }
  }
  return table;
}

// A table of what is done alone: its rows name no next state. `other`: of a pair without a row.
template <std::size_t kStates, std::size_t kInputs, typename State, typename Input, typename Run,
          std::size_t kRows>
constexpr auto make_responses(const Transition<State, Input, Run> (&rows)[kRows], Run other) {
  struct Edge {
    Run run;
    State next;
  };
  const auto edges =
      make_transitions<TransitionTable<Edge, kStates, kInputs>>(rows, [other](State state, Input) {
        return Edge{other, state};
      });
  std::array<std::array<Run, kInputs>, kStates> table{};
  for (std::size_t i = 0; i < kStates; ++i) {
    for (std::size_t j = 0; j < kInputs; ++j) table[i][j] = edges[i][j].run;
  }
  return table;
}

}  // namespace elastic::core
