#include "core/store/key_table.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "sanitized.h"

namespace elastic {
namespace {

constexpr std::size_t kPlenty = std::size_t{1} << 30;

struct Table {
  explicit Table(std::size_t bytes_max = kPlenty) : budget(bytes_max) {}
  MemoryBudget budget;
  KeyTable keys{0x0123456789abcdef, &budget};

  bool set(const std::string& key, const std::string& value) {
    return keys.assign(keys.locate(key), key, value);
  }
  bool append(const std::string& key, const std::string& value) {
    return keys.append(keys.locate(key), key, value);
  }
  std::string get(const std::string& key) {
    const KeyTable::Position position = keys.locate(key);
    return position.found() ? std::string(keys.value(position)) : "(missing)";
  }
  bool erase(const std::string& key) {
    const KeyTable::Position position = keys.locate(key);
    const bool found = position.found();
    if (found) keys.erase(position);
    return found;
  }
};

TEST(SipHash, DependsOnEveryByteOnTheLengthAndOnTheSeed) {
  const SipHash hash(1);
  std::vector<std::size_t> seen;
  for (const std::string& text :
       std::vector<std::string>{"", "a", "b", "ab", "ba", "abcdefgh", "abcdefg", "abcdefghi"}) {
    seen.push_back(hash(text));
    seen.push_back(hash(text + '\0'));
    seen.push_back(SipHash(2)(text));
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::unique(seen.begin(), seen.end()), seen.end());
}

TEST(KeyTable, AgreesWithAMapOverRandomOperations) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    Table table;
    std::map<std::string, std::string> model;
    for (int step = 0; step < 3000; ++step) {
      const std::string key = "/key-" + std::to_string(random() % 400);
      const std::string value(random() % 60, static_cast<char>('a' + random() % 26));
      switch (random() % 4) {
        case 0:
          EXPECT_TRUE(table.set(key, value));
          model[key] = value;
          break;
        case 1:
          EXPECT_TRUE(table.append(key, value));
          model[key] += value;
          break;
        case 2: ASSERT_EQ(table.erase(key), model.erase(key) == 1); break;
        default: {
          const auto found = model.find(key);
          ASSERT_EQ(table.get(key), found == model.end() ? "(missing)" : found->second);
        }
      }
    }
    std::map<std::string, std::string> held;
    table.keys.for_each_key(
        [&](std::string_view key) { held.emplace(key, table.get(std::string(key))); });
    EXPECT_EQ(held, model);
    EXPECT_EQ(table.keys.size(), model.size());
    table.keys.clear();
    EXPECT_EQ(table.budget.used(), 0u);
    EXPECT_EQ(table.keys.key_bytes(), 0u);
  }
}

TEST(KeyTable, ManyKeysAreAllFoundWhileTheTableGrows) {
  Table table;
  constexpr int kCount = 20000;
  for (int i = 0; i < kCount; ++i) {
    ASSERT_TRUE(table.set(std::to_string(i), std::to_string(i * 7)));
    ASSERT_EQ(table.get(std::to_string(i / 2)), std::to_string(i / 2 * 7));
  }
  for (int i = 0; i < kCount; ++i) ASSERT_EQ(table.get(std::to_string(i)), std::to_string(i * 7));
}

// Their bytes were given back with the keys.
TEST(KeyTable, BucketsGoWithTheKeysAndTheOthersAreFound) {
  Table table;
  const auto key = [](int i) { return "key" + std::to_string(i); };
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 5000; ++i) ASSERT_TRUE(table.set(key(i), std::to_string(i)));
    EXPECT_GE(table.keys.num_buckets(), 5000U);
    for (int i = 0; i < 4990; ++i) {
      ASSERT_TRUE(table.erase(key(i)));
      if (i % 100 != 0) continue;
      for (int left = i + 1; left < 5000; left += 97)
        ASSERT_EQ(table.get(key(left)), std::to_string(left));
    }
    EXPECT_LE(table.keys.num_buckets(), 20U);
    for (int i = 4990; i < 5000; ++i) EXPECT_EQ(table.get(key(i)), std::to_string(i));
    for (int i = 4990; i < 5000; ++i) EXPECT_TRUE(table.erase(key(i)));
    EXPECT_EQ(table.keys.num_buckets(), 1U);
  }
}

TEST(KeyTable, KeyOf15BytesWithAValueOf32CostsUnder110Bytes) {
  Table table;
  ASSERT_TRUE(table.set(std::string(15, 'k'), std::string(32, 'v')));
  EXPECT_LT(table.budget.used(), 110u);
}

TEST(KeyTable, BudgetIsEnforcedAndARejectedWriteChangesNothing) {
  Table table(400);
  ASSERT_TRUE(table.set("a", std::string(100, 'x')));
  ASSERT_TRUE(table.set("b", "y"));
  const std::size_t used = table.budget.used();
  EXPECT_FALSE(table.set("c", std::string(300, 'z')));
  EXPECT_FALSE(table.set("b", std::string(300, 'z')));
  EXPECT_FALSE(table.append("b", std::string(300, 'z')));
  EXPECT_EQ(table.get("b"), "y");
  EXPECT_EQ(table.get("c"), "(missing)");
  EXPECT_EQ(table.budget.used(), used);
  // A new value may use the budget of the value that it replaces.
  EXPECT_TRUE(table.set("a", std::string(150, 'w')));
}

TEST(KeyTable, AppendTakesOnlyTheNeededBytesWhenTheBudgetIsNearlyFull) {
  Table table(400);
  ASSERT_TRUE(table.set("a", std::string(200, 'x')));
  EXPECT_TRUE(table.append("a", std::string(80, 'y')));
  EXPECT_EQ(table.get("a"), std::string(200, 'x') + std::string(80, 'y'));
}

// A copy would touch each of its pages for the first time, in a new allocation.
TEST(KeyTable, AppendCopiesNoLargeValueThoughTheBudgetIsNearlyFull) {
  if (kIsSanitized) GTEST_SKIP() << "the allocator of the sanitizer copies";
  constexpr std::size_t kLarge = std::size_t{16} << 20;
  Table table(kLarge + kLarge / 8);
  ASSERT_TRUE(table.set("a", std::string(kLarge, 'x')));
  rusage before{};
  rusage after{};
  ::getrusage(RUSAGE_THREAD, &before);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(table.append("a", std::string(100, 'y')));
  ::getrusage(RUSAGE_THREAD, &after);
  EXPECT_LT(after.ru_minflt - before.ru_minflt, 1000);
  EXPECT_EQ(table.get("a"), std::string(kLarge, 'x') + std::string(10'000, 'y'));
}

TEST(KeyTable, SmallValueReleasesTheAllocationOfALargeOne) {
  Table table;
  ASSERT_TRUE(table.set("a", std::string(1 << 20, 'x')));
  ASSERT_TRUE(table.set("a", "y"));
  EXPECT_LT(table.budget.used(), 200u);
  EXPECT_EQ(table.get("a"), "y");
}

}  // namespace
}  // namespace elastic
