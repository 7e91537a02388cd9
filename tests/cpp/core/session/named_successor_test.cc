// What a node that has lost its coordinator was told about the next one.

#include "core/session/coordinator_loss.h"

#include <gtest/gtest.h>

namespace elastic::core {
namespace {

using succession::Successor;

constexpr bool kByCoordinator = true;
constexpr bool kByAnother = false;

Successor successor(std::uint64_t term, std::uint64_t lineage = 8) { return {{lineage, 9}, term}; }

TEST(NamedSuccessor, IsTheOneThatWasNamedLast) {
  NamedSuccessor named;
  EXPECT_EQ(named.note(successor(2), "b:1", kByAnother), "b:1");
  EXPECT_EQ(named.note(successor(1, 7), "c:1", kByAnother), "c:1");
  EXPECT_EQ(named.note(successor(3), "d:1", kByCoordinator), "d:1");
  EXPECT_EQ(named.note(successor(2), "b:1", kByCoordinator), "b:1");
}

// A process that had coordinated the job before directs to its own successor of then.
TEST(NamedSuccessor, IsNotReplacedByAnOldOneOfAThirdProcess) {
  NamedSuccessor named;
  named.note(successor(3), "b:1", kByCoordinator);
  EXPECT_EQ(named.note(successor(2), "old:1", kByAnother), "b:1");
  EXPECT_EQ(named.note({}, "", kByAnother), "");
  // The job may run elsewhere: the node looks there, and still knows what the coordinator said.
  EXPECT_EQ(named.note(successor(9, 7), "c:1", kByAnother), "c:1");
  EXPECT_EQ(named.note(successor(2), "old:1", kByAnother), "b:1");
}

TEST(NamedSuccessor, IsReplacedByALaterOneOfTheSameJobUntilACoordinatorAnswers) {
  NamedSuccessor named;
  named.note(successor(3), "b:1", kByCoordinator);
  EXPECT_EQ(named.note(successor(4), "d:1", kByAnother), "d:1");
  named.note(successor(5), "e:1", kByCoordinator);
  named.reset();
  EXPECT_EQ(named.note(successor(2), "old:1", kByAnother), "old:1");
}

}  // namespace
}  // namespace elastic::core
