// How long the judge of hangs takes for one message, and for its verdict, when all ranks of a large
// job wait in collective operations.
//
//   hang_judge --nodes N
//
// N nodes with eight ranks each, without sockets: the pure machine alone. Prints for each scene
// "<scene> <ns> <ns>": the CPU time of the longest step for a message, and of the longest one that
// gives a verdict.
//
//   one         a rank has not entered an operation of the default group
//   groups      the same, where the ranks of a node and those of the same local rank have groups
//   scattered   every rank is at another operation of the default group
//   circle      each node waits for the next one, in groups of two nodes
//   mismatch    one rank has an operation of another size

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/hang/hang_watch.h"
#include "core/hang/signature.h"

namespace {

using elastic::Instant;
using elastic::NodeId;
using elastic::core::HangAnswer;
using elastic::core::HangEvent;
using elastic::core::HangWatch;
using elastic::hang::CollectiveState;
using elastic::hang::NodeStacks;
namespace round_event = elastic::core::round_event;
namespace hang_event = elastic::core::hang_event;
namespace hang_action = elastic::core::hang_action;

constexpr int kRanks = 8;
constexpr int kLate = 12345;  // the rank for which the others wait, if there are so many

std::int64_t cpu_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

std::string range(int first, int last) {
  return std::to_string(first) + "-" + std::to_string(last);
}

struct Scene {
  const char* name;
  // What the ranks of a node show.
  std::vector<CollectiveState> (*states)(int node, int nodes);
};

CollectiveState state(std::string ranks, std::string group, std::string members, std::uint64_t last,
                      bool is_open) {
  return {.ranks = std::move(ranks),
          .group = std::move(group),
          .description = "",
          .members = std::move(members),
          .last = last,
          .open = is_open ? last : 0,
          .operation = is_open ? "all_reduce" : "",
          .sizes = is_open ? "[[1024]] Float" : "",
          .waiting = std::chrono::seconds(14)};
}

int late_rank(int nodes) { return std::min(kLate, nodes * kRanks - 1); }

std::vector<CollectiveState> one(int node, int nodes) {
  std::vector<CollectiveState> states;
  const std::string members = range(0, nodes * kRanks - 1);
  for (int rank = node * kRanks; rank < (node + 1) * kRanks; ++rank) {
    const bool waits = rank != late_rank(nodes);
    states.push_back(state(std::to_string(rank), "0", members, waits ? 1204 : 1203, waits));
  }
  return states;
}

std::vector<CollectiveState> groups(int node, int nodes) {
  std::vector<CollectiveState> states;
  const bool has_late = node == late_rank(nodes) / kRanks;
  const std::string own = range(node * kRanks, (node + 1) * kRanks - 1);
  for (int i = 0; i < kRanks; ++i) {
    const int rank = node * kRanks + i;
    const std::string name = std::to_string(rank);
    const bool waits = has_late && rank != late_rank(nodes);
    const bool is_late = has_late && !waits;
    states.push_back(state(name, "tp" + std::to_string(node), own, is_late ? 799 : 800, waits));
    // A list of so many members is not sent.
    states.push_back(state(name, "dp" + std::to_string(i), "", has_late ? 99 : 100, !has_late));
    states.push_back(state(name, "0", range(0, nodes * kRanks - 1), 7, false));
  }
  return states;
}

std::vector<CollectiveState> scattered(int node, int nodes) {
  std::vector<CollectiveState> states;
  for (int rank = node * kRanks; rank < (node + 1) * kRanks; ++rank) {
    const auto last = static_cast<std::uint64_t>(rank + 1);
    states.push_back(
        state(std::to_string(rank), "0", range(0, nodes * kRanks - 1), last, rank % 2 == 0));
  }
  return states;
}

std::vector<CollectiveState> circle(int node, int nodes) {
  const int next = (node + 1) % nodes;
  const int before = (node + nodes - 1) % nodes;
  const std::string own = range(node * kRanks, (node + 1) * kRanks - 1);
  const auto members = [&](int one, int other) {
    return range(one * kRanks, one * kRanks + kRanks - 1) + "," +
           range(other * kRanks, other * kRanks + kRanks - 1);
  };
  return {state(own, "pair" + std::to_string(node), members(node, next), 2, true),
          state(own, "pair" + std::to_string(before), members(before, node), 1, false)};
}

class Bench {
 public:
  explicit Bench(int nodes) : nodes_(nodes) {
    for (int node = 0; node < nodes; ++node) {
      step(round_event::Began{id(node), 1, "node" + std::to_string(node)});
    }
  }

  void run(const Scene& scene) {
    for (int node = 0; node < nodes_; ++node) {
      elastic::hang::NodeProgress progress;
      progress.round = 1;
      progress.waiting = kRanks;
      progress.waited = std::chrono::seconds(1);
      note(&message_, step(round_event::Progressed{id(node), progress}));
    }
    // Two looks, and the stacks for the line.
    for (int collection = 0; collection < 3; ++collection) {
      while (!asked_ && watch_.next_deadline()) {
        now_ = std::max(now_, *watch_.next_deadline());
        note(&verdict_, step(elastic::core::PartTick{}));
      }
      if (!asked_) break;
      const std::uint64_t request = std::exchange(asked_, 0);
      for (int node = 0; node < nodes_; ++node) {
        NodeStacks stacks{.request = request, .host = "host" + std::to_string(node), .groups = {}};
        elastic::hang::StackGroup place;
        for (int i = 0; i < kRanks; ++i) {
          place.ranks.push_back(node * kRanks + i);
          stacks.idle.push_back(node * kRanks + i);
        }
        place.kind = elastic::hang::StackGroup::Kind::kWaiting;
        place.label = "in all_reduce (train.py:88)";
        stacks.groups = {place};
        stacks.collectives = scene.states(node, nodes_);
        const std::int64_t used = step(hang_event::StacksReceived{id(node), std::move(stacks)});
        note(node + 1 < nodes_ ? &message_ : &verdict_, used);
      }
    }
    print(scene.name);
  }

  void run_mismatch() {
    std::string usual;
    for (std::uint64_t i = 0; i < elastic::hang::kBlockOperations; ++i) usual += "r0f3a";
    std::string other = usual;
    other.replace(20, 5, "r1111");
    for (int node = 0; node < nodes_; ++node) {
      elastic::hang::NodeSignatures signatures{.round = 1, .sample = 7, .blocks = {}};
      for (int group = 0; group < 16; ++group) {
        for (std::uint64_t block = 0; block < 4; ++block) {
          signatures.blocks.push_back({.ranks = range(node * kRanks, (node + 1) * kRanks - 1),
                                       .group = std::to_string(group),
                                       .description = "",
                                       .first = 64 * block,
                                       .signature = node == nodes_ / 2 ? other : usual});
        }
      }
      note(&message_, step(hang_event::SignaturesReceived{id(node), std::move(signatures)}));
    }
    now_ = *watch_.next_deadline();
    note(&verdict_, step(elastic::core::PartTick{}));
    print("mismatch");
  }

 private:
  static NodeId id(int node) { return {1, static_cast<std::uint64_t>(node) + 1}; }
  static void note(std::int64_t* longest, std::int64_t used) {
    *longest = std::max(*longest, used);
  }

  std::int64_t step(const HangEvent& event) {
    std::vector<HangAnswer> answers;
    const std::int64_t began = cpu_ns();
    watch_.step(event, now_, &answers);
    const std::int64_t used = cpu_ns() - began;
    for (const HangAnswer& answer : answers) {
      if (const auto* ask = std::get_if<hang_action::Ask>(&answer)) asked_ = ask->wanted.request;
      if (const auto* published = std::get_if<hang_action::Publish>(&answer)) {
        std::fprintf(stderr, "%.200s\n", published->verdict.text.c_str());
      }
    }
    return used;
  }

  void print(const char* scene) {
    std::printf("%s %lld %lld\n", scene, static_cast<long long>(message_),
                static_cast<long long>(verdict_));
    std::fflush(stdout);
  }

  const int nodes_;
  HangWatch watch_;
  Instant now_ = Instant{} + std::chrono::hours(1);
  std::uint64_t asked_ = 0;
  std::int64_t message_ = 0;
  std::int64_t verdict_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || std::string_view(argv[1]) != "--nodes" || std::atoi(argv[2]) < 2) {
    std::fprintf(stderr, "usage: hang_judge --nodes N\n");
    return 2;
  }
  const int nodes = std::atoi(argv[2]);
  constexpr Scene kScenes[] = {
      {"one", one}, {"groups", groups}, {"scattered", scattered}, {"circle", circle}};
  for (const Scene& scene : kScenes) Bench(nodes).run(scene);
  Bench(nodes).run_mismatch();
}
