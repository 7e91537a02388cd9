#include "core/hang/collective_verdict.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/base/describe.h"
#include "core/base/text.h"
#include "core/hang/collective_text.h"
#include "core/hang/signature.h"

// Theory of operation. Operations of a group have sequence numbers, and every member enters them in
// the same order. A rank waits at its first operation that is not over, for the members whose last
// operation has a lower number; of several groups, in the one in which it has waited for longest. A
// rank that others wait for and that waits for none itself is the cause. If all of these wait as
// well, they wait in a circle: the ranks call operations in different orders. If no rank is behind,
// the operations differ, or their sizes or types, or nothing completes them. Sizes are compared
// only where all ranks must have them in common (core/hang/signature.h).
//
// All ranks of a large job may wait. What a message brings is sorted into its groups at once; the
// verdict walks through sorted lists, so that its time grows with the number of ranks and groups,
// not with their product.

namespace elastic::core {
namespace {

using hang::CollectiveState;

std::optional<CollectiveState> state_of(std::string_view line, std::int64_t wall_now) {
  CollectiveState state;
  state.group = to_printable(take_field(&line), Lines::kOne, hang::kCollectiveTextMax);
  state.description = to_printable(take_field(&line), Lines::kOne, hang::kCollectiveTextMax);
  const auto last = number_of<std::uint64_t>(take_field(&line));
  const auto open = number_of<std::uint64_t>(take_field(&line));
  const auto created = number_of<std::int64_t>(take_field(&line));
  state.operation = to_printable(take_field(&line), Lines::kOne, hang::kCollectiveTextMax);
  state.sizes = to_printable(take_field(&line), Lines::kOne, hang::kCollectiveTextMax);
  const bool is_named = !state.group.empty() || state.operation == hang::kRecorderOff ||
                        state.operation == hang::kNoRecorder;
  if (!last || !open || !created || !is_named || *open > *last) return std::nullopt;
  state.last = *last;
  state.open = *open;
  const bool is_waiting = *open > 0 && *created > 0 && *created < wall_now;
  if (is_waiting) state.waiting = std::chrono::nanoseconds(wall_now - *created);
  return state;
}

struct Operation {
  std::string name;
  std::string sizes;

  auto operator<=>(const Operation&) const = default;
};

bool has_common_size(const Operation& operation) {
  return hang::find_signed_operation(operation.name.c_str()) != nullptr;
}

// "[[4,2]] Float" and "8 elements Float", in parts.
struct Size {
  std::string_view shape;
  std::string_view type;
};
Size size_of(const Operation& operation) {
  const std::string_view text = operation.sizes;
  constexpr std::string_view kElements = " elements ";
  const std::size_t counted = text.find(kElements);
  if (counted != text.npos) {
    return {text.substr(0, counted + kElements.size() - 1),
            text.substr(counted + kElements.size())};
  }
  const std::size_t end = text.find(' ');
  return {text.substr(0, end), end == text.npos ? "" : text.substr(end + 1)};
}

// The number of elements of "[[4,2]]" or "8 elements".
std::optional<std::uint64_t> elements_of(std::string_view shape) {
  if (!shape.starts_with("[[")) return number_of<std::uint64_t>(shape.substr(0, shape.find(' ')));
  if (!shape.ends_with("]]")) return std::nullopt;
  shape = shape.substr(2, shape.size() - 4);
  std::uint64_t elements = 1;
  while (!shape.empty()) {
    const std::size_t end = std::min(shape.find(','), shape.size());
    const auto size = number_of<std::uint64_t>(shape.substr(0, end));
    if (!size) return std::nullopt;
    elements *= *size;
    shape.remove_prefix(std::min(end + 1, shape.size()));
  }
  return elements;
}

// What all ranks must have in common; nullopt: they may differ, or it is unknown.
using Common = std::pair<std::uint64_t, std::string_view>;
std::optional<Common> common_of(const Operation& operation) {
  const Size size = size_of(operation);
  const auto elements = elements_of(size.shape);
  if (!has_common_size(operation) || size.type.empty() || !elements) return std::nullopt;
  return Common(*elements, size.type);
}

// What one rank shows of one group, as in CollectiveState.
struct Known {
  std::int32_t rank = 0;
  std::uint64_t last = 0;
  std::uint64_t open = 0;
  Duration waiting{};
  const Operation* operation = nullptr;
};

// A rank that waits in the group.
struct Waiter {
  std::uint64_t open = 0;
  std::int32_t rank = 0;
  const Operation* operation = nullptr;
  Duration longest{};  // of this one and those behind it
};

// A member of the group that waits, in any group.
struct Held {
  std::int32_t rank = 0;
  std::uint64_t least =
      0;  // the fewest operations of the group that it or one before it has entered
};

struct Group {
  std::string label;
  std::vector<std::int32_t> members;  // unless all are known, those that are seen in it
  bool are_all_known = true;
  std::set<Operation> operations;
  std::vector<Known> known;  // by rank
  std::vector<Known> over;   // by their last operation: those that wait in none
  std::size_t num_waiters = 0;
  std::vector<Waiter> waiters;  // by operation and rank
  std::vector<Held> held;       // in the order of members
};

// Where a rank waits.
struct Wait {
  std::int32_t rank = 0;
  Group* group = nullptr;
  std::uint64_t open = 0;
  Duration waiting{};
  const Operation* operation = nullptr;
};

// A rank for which others wait, and in which group.
struct Awaited {
  std::int32_t rank = 0;
  const Group* group = nullptr;
  std::uint64_t last = 0;  // the last operation of the group that it has entered
};

// Most lists are in order already, and a stable sort takes memory for another one.
template <typename Key, typename Item>
void sort_by(Key key, std::vector<Item>* items) {
  if (!std::ranges::is_sorted(*items, {}, key)) std::ranges::stable_sort(*items, {}, key);
}

// The first item that is of this rank or a later one; usually it is near.
template <typename Iterator>
Iterator skip_to(std::int32_t rank, Iterator from, Iterator end) {
  if (from != end && from->rank < rank) ++from;
  if (from == end || from->rank >= rank) return from;
  return std::lower_bound(from, end, rank,
                          [](const auto& one, std::int32_t wanted) { return one.rank < wanted; });
}

template <typename Items, typename Rank>
auto find_rank(const Items& items, Rank rank) -> decltype(&items.front()) {
  const auto found =
      std::ranges::lower_bound(items, rank, {}, [](const auto& one) { return one.rank; });
  return found == items.end() || found->rank != rank ? nullptr : &*found;
}

std::string name_of(const Operation& operation, std::uint64_t number, const Group& group) {
  return operation.name + " #" + std::to_string(number) + " of " + group.label;
}
std::string name_of(const Wait& wait) { return name_of(*wait.operation, wait.open, *wait.group); }

}  // namespace

struct CollectiveJudge::Evidence {
  // By name, for a verdict that does not depend on the order of messages.
  std::map<std::string, Group, std::less<>> groups;
  std::vector<std::int32_t> unseen;  // ranks whose operations are not seen
  bool is_switched_off = false;      // on one of them
};

namespace {

class Judge {
 public:
  Judge(std::map<std::string, Group, std::less<>>* groups,
        const std::vector<hang::StackGroup>& places)
      : groups_(*groups), places_(places) {
    for (auto& [name, group] : groups_) complete(name, &group);
    find_waits();
    find_awaited();
  }

  CollectiveVerdict verdict() const {
    if (waits_.empty()) return {};
    if (auto found = not_entered(behind_, "has not entered", "have not entered")) return *found;
    if (auto found = circle()) return *found;
    if (auto found = different()) return *found;
    if (auto found = not_entered(silent_, "is not seen in", "are not seen in")) {
      return *found;
    }
    return not_completed();
  }

 private:
  // Sorts what the messages have brought. A later message about a rank replaces the former one.
  void complete(const std::string& name, Group* group) {
    std::vector<Known>& known = group->known;
    sort_by(&Known::rank, &known);
    std::size_t kept = 0;
    for (const Known& one : known) {
      const bool is_again = kept > 0 && known[kept - 1].rank == one.rank;
      known[is_again ? kept - 1 : kept++] = one;
    }
    known.resize(kept);
    // Of other versions of the worker's library it is another operation, without a type. Most ranks
    // have the same one.
    group->over.reserve(known.size());
    const Operation* checked = nullptr;
    bool has_common = false;
    for (const Known& one : known) {
      if (one.open != 0) {
        ++num_open_;
        continue;
      }
      if (std::exchange(checked, one.operation) != one.operation) {
        has_common = common_of(*one.operation).has_value();
      }
      if (has_common) group->over.push_back(one);
    }
    sort_by(&Known::last, &group->over);
    if (!std::ranges::is_sorted(group->members)) std::ranges::sort(group->members);
    if (!group->members.empty()) return;
    group->are_all_known = name == "0" && !places_.empty();
    if (name == "0") {
      for (const hang::StackGroup& place : places_) {
        group->members.insert(group->members.end(), place.ranks.begin(), place.ranks.end());
      }
    }
    for (const Known& one : known) group->members.push_back(one.rank);
    std::ranges::sort(group->members);
    group->members.erase(std::unique(group->members.begin(), group->members.end()),
                         group->members.end());
  }

  // Of several groups a rank waits in the one in which it has waited for longest.
  void find_waits() {
    waits_.reserve(num_open_);
    for (auto& [name, group] : groups_) {
      for (const Known& one : group.known) {
        if (one.open == 0) continue;
        waits_.push_back({one.rank, &group, one.open, one.waiting, one.operation});
      }
    }
    sort_by(&Wait::rank, &waits_);
    std::size_t kept = 0;
    for (const Wait& wait : waits_) {
      const bool is_same = kept > 0 && waits_[kept - 1].rank == wait.rank;
      if (is_same && wait.waiting <= waits_[kept - 1].waiting) continue;
      waits_[is_same ? kept - 1 : kept++] = wait;
    }
    waits_.resize(kept);
    for (const Wait& wait : waits_) ++wait.group->num_waiters;
    for (auto& [name, group] : groups_) group.waiters.reserve(group.num_waiters);
    for (const Wait& wait : waits_) {
      wait.group->waiters.push_back({wait.open, wait.rank, wait.operation, wait.waiting});
    }
  }

  void find_awaited() {
    for (auto& [name, group] : groups_) {
      if (group.waiters.empty()) continue;
      sort_by(&Waiter::open, &group.waiters);
      for (std::size_t i = group.waiters.size() - 1; i > 0; --i) {
        Duration& longest = group.waiters[i - 1].longest;
        longest = std::max(longest, group.waiters[i].longest);
      }
      add_awaited(&group, group.waiters.back().open);
    }
    sort_by(&Awaited::rank, &behind_);
    sort_by(&Awaited::rank, &silent_);
    const auto is_same = [](const Awaited& one, const Awaited& other) {
      return one.rank == other.rank;
    };
    behind_.erase(std::unique(behind_.begin(), behind_.end(), is_same), behind_.end());
    silent_.erase(std::unique(silent_.begin(), silent_.end(), is_same), silent_.end());
  }

  // The members of the group that have not entered this operation, the latest in which a rank
  // waits.
  void add_awaited(Group* group, std::uint64_t newest) {
    group->held.reserve(group->members.size());
    auto known = group->known.begin();
    auto wait = waits_.begin();
    for (const std::int32_t rank : group->members) {
      known = skip_to(rank, known, group->known.end());
      wait = skip_to(rank, wait, waits_.end());
      const bool is_known = known != group->known.end() && known->rank == rank;
      const bool waits = wait != waits_.end() && wait->rank == rank;
      const std::uint64_t last = is_known ? known->last : 0;
      if (waits) {
        const std::uint64_t least = group->held.empty() ? last : group->held.back().least;
        group->held.push_back({rank, std::min(least, last)});
      }
      if (is_known && last >= newest) continue;
      if (waits) {
        first_held_ = std::min(first_held_.value_or(rank), rank);
      } else {
        (is_known ? behind_ : silent_).push_back({rank, group, last});
      }
    }
  }

  // The first operation of the group, after this one, in which others wait, how many, and since
  // when.
  struct Waiters {
    const Waiter* first = nullptr;
    std::size_t count = 0;
    Duration since{};
  };
  static Waiters waiters_of(const Group* group, std::uint64_t last) {
    const auto first = std::ranges::upper_bound(group->waiters, last, {}, &Waiter::open);
    if (first == group->waiters.end()) return {};
    return {&*first, static_cast<std::size_t>(group->waiters.end() - first), first->longest};
  }

  std::string place_of(std::int32_t rank) const {
    for (const hang::StackGroup& place : places_) {
      if (place.contains(rank)) return place.label;
    }
    return "";
  }

  // Of several ranks that have not entered, those that wait elsewhere, as in recv, wait for a rank:
  // the one that does not wait is the cause.
  void add_waiting_causes(const std::vector<std::int32_t>& ranks,
                          CollectiveVerdict* verdict) const {
    std::vector<std::int32_t> working = ranks;
    std::string text;
    for (const hang::StackGroup& place : places_) {
      if (place.kind != hang::StackGroup::Kind::kWaiting) continue;
      std::vector<std::int32_t> waiting;
      std::ranges::set_intersection(place.ranks, ranks, std::back_inserter(waiting));
      if (waiting.empty()) continue;
      std::erase_if(working,
                    [&](std::int32_t rank) { return std::ranges::binary_search(waiting, rank); });
      if (text.empty()) {
        text = "; " + describe_ranks(waiting) + (waiting.size() == 1 ? " is " : " are ");
        text += place.label;
      }
    }
    verdict->text += text;
    if (text.empty() || working.size() != 1) return;
    verdict->suspect = working.front();
    verdict->place = place_of(working.front());
    verdict->text += "; " + describe_ranks(working) + " is " + verdict->place;
  }

  // The ranks for which most others wait, in one operation.
  std::optional<CollectiveVerdict> not_entered(const std::vector<Awaited>& missing,
                                               std::string_view one,
                                               std::string_view several) const {
    std::vector<Awaited> causes = missing;  // those with one group and operation together
    std::ranges::stable_sort(causes, [](const Awaited& left, const Awaited& right) {
      return std::pair(left.group, left.last) < std::pair(right.group, right.last);
    });
    Waiters most;
    auto begin = causes.end();
    auto end = causes.end();
    for (auto from = causes.begin(); from != causes.end();) {
      auto to = from;
      while (to != causes.end() && to->group == from->group && to->last == from->last) ++to;
      const Waiters waiters = waiters_of(from->group, from->last);
      const bool is_more = waiters.first != nullptr &&
                           (begin == causes.end() || std::tuple(waiters.count, begin->rank) >
                                                         std::tuple(most.count, from->rank));
      if (is_more) {
        most = waiters;
        begin = from;
        end = to;
      }
      from = to;
    }
    if (begin == causes.end()) return std::nullopt;
    std::vector<std::int32_t> ranks;
    for (auto at = begin; at != end; ++at) ranks.push_back(at->rank);
    const bool is_one = ranks.size() == 1;
    CollectiveVerdict verdict;
    if (is_one) verdict.suspect = ranks.front();
    verdict.key = describe_ranks(ranks) + " " + std::string(is_one ? one : several) + " " +
                  name_of(*most.first->operation, most.first->open, *begin->group);
    verdict.text = verdict.key + ", for which " + count_text(most.count, "rank") +
                   (most.count == 1 ? " waits since " : " wait since ") + duration_text(most.since);
    if (is_one) verdict.place = place_of(ranks.front());
    if (!verdict.place.empty()) verdict.text += "; it is " + verdict.place;
    if (!is_one) add_waiting_causes(ranks, &verdict);
    verdict.causes = std::move(ranks);
    return verdict;
  }

  // Everybody who is awaited waits as well.
  std::optional<CollectiveVerdict> circle() const {
    if (!first_held_ || !silent_.empty()) return std::nullopt;
    std::int32_t rank = *first_held_;
    std::set<std::int32_t> seen;
    while (seen.insert(rank).second) {
      const auto next = awaited_by(rank);
      if (!next) return std::nullopt;
      rank = *next;
    }
    const std::int32_t other = *awaited_by(rank);  // in the circle, as all that it leads to
    CollectiveVerdict verdict;
    verdict.key = verdict.text =
        "rank " + std::to_string(rank) + " waits in " + name_of(*find_rank(waits_, rank)) +
        " for rank " + std::to_string(other) + ", which waits in " +
        name_of(*find_rank(waits_, other)) + " for rank " + std::to_string(*awaited_by(other)) +
        ": the ranks call operations in different orders";
    return verdict;
  }

  // The first rank that this one waits for, and that waits itself. The rank itself has entered the
  // operation.
  std::optional<std::int32_t> awaited_by(std::int32_t rank) const {
    const Wait& wait = *find_rank(waits_, rank);
    const std::vector<Held>& held = wait.group->held;
    const auto found = std::partition_point(
        held.begin(), held.end(), [&](const Held& one) { return one.least >= wait.open; });
    if (found == held.end()) return std::nullopt;
    return found->rank;
  }

  // A rank that has entered an operation, and its operation.
  using Entered = std::pair<std::int32_t, const Operation*>;

  // Calls use(rank, operation) for those that wait in this operation, and for those that have
  // entered no later one.
  template <typename Use>
  static void for_each_entered(const Group& group, std::uint64_t number, Use use) {
    auto waiter = std::ranges::lower_bound(group.waiters, number, {}, &Waiter::open);
    for (; waiter != group.waiters.end() && waiter->open == number; ++waiter) {
      use(waiter->rank, waiter->operation);
    }
    auto over = std::ranges::lower_bound(group.over, number, {}, &Known::last);
    for (; over != group.over.end() && over->last == number; ++over) {
      use(over->rank, over->operation);
    }
  }

  // Two operations, or sizes, under one number.
  std::optional<CollectiveVerdict> different() const {
    for (const auto& [name, group] : groups_) {
      for (auto from = group.waiters.begin(); from != group.waiters.end();) {
        const std::uint64_t number = from->open;
        if (auto found = different(group, number)) return found;
        from = std::ranges::upper_bound(from, group.waiters.end(), number, {}, &Waiter::open);
      }
    }
    return std::nullopt;
  }

  static std::optional<CollectiveVerdict> different(const Group& group, std::uint64_t number) {
    const Operation* first = nullptr;
    bool are_equal = true;
    for_each_entered(group, number, [&](std::int32_t, const Operation* operation) {
      if (first == nullptr) first = operation;
      are_equal &= operation == first;
    });
    if (are_equal) return std::nullopt;
    std::vector<Entered> all;
    for_each_entered(group, number, [&](std::int32_t rank, const Operation* operation) {
      all.emplace_back(rank, operation);
    });
    std::ranges::sort(all);
    std::map<std::string, std::vector<Entered>> names;
    std::map<Common, std::vector<Entered>> sizes;
    for (const Entered& one : all) names[one.second->name].push_back(one);
    if (names.size() > 1) return minority(names, group, number, false);
    for (const Entered& one : all) {
      const auto common = common_of(*one.second);
      if (!common) return std::nullopt;
      sizes[*common].push_back(one);
    }
    if (sizes.size() < 2) return std::nullopt;
    const std::uint64_t elements = sizes.begin()->first.first;
    const bool is_type =
        std::ranges::all_of(sizes, [&](const auto& one) { return one.first.first == elements; });
    return minority(sizes, group, number, is_type);
  }

  static std::string what(const Operation& operation, bool has_type) {
    const Size size = size_of(operation);
    std::string text = operation.name;
    if (has_common_size(operation) && !size.shape.empty()) text += " of " + std::string(size.shape);
    if (has_type) text += " " + std::string(size.type);
    return text;
  }

  template <typename Kind>
  static CollectiveVerdict minority(const std::map<Kind, std::vector<Entered>>& kinds,
                                    const Group& group, std::uint64_t number, bool has_type) {
    const auto by_count = [](const auto& a, const auto& b) {
      return a.second.size() < b.second.size();
    };
    const auto [fewest, most] = std::minmax_element(kinds.begin(), kinds.end(), by_count);
    const std::size_t total = fewest->second.size() + most->second.size();
    const bool is_known = total >= kMajorityRanks && fewest->second.size() < most->second.size();
    const auto& wrong = is_known ? fewest->second : kinds.begin()->second;
    const auto& right = is_known ? most->second : std::next(kinds.begin())->second;
    const auto ranks_of = [](const std::vector<Entered>& some) {
      std::vector<std::int32_t> ranks;
      for (const auto& [rank, operation] : some) ranks.push_back(rank);
      return describe_ranks(ranks);
    };
    CollectiveVerdict verdict;
    if (is_known && wrong.size() == 1) verdict.suspect = wrong.front().first;
    verdict.key = verdict.text = ranks_of(wrong) + " called " +
                                 what(*wrong.front().second, has_type) + " as #" +
                                 std::to_string(number) + " of " + group.label + ", and " +
                                 ranks_of(right) + " " + what(*right.front().second, has_type);
    return verdict;
  }

  // All members of a group have entered the first operation in which ranks wait.
  CollectiveVerdict not_completed() const {
    const Group& group = *waits_.front().group;
    const Waiter& first = group.waiters.front();
    const Waiters all = waiters_of(&group, first.open - 1);
    std::vector<std::int32_t> waiting;
    for (const Waiter& one : group.waiters) {
      if (one.open == first.open) waiting.push_back(one.rank);
    }
    std::vector<std::int32_t> over;
    auto next = waiting.begin();
    for (const Known& one : group.known) {
      while (next != waiting.end() && *next < one.rank) ++next;
      const bool waits = next != waiting.end() && *next == one.rank;
      if (one.last >= first.open && !waits) over.push_back(one.rank);
    }
    if (!group.are_all_known || waiting.size() + over.size() < group.members.size()) return {};
    const std::string operation = name_of(*first.operation, first.open, group);
    CollectiveVerdict verdict;
    if (over.empty()) {
      verdict.key = "all " + count_text(all.count, "rank") + " have entered " + operation;
      verdict.text = verdict.key + ", and none has completed it since " + duration_text(all.since) +
                     ": the network, or a device, does not";
      return verdict;
    }
    verdict.key = describe_ranks(waiting) + (waiting.size() == 1 ? " waits in " : " wait in ") +
                  operation + ", which is over on " + describe_ranks(over);
    verdict.text = verdict.key + ": the sizes differ, or a connection has failed";
    return verdict;
  }

  std::map<std::string, Group, std::less<>>& groups_;
  const std::vector<hang::StackGroup>& places_;
  std::size_t num_open_ = 0;                // operations that are not over
  std::vector<Wait> waits_;                 // by rank
  std::vector<Awaited> behind_;             // by rank: others wait for them, and they wait for none
  std::vector<Awaited> silent_;             // likewise: nothing is known of them
  std::optional<std::int32_t> first_held_;  // the first rank for which others wait, and that waits
};

}  // namespace

std::vector<CollectiveState> collective_states(const std::vector<WorkerEvidence>& workers,
                                               std::int64_t wall_now) {
  using Key = std::tuple<std::string, std::uint64_t, std::uint64_t, std::string, std::string>;
  std::map<Key, std::pair<CollectiveState, std::vector<std::int32_t>>> all;
  for (const WorkerEvidence& worker : workers) {
    const auto members = members_of_groups(worker.groups);
    std::string_view text = worker.collectives;
    while (!text.empty()) {
      auto state = state_of(take_line(&text), wall_now);
      if (!state) continue;
      if (const auto found = members.find(state->group); found != members.end()) {
        state->members = to_printable(found->second, Lines::kOne, hang::kRanksTextMax);
      }
      const Key key = {state->group, state->last, state->open, state->operation, state->sizes};
      if (!all.contains(key) && all.size() == hang::kCollectivesMax) continue;
      auto& [joined, ranks] = all[key];
      state->waiting = std::max(state->waiting, joined.waiting);
      joined = *std::move(state);
      ranks.push_back(worker.rank);
    }
  }
  std::vector<CollectiveState> states;
  for (auto& [key, one] : all) {
    std::sort(one.second.begin(), one.second.end());
    one.first.ranks = list_ranks(one.second);
    states.push_back(std::move(one.first));
  }
  return states;
}

CollectiveJudge::CollectiveJudge() : evidence_(std::make_unique<Evidence>()) {}
CollectiveJudge::CollectiveJudge(CollectiveJudge&&) noexcept = default;
CollectiveJudge& CollectiveJudge::operator=(CollectiveJudge&&) noexcept = default;
CollectiveJudge::~CollectiveJudge() = default;

void CollectiveJudge::add(const CollectiveState& state) {
  if (state.group.empty()) {
    const std::vector<std::int32_t> ranks = ranks_in(state.ranks);
    evidence_->unseen.insert(evidence_->unseen.end(), ranks.begin(), ranks.end());
    evidence_->is_switched_off |= state.operation == hang::kRecorderOff;
    return;
  }
  Group& group = evidence_->groups[state.group];
  if (group.label.empty()) group.label = group_label(state.group, state.description);
  if (group.members.empty()) group.members = ranks_in(state.members);
  const Operation* const operation =
      &*group.operations.insert({state.operation, state.sizes}).first;
  for (const std::int32_t rank : ranks_in(state.ranks)) {
    group.known.push_back({rank, state.last, state.open, state.waiting, operation});
  }
}

CollectiveVerdict CollectiveJudge::verdict(const std::vector<hang::StackGroup>& places) {
  CollectiveVerdict found = Judge(&evidence_->groups, places).verdict();
  std::vector<std::int32_t>& unseen = evidence_->unseen;
  if (unseen.empty()) return found;
  std::ranges::sort(unseen);
  found.blindness = "the collective operations of " + describe_ranks(unseen) +
                    " are not seen: torch's flight recorder is ";
  found.blindness +=
      evidence_->is_switched_off ? "off (TORCH_FR_BUFFER_SIZE=0)" : "not in this version of torch";
  return found;
}

CollectiveVerdict judge_collectives(const std::vector<CollectiveState>& states,
                                    const std::vector<hang::StackGroup>& groups) {
  CollectiveJudge judge;
  for (const CollectiveState& state : states) judge.add(state);
  return judge.verdict(groups);
}

}  // namespace elastic::core
