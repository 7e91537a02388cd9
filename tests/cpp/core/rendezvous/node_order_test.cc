#include "core/rendezvous/rank_assign.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "core/base/random.h"

namespace elastic::core {
namespace {

TEST(NodeOrder, ComparesNumbersByValue) {
  const std::vector<std::string> expected = {"",       "10.0.0.9_5_0", "10.0.0.10_3_0", "a1",
                                             "a01x",   "a2",           "node2",         "node2a",
                                             "node10", "node10_2",     "node10_10",     "x000"};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    for (std::size_t j = 0; j < expected.size(); ++j) {
      const int by = compare_natural(expected[i], expected[j]);
      EXPECT_EQ(by < 0, i < j) << expected[i] << " and " << expected[j];
      EXPECT_EQ(by == 0, i == j) << expected[i] << " and " << expected[j];
    }
  }
}

TEST(NodeOrder, NaturalOrderIsAnOrderOverRandomTexts) {
  Rng rng(7);
  const auto text = [&] {
    std::string made;
    for (std::uint64_t i = rng.next() % 6; i > 0; --i) made += "01a9_"[rng.next() % 5];
    return made;
  };
  for (int i = 0; i < 20'000; ++i) {
    const std::string a = text();
    const std::string b = text();
    const std::string c = text();
    ASSERT_EQ(compare_natural(a, b) < 0, compare_natural(b, a) > 0) << a << " " << b;
    ASSERT_EQ(compare_natural(a, b) == 0, a == b) << a << " " << b;
    if (compare_natural(a, b) < 0 && compare_natural(b, c) < 0) {
      ASSERT_LT(compare_natural(a, c), 0) << a << " " << b << " " << c;
    }
  }
}

struct RankCase {
  const char* name;
  std::vector<RankRequest> claims;
  std::vector<int> expected;
};

RankRequest claim(std::uint64_t id, std::string_view name, int held = -1, int wished = -1,
                  int hint = -1, std::string_view topology = "") {
  return {NodeId{0, id}, name, held, wished, hint, topology};
}

TEST(NodeOrder, AssignsRanks) {
  const RankCase placements[] = {
      {"natural order", {claim(1, "node10"), claim(2, "node2")}, {1, 0}},
      {"survivors keep theirs", {claim(1, "b", 0), claim(2, "a", 1)}, {0, 1}},
      {"a replacement takes the freed one",
       {claim(1, "c", 2), claim(2, "a"), claim(3, "b", 0)},
       {2, 1, 0}},
      {"going smaller moves only who must", {claim(1, "x", 2), claim(2, "y", 1)}, {0, 1}},
      {"a wish for a free rank is granted", {claim(1, "a"), claim(2, "b", -1, 0)}, {1, 0}},
      {"a wish for a held rank is not", {claim(1, "a", 0), claim(2, "b", -1, 0)}, {0, 1}},
      {"hints go first", {claim(1, "a", -1, -1, 7), claim(2, "b", -1, -1, 3)}, {1, 0}},
      {"a node without a hint goes last", {claim(1, "a"), claim(2, "b", -1, -1, 3)}, {1, 0}},
      {"topology before names",
       {claim(1, "a", -1, -1, -1, "rack2"), claim(2, "b", -1, -1, -1, "rack1"),
        claim(3, "c", -1, -1, -1, "rack2")},
       {1, 0, 2}},
      {"one name twice", {claim(9, "a"), claim(4, "a")}, {1, 0}},
  };
  for (const RankCase& one : placements) {
    EXPECT_EQ(assign_node_ranks(one.claims), one.expected) << one.name;
  }
}

// Every combination of earlier ranks of up to six nodes, in every order of arrival: ranks are dense
// and unique, survivors keep theirs, and the result does not depend on the order.
TEST(NodeOrder, ResultDoesNotDependOnTheOrder) {
  const std::vector<std::string> names = {"n1", "n2", "n10", "n03", "m7", "n20"};
  for (std::size_t size = 1; size <= names.size(); ++size) {
    for (std::size_t survivors = 0; survivors < (std::size_t{1} << size); ++survivors) {
      // The survivors held ranks of a world that was two nodes larger.
      std::vector<RankRequest> claims;
      for (std::size_t i = 0; i < size; ++i) {
        const bool survives = (survivors >> i) & 1;
        claims.push_back(
            claim(i + 1, names[i], survives ? static_cast<int>((i * 5 + 1) % (size + 2)) : -1));
      }
      std::vector<int> held;
      for (const RankRequest& one : claims) held.push_back(one.held_rank);
      std::sort(held.begin(), held.end());
      const auto first_held = std::find_if(held.begin(), held.end(), [](int h) { return h >= 0; });
      if (std::adjacent_find(first_held, held.end()) != held.end()) continue;

      std::vector<std::size_t> order(size);
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::vector<int> reference;
      do {
        std::vector<RankRequest> arrived;
        for (const std::size_t i : order) arrived.push_back(claims[i]);
        const std::vector<int> placed = assign_node_ranks(arrived);
        std::vector<int> ranks(size);
        for (std::size_t i = 0; i < size; ++i) ranks[order[i]] = placed[i];
        std::vector<int> sorted = ranks;
        std::sort(sorted.begin(), sorted.end());
        for (std::size_t i = 0; i < size; ++i) ASSERT_EQ(sorted[i], static_cast<int>(i));
        for (std::size_t i = 0; i < size; ++i) {
          const int before = claims[i].held_rank;
          if (before >= 0 && before < static_cast<int>(size)) {
            ASSERT_EQ(ranks[i], before);
          }
        }
        if (reference.empty()) reference = ranks;
        ASSERT_EQ(ranks, reference);
      } while (std::next_permutation(order.begin(), order.end()));
    }
  }
}

}  // namespace
}  // namespace elastic::core
