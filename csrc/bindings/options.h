#pragma once

// Constructors whose arguments are options: each is listed once, with the member that it sets. Its
// default is that of the member. Every function requires the GIL.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "bindings/convert.h"
#include "elastic/rendezvous_options.h"

namespace elastic::bindings {

// One argument. Arg: pybind11::arg, or arg_v with a default.
template <typename Options, typename Argument, typename Arg>
struct Option {
  using Value = Argument;
  Arg argument;
  std::function<void(Options*, Argument)> set;
};

template <typename Options, typename Member>
auto required(const char* name, Member Options::*member) {
  return Option<Options, Member, pybind11::arg>{
      pybind11::arg(name),
      [member](Options* made, Member value) { made->*member = std::move(value); }};
}

// `first` and `rest` lead to the member, as in at().
template <typename Options, typename Part, typename... Path>
auto option(const char* name, Part Options::*first, Path... rest) {
  const Options defaults;
  const auto& standard = at(defaults, first, rest...);
  using Member = std::remove_cvref_t<decltype(standard)>;
  return Option<Options, Member, pybind11::arg_v>{
      pybind11::arg_v(name, standard),
      [=](Options* made, Member value) { at(*made, first, rest...) = std::move(value); }};
}

// The member is text for the operating system.
template <typename Options, typename Part, typename... Path>
auto os_option(const char* name, Part Options::*first, Path... rest) {
  const Options defaults;
  return Option<Options, pybind11::str, pybind11::arg_v>{
      pybind11::arg_v(name, from_os(at(defaults, first, rest...))),
      [=](Options* made, const pybind11::str& value) { at(*made, first, rest...) = to_os(value); }};
}

// What `set` does with the value.
template <typename Options, typename Argument, typename Set>
auto option_by(const char* name, pybind11::object standard, Set set) {
  return Option<Options, Argument, pybind11::arg_v>{pybind11::arg_v(name, std::move(standard)),
                                                    std::move(set)};
}

// Among the items of def_init(): options, and what pybind11's def() takes beside them.
template <typename Item>
Item extra_of(Item item) {
  return item;
}
template <typename Options, typename Argument, typename Arg>
Arg extra_of(const Option<Options, Argument, Arg>& item) {
  return item.argument;
}
template <typename Item>
std::tuple<> options_in(const Item&) {
  return {};
}
template <typename Options, typename Argument, typename Arg>
std::tuple<Option<Options, Argument, Arg>> options_in(const Option<Options, Argument, Arg>& item) {
  return {item};
}

template <typename Options, typename Make, typename... Used>
auto constructor(Make make, std::tuple<Used...> used) {
  return pybind11::init(
      [make = std::move(make), used = std::move(used)](typename Used::Value... values) {
        Options made;
        std::apply([&](const auto&... one) { (one.set(&made, std::move(values)), ...); }, used);
        return make(std::move(made));
      });
}

// Defines the constructor, which returns make(options). The options are set in their order.
template <typename Options, typename Class, typename Make, typename... Items>
void def_init(Class* bound, Make make, const Items&... items) {
  bound->def(constructor<Options>(std::move(make), std::tuple_cat(options_in(items)...)),
             extra_of(items)...);
}

}  // namespace elastic::bindings

namespace pybind11::detail {

template <>
struct type_caster<elastic::PortRange> {
  using Pair = std::pair<std::uint16_t, std::uint16_t>;
  PYBIND11_TYPE_CASTER(elastic::PortRange, make_caster<Pair>::name);

  bool load(handle source, bool convert) {
    make_caster<Pair> pair;
    if (!pair.load(source, convert)) return false;
    const auto [first, last] = cast_op<Pair>(pair);
    value = {first, last};
    return true;
  }
  static handle cast(const elastic::PortRange& range, return_value_policy policy, handle parent) {
    return make_caster<Pair>::cast(Pair(range.first, range.last), policy, parent);
  }
};

template <>
struct type_caster<elastic::Endpoint> {
  using Pair = std::pair<std::string, std::uint16_t>;
  PYBIND11_TYPE_CASTER(elastic::Endpoint, make_caster<Pair>::name);

  bool load(handle source, bool convert) {
    make_caster<Pair> pair;
    if (!pair.load(source, convert)) return false;
    auto [host, port] = cast_op<Pair>(std::move(pair));
    value = {std::move(host), port};
    return true;
  }
  static handle cast(const elastic::Endpoint& endpoint, return_value_policy policy, handle parent) {
    return make_caster<Pair>::cast(Pair(endpoint.host, endpoint.port), policy, parent);
  }
};

}  // namespace pybind11::detail
