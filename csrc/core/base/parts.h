#pragma once

// A machine of the launcher as a list of parts. A part is a class with
//
//   using Event = std::variant<...>;  // each type that it receives
//   using Out = std::vector<...>;     // what it asks of the machine
//   void step(const Event& event, Instant now, Out* out);
//   std::optional<Instant> next_deadline() const;
//
// The last one is only of a part that receives Tick, and one that asks for nothing has no Out and a
// step() without it. The machine returns its parts as a std::tie(): the order in which they receive
// an event. What a part receives is what stands in its Event, and nothing that converts to it.

#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include "core/base/earliest.h"
#include "elastic/time.h"

namespace elastic::core {

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

}  // namespace elastic::core
