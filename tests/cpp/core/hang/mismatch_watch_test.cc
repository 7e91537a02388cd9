// Ranks that call collective operations of different sizes, and complete them.

#include "core/hang/mismatch_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "core/hang/signature.h"

namespace elastic::core::mismatches {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::int64_t kWall = 1'795'871'290'000'000'000;
constexpr std::int64_t kSample = kWall / 1'000'000'000 / hang::kSampleSeconds;

Instant at(Duration time) { return Instant{} + 100s + time; }

// 32 times the same operation, but for one.
std::string signature(const std::string& sign = "r0f3a", std::size_t number = 4,
                      const std::string& other = "r0f3a") {
  std::string text;
  for (std::size_t i = 0; i < hang::kBlockOperations; ++i) text += i == number ? sign : other;
  return text;
}

std::string line(const std::string& signature, const std::string& group = "0",
                 const std::string& first = "64", std::int64_t sample = kSample) {
  return std::to_string(sample) + "\t0\t" + group + "\t\t" + first + "\t" + signature + "\n";
}

WorkerEvidence worker(std::int32_t rank, std::string signatures, std::string groups = "") {
  return {.rank = rank, .groups = std::move(groups), .signatures = std::move(signatures)};
}

hang::NodeSignatures node(const std::vector<WorkerEvidence>& workers) {
  return node_signatures(workers, kWall);
}

// What is found in one sample of these workers, each on a node of its own.
std::vector<std::string> found(MismatchWatch* watch, const std::vector<WorkerEvidence>& workers) {
  for (const WorkerEvidence& one : workers) watch->add(node({one}), at(0s));
  std::vector<std::string> texts;
  for (const Mismatch& one : watch->compare()) texts.push_back(one.text);
  return texts;
}

std::vector<std::string> found(const std::vector<WorkerEvidence>& workers) {
  MismatchWatch watch;
  return found(&watch, workers);
}

TEST(MismatchWatch, NamesTheOperationAndTheRankThatDiffers) {
  EXPECT_THAT(found({worker(0, line(signature())), worker(1, line(signature("r1111"))),
                     worker(2, line(signature()))}),
              ElementsAre("rank 1 called all_reduce #68 of the default group with another size or "
                          "type than 2 ranks (0,2), and no error was raised: the result may be "
                          "wrong"));
}

TEST(MismatchWatch, NoRankIsSuspectedIfThereAreOnlyTwo) {
  MismatchWatch watch;
  watch.add(
      node({worker(0, line(signature("b0001"), "dp")), worker(1, line(signature("b0002"), "dp"))}),
      at(0s));
  const std::vector<Mismatch> all = watch.compare();
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].suspect, -1);
  EXPECT_EQ(all[0].text.substr(0, 57), "rank 0 called broadcast #68 of group dp with another size");
}

struct Silent {
  const char* name;
  std::vector<WorkerEvidence> workers;
};

TEST(MismatchWatch, NothingIsConcludedFromWhatIsNotTheSameOperation) {
  const std::string other_sample = line(signature("r1111"), "0", "64", kSample - 1);
  const Silent cases[] = {
      {"equal", {worker(0, line(signature())), worker(1, line(signature()))}},
      {"another operation",
       {worker(0, line(signature("r0f3a"))), worker(1, line(signature("b0f3a")))}},
      {"another operation elsewhere in the block",
       {worker(0, line(signature("r1111", 4))), worker(1, line(signature(".0001", 9)))}},
      {"not recorded", {worker(0, line(signature("-----"))), worker(1, line(signature()))}},
      {"an operation whose name alone is signed",
       {worker(0, line(signature(".0001"))), worker(1, line(signature(".0002")))}},
      {"another group", {worker(0, line(signature())), worker(1, line(signature("r1111"), "1"))}},
      {"another block",
       {worker(0, line(signature())), worker(1, line(signature("r1111"), "0", "96"))}},
      {"another sample", {worker(0, line(signature())), worker(1, other_sample)}},
      {"no signature", {worker(0, line(signature())), worker(1, line("r1111"))}},
      {"no line", {worker(0, line(signature())), worker(1, "\t\t\n\n\t7")}},
  };
  for (const Silent& one : cases) EXPECT_THAT(found(one.workers), IsEmpty()) << one.name;
}

TEST(MismatchWatch, AGroupIsReportedOnceInARound) {
  MismatchWatch watch;
  const auto sample = [&](std::int64_t number) {
    const auto late = kWall + 1000 * hang::kSampleSeconds * 1'000'000'000;
    watch.add(node_signatures({worker(0, line(signature(), "0", "64", number)),
                               worker(1, line(signature("r1111"), "0", "64", number)),
                               worker(2, line(signature(), "0", "64", number))},
                              late),
              at(0s));
    return watch.compare().size();
  };
  EXPECT_EQ(sample(kSample), 1U);
  EXPECT_EQ(watch.last().substr(0, 13), "rank 1 called");
  EXPECT_EQ(sample(kSample), 0U);  // a late message of the same sample
  EXPECT_EQ(sample(kSample + 1), 0U);
  watch.clear();
  EXPECT_EQ(watch.last(), "");
  EXPECT_EQ(sample(kSample + 2), 1U);
}

TEST(MismatchWatch, WaitsForTheMessagesOfAllNodes) {
  MismatchWatch watch;
  EXPECT_EQ(watch.due_at(), std::nullopt);
  watch.add(node({worker(0, line(signature()))}), at(0s));
  watch.add(node({worker(1, line(signature()))}), at(2s));
  EXPECT_EQ(watch.due_at(), at(kSignaturesTimeout));
  watch.shift(1s);
  EXPECT_EQ(watch.due_at(), at(kSignaturesTimeout + 1s));
  EXPECT_THAT(watch.compare(), IsEmpty());
  EXPECT_EQ(watch.due_at(), std::nullopt);
}

TEST(MismatchWatch, ANodeComparesGroupsOfItsOwn) {
  const std::string groups = "0\t0-3\ntp\t0-1\n";
  const std::string lines = line(signature()) + line(signature("g0001"), "tp");
  const auto sent = node({worker(0, lines, groups), worker(1, lines, groups)});
  ASSERT_EQ(sent.blocks.size(), 1U);
  EXPECT_EQ(sent.blocks[0].group, "0");
  EXPECT_EQ(sent.blocks[0].ranks, "0-1");
  const auto other =
      node({worker(0, lines, groups), worker(1, line(signature("g0002"), "tp"), groups)});
  MismatchWatch watch;
  watch.add(other, at(0s));
  EXPECT_EQ(watch.compare().size(), 1U);
}

TEST(MismatchWatch, ASampleOfTheFutureDoesNotHideTheOthers) {
  const auto sent =
      node({worker(0, line(signature(), "0", "64", kSample + 1)), worker(1, line(signature()))});
  EXPECT_EQ(sent.sample, kSample);
  EXPECT_EQ(sent.blocks.size(), 1U);
}

// As many nodes as a job may have: the work for one message does not grow with them.
TEST(MismatchWatch, ManyRanksAreCountedAndTheFewAreNamed) {
  MismatchWatch watch;
  for (std::int32_t i = 0; i < 4096; ++i) {
    std::vector<WorkerEvidence> workers;
    for (std::int32_t rank = 8 * i; rank < 8 * i + 8; ++rank) {
      workers.push_back(worker(rank, line(signature(rank == 1000 ? "r1111" : "r0f3a"))));
    }
    watch.add(node(workers), at(0s));
  }
  const std::vector<Mismatch> all = watch.compare();
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].suspect, 1000);
  EXPECT_EQ(all[0].text,
            "rank 1000 called all_reduce #68 of the default group with another size or type than "
            "32767 ranks, and no error was raised: the result may be wrong");
}

}  // namespace
}  // namespace elastic::core::mismatches
