#include "core/hang/collective_verdict.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/base/describe.h"
#include "core/base/text.h"
#include "core/hang/collective_text.h"

// Theory of operation. Operations of a group have sequence numbers, and every member enters them in
// the same order. A rank waits at its first operation that is not over, for the members whose last
// operation has a lower number; of several groups, in the one in which it has waited for longest. A
// rank that others wait for and that waits for none itself is the cause. If all of these wait as
// well, they wait in a circle: the ranks call operations in different orders. If no rank is behind,
// the operations differ, or nothing completes them.

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
  if (!last || !open || !created || state.group.empty() || *open > *last) return std::nullopt;
  state.last = *last;
  state.open = *open;
  const bool is_waiting = *open > 0 && *created > 0 && *created < wall_now;
  if (is_waiting) state.waiting = std::chrono::nanoseconds(wall_now - *created);
  if (*open == 0) state.operation = state.sizes = "";
  return state;
}

// What one rank shows of one group.
struct Member {
  std::uint64_t last = 0;
  std::uint64_t open = 0;
  const CollectiveState* state = nullptr;
};

struct Group {
  std::string label;
  std::vector<std::int32_t> members;
  std::map<std::int32_t, Member> known;
};

// Where a rank waits.
struct Wait {
  const Group* group = nullptr;
  const CollectiveState* state = nullptr;
};

std::string name_of(const Wait& wait) {
  return wait.state->operation + " #" + std::to_string(wait.state->open) + " of " +
         wait.group->label;
}

class Judge {
 public:
  Judge(const std::vector<CollectiveState>& states, const std::vector<hang::StackGroup>& places)
      : places_(places) {
    for (const CollectiveState& state : states) add(state);
    std::vector<std::int32_t> all;
    for (const hang::StackGroup& place : places) {
      all.insert(all.end(), place.ranks.begin(), place.ranks.end());
    }
    std::sort(all.begin(), all.end());
    for (auto& [name, group] : groups_) {
      if (!group.members.empty()) continue;
      if (name == "0") group.members = all;
      for (const auto& [rank, member] : group.known) group.members.push_back(rank);
      std::sort(group.members.begin(), group.members.end());
      group.members.erase(std::unique(group.members.begin(), group.members.end()),
                          group.members.end());
    }
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
  using Ranks = std::map<std::int32_t, const Group*>;

  void add(const CollectiveState& state) {
    Group& group = groups_[state.group];
    group.label = group_label(state.group, state.description);
    if (group.members.empty()) group.members = ranks_in(state.members);
    for (const std::int32_t rank : ranks_in(state.ranks)) {
      group.known[rank] = {state.last, state.open, &state};
    }
  }

  void find_waits() {
    for (const auto& [name, group] : groups_) {
      for (const auto& [rank, member] : group.known) {
        if (member.open == 0) continue;
        Wait& wait = waits_[rank];
        const bool is_longer = wait.state == nullptr || member.state->waiting > wait.state->waiting;
        if (is_longer) wait = {&group, member.state};
      }
    }
  }

  void find_awaited() {
    std::map<const Group*, std::uint64_t> newest;  // the latest operation in which a rank waits
    for (const auto& [rank, wait] : waits_) {
      newest[wait.group] = std::max(newest[wait.group], wait.state->open);
    }
    for (const auto& [group, sequence] : newest) {
      for (const std::int32_t rank : group->members) {
        const auto known = group->known.find(rank);
        const bool waits = waits_.contains(rank);
        if (known == group->known.end()) {
          if (!waits) silent_.emplace(rank, group);
          if (waits) held_.insert(rank);
        } else if (known->second.last < sequence) {
          if (!waits) behind_.emplace(rank, group);
          if (waits) held_.insert(rank);
        }
      }
    }
  }

  // The first operation of the group, after this one, in which others wait, how many, and since
  // when.
  struct Waiters {
    const CollectiveState* first = nullptr;
    std::size_t count = 0;
    Duration since{};
  };
  Waiters waiters_of(const Group* group, std::uint64_t last) const {
    Waiters found;
    for (const auto& [rank, wait] : waits_) {
      if (wait.group != group || wait.state->open <= last) continue;
      if (found.first == nullptr || wait.state->open < found.first->open) found.first = wait.state;
      found.since = std::max(found.since, wait.state->waiting);
      ++found.count;
    }
    return found;
  }

  std::string place_of(std::int32_t rank) const {
    for (const hang::StackGroup& place : places_) {
      if (place.contains(rank)) return place.label;
    }
    return "";
  }

  // The ranks for which most others wait, in one operation.
  std::optional<CollectiveVerdict> not_entered(const Ranks& missing, std::string_view one,
                                               std::string_view several) const {
    std::map<std::pair<const Group*, std::uint64_t>, std::vector<std::int32_t>> causes;
    for (const auto& [rank, group] : missing) {
      const auto known = group->known.find(rank);
      const std::uint64_t last = known == group->known.end() ? 0 : known->second.last;
      causes[{group, last}].push_back(rank);
    }
    Waiters most;
    const std::vector<std::int32_t>* ranks = nullptr;
    const Group* group = nullptr;
    for (const auto& [where, found] : causes) {
      const Waiters waiters = waiters_of(where.first, where.second);
      const bool is_more = waiters.first != nullptr &&
                           (ranks == nullptr || std::tuple(waiters.count, ranks->front()) >
                                                    std::tuple(most.count, found.front()));
      if (!is_more) continue;
      most = waiters;
      ranks = &found;
      group = where.first;
    }
    if (ranks == nullptr) return std::nullopt;
    const bool is_one = ranks->size() == 1;
    CollectiveVerdict verdict;
    if (is_one) verdict.suspect = ranks->front();
    verdict.causes = *ranks;
    verdict.key = describe_ranks(*ranks) + " " + std::string(is_one ? one : several) + " " +
                  name_of({group, most.first});
    verdict.text = verdict.key + ", for which " + count_text(most.count, "rank") +
                   (most.count == 1 ? " waits since " : " wait since ") + duration_text(most.since);
    if (is_one) verdict.place = place_of(ranks->front());
    if (!verdict.place.empty()) verdict.text += "; it is " + verdict.place;
    return verdict;
  }

  // Everybody who is awaited waits as well.
  std::optional<CollectiveVerdict> circle() const {
    if (held_.empty() || !silent_.empty()) return std::nullopt;
    std::int32_t rank = *held_.begin();
    std::set<std::int32_t> seen;
    while (seen.insert(rank).second) {
      const auto next = awaited_by(rank);
      if (!next) return std::nullopt;
      rank = *next;
    }
    const std::int32_t other = *awaited_by(rank);  // in the circle, as all that it leads to
    CollectiveVerdict verdict;
    verdict.key = verdict.text =
        "rank " + std::to_string(rank) + " waits in " + name_of(waits_.at(rank)) + " for rank " +
        std::to_string(other) + ", which waits in " + name_of(waits_.at(other)) + " for rank " +
        std::to_string(*awaited_by(other)) + ": the ranks call operations in different orders";
    return verdict;
  }

  // The first rank that this one waits for, and that waits itself.
  std::optional<std::int32_t> awaited_by(std::int32_t rank) const {
    const Wait& wait = waits_.at(rank);
    for (const std::int32_t other : wait.group->members) {
      const auto known = wait.group->known.find(other);
      const std::uint64_t last = known == wait.group->known.end() ? 0 : known->second.last;
      if (other != rank && last < wait.state->open && waits_.contains(other)) return other;
    }
    return std::nullopt;
  }

  // Two operations, or sizes, under one number.
  std::optional<CollectiveVerdict> different() const {
    using Key = std::pair<const Group*, std::uint64_t>;
    std::map<Key, std::map<std::string, std::vector<std::int32_t>>> all;
    for (const auto& [rank, wait] : waits_) {
      const CollectiveState& state = *wait.state;
      const bool has_sizes = state.operation == "all_reduce" || state.operation == "broadcast";
      const std::string what = state.operation + (has_sizes ? " of " + state.sizes : "");
      all[{wait.group, state.open}][what].push_back(rank);
    }
    for (const auto& [key, kinds] : all) {
      if (kinds.size() < 2) continue;
      const auto by_count = [](const auto& a, const auto& b) {
        return a.second.size() < b.second.size();
      };
      const auto [fewest, most] = std::minmax_element(kinds.begin(), kinds.end(), by_count);
      const std::size_t total = fewest->second.size() + most->second.size();
      const bool is_known = total >= kMajorityRanks && fewest->second.size() < most->second.size();
      const auto& wrong = is_known ? *fewest : *kinds.begin();
      const auto& right = is_known ? *most : *std::next(kinds.begin());
      CollectiveVerdict verdict;
      if (is_known && wrong.second.size() == 1) verdict.suspect = wrong.second.front();
      verdict.key = verdict.text = describe_ranks(wrong.second) + " called " + wrong.first +
                                   " as #" + std::to_string(key.second) + " of " +
                                   key.first->label + ", and " + describe_ranks(right.second) +
                                   " " + right.first;
      return verdict;
    }
    return std::nullopt;
  }

  CollectiveVerdict not_completed() const {
    const Wait& wait = waits_.begin()->second;
    const Waiters all = waiters_of(wait.group, wait.state->open - 1);
    if (all.count < wait.group->members.size()) return {};
    CollectiveVerdict verdict;
    verdict.key = "all " + count_text(all.count, "rank") + " have entered " + name_of(wait);
    verdict.text = verdict.key + ", and none has completed it since " + duration_text(all.since) +
                   ": the network, or a device, does not";
    return verdict;
  }

  const std::vector<hang::StackGroup>& places_;
  std::map<std::string, Group> groups_;
  std::map<std::int32_t, Wait> waits_;
  Ranks behind_;                 // others wait for them, and they wait for none
  Ranks silent_;                 // others may wait for them, and nothing is known of them
  std::set<std::int32_t> held_;  // others wait for them, and they wait as well
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

CollectiveVerdict judge_collectives(const std::vector<CollectiveState>& states,
                                    const std::vector<hang::StackGroup>& groups) {
  return Judge(states, groups).verdict();
}

}  // namespace elastic::core
