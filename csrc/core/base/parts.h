#pragma once

// A machine of the launcher as a list of parts. A part is a class with
//
//   using Event = std::variant<...>;  // each type that it receives
//   using Out = std::vector<...>;     // what it asks of the machine
//   void step(const Event& event, Instant now, Out* out);
//   std::optional<Instant> next_deadline() const;
//
// The last one is only of a part that receives PartTick, and one that asks for nothing has no Out
// and a step() without it. What a part receives is what stands in its Event, and nothing that
// converts to it.

#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include "core/base/earliest.h"
#include "elastic/time.h"

namespace elastic::core {

// At next_deadline() of the part.
struct PartTick {};

template <typename One, typename Variant>
inline constexpr bool is_alternative_of = false;
template <typename One, typename... All>
inline constexpr bool is_alternative_of<One, std::variant<All...>> = (std::is_same_v<One, All> ||
                                                                      ...);

template <typename One, typename Other>
struct JoinedVariants;
template <typename... One, typename... Other>
struct JoinedVariants<std::variant<One...>, std::variant<Other...>> {
  using Type = std::variant<One..., Other...>;
};
// The alternatives of both.
template <typename One, typename Other>
using JoinedVariant = typename JoinedVariants<One, Other>::Type;

template <typename Part, typename Event>
concept Receives = is_alternative_of<Event, typename Part::Event>;

template <typename Part>
concept HasDeadline = requires(const Part& part) {
  part.next_deadline();
};

// nullopt: the part has none.
template <typename Part>
std::optional<Instant> deadline_of(const Part& part) {
  if constexpr (HasDeadline<Part>) {
    return part.next_deadline();
  } else {
    return std::nullopt;
  }
}

template <typename Part>
bool is_due(const Part& part, Instant now) {
  const std::optional<Instant> at = deadline_of(part);
  return at && now >= *at;
}

// Of all parts; nullopt: none has one.
template <typename... Parts>
std::optional<Instant> earliest_deadline(const std::tuple<Parts&...>& parts) {
  return std::apply([](const auto&... part) { return earliest({deadline_of(part)...}); }, parts);
}

template <typename Take, typename... Parts>
void for_each_part(const std::tuple<Parts&...>& parts, Take take) {
  std::apply([&](auto&... part) { (take(part), ...); }, parts);
}

// Calls `take(part)` with each part that receives the event, in order. A part must receive it.
template <typename Event, typename Take, typename... Parts>
void for_each_receiver(const std::tuple<Parts&...>& parts, Take take) {
  static_assert((Receives<std::remove_const_t<Parts>, Event> || ...),
                "no part receives this event");
  for_each_part(parts, [&](auto& part) {
    if constexpr (Receives<std::decay_t<decltype(part)>, Event>) take(part);
  });
}

// The base of a machine that has parts. It befriends this class, and has
//
//   template <typename Self> static auto parts_of(Self* machine);  // std::tie(): their order
//   void apply(T action);         // for each type of action that a part asks for
//   void settled(Part* part);     // a part has received an event, and its actions were applied;
//                                 // may be left out
template <typename Machine>
class PartOwner {
 protected:
  // To each part that receives the event.
  template <typename Event>
  void feed(const Event& event) {
    for_each_receiver<Event>(parts(), [&](auto& part) { give(&part, event); });
  }
  // To this part alone.
  template <typename Part, typename Event>
  void give(Part* part, const Event& event) {
    if constexpr (requires { typename Part::Out; }) {
      typename Part::Out actions;
      part->step(event, now_, &actions);
      apply_all(std::move(actions));
    } else {
      part->step(event, now_);
    }
    machine().settled(part);
  }
  // To each part whose deadline has come.
  void feed_ticks() {
    for_each_receiver<PartTick>(parts(), [this](auto& part) {
      if (is_due(part, now_)) give(&part, PartTick{});
    });
  }
  template <typename Out>
  void apply_all(Out actions) {
    for (auto& action : actions) apply_one(std::move(action));
  }
  std::optional<Instant> parts_deadline() const { return earliest_deadline(parts()); }
  template <typename Take>
  void each_part(Take take) {
    for_each_part(parts(), take);
  }
  template <typename Part>
  void settled(Part*) {}

  Instant now_;  // of the step

 private:
  Machine& machine() { return static_cast<Machine&>(*this); }
  auto parts() { return Machine::parts_of(&machine()); }
  auto parts() const { return Machine::parts_of(static_cast<const Machine*>(this)); }
  template <typename... Actions>
  void apply_one(std::variant<Actions...> action) {
    std::visit([this](auto& one) { machine().apply(std::move(one)); }, action);
  }
  template <typename Action>
  void apply_one(Action action) {
    machine().apply(std::move(action));
  }
};

}  // namespace elastic::core
