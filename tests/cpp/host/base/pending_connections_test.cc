#include "host/base/admission.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace elastic::host {
namespace {

// Connections by name; each is closed as its owner does it.
class PendingConnectionsTest : public ::testing::Test {
 protected:
  void add(const std::string& name, const std::string& address) {
    connections_.push_back({name, nullptr});
    auto ticket = pending_.add(address, [this, name] {
      closed_.push_back(name);
      std::erase_if(connections_, [&](const Connection& one) { return one.name == name; });
    });
    connections_.back().ticket = std::move(ticket);
  }

  struct Connection {
    std::string name;
    std::unique_ptr<PendingConnections::Ticket> ticket;
  };
  PendingConnections pending_{2};
  std::vector<Connection> connections_;
  std::vector<std::string> closed_;
};

TEST_F(PendingConnectionsTest, OldestOfAnAddressMakesRoom) {
  add("a1", "a");
  add("b1", "b");
  add("a2", "a");
  EXPECT_TRUE(closed_.empty());
  EXPECT_EQ(pending_.size(), 3U);
  add("a3", "a");
  EXPECT_EQ(closed_, std::vector<std::string>{"a1"});
  add("a4", "a");
  EXPECT_EQ(closed_, (std::vector<std::string>{"a1", "a2"}));
  add("b2", "b");
  EXPECT_EQ(closed_.size(), 2U);
  EXPECT_EQ(pending_.size(), 4U);
}

TEST_F(PendingConnectionsTest, OneThatHasSentItsHandshakeDoesNotCount) {
  add("a1", "a");
  add("a2", "a");
  connections_.front().ticket.reset();
  add("a3", "a");
  EXPECT_TRUE(closed_.empty());
}

TEST_F(PendingConnectionsTest, OneThatIsAskedToCloseAndKeepsItsTicketDoesNotCountAgain) {
  int asked = 0;
  const auto kept_1 = pending_.add("a", [&] { ++asked; });
  const auto kept_2 = pending_.add("a", [&] { ++asked; });
  add("a3", "a");
  EXPECT_EQ(asked, 1);
  add("a4", "a");
  add("a5", "a");
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(closed_, std::vector<std::string>{"a3"});
  EXPECT_EQ(pending_.size(), 2U);
}

TEST_F(PendingConnectionsTest, OldestOfAllMakesRoomIfThereAreTooManyOfAllAddresses) {
  pending_.set_total_max(3);
  add("b1", "b");
  for (const char* address : {"a", "c", "d", "e"}) add(address, address);
  EXPECT_EQ(closed_, (std::vector<std::string>{"b1", "a"}));
  EXPECT_EQ(pending_.size(), 3U);
}

TEST_F(PendingConnectionsTest, OldestOfAllIsClosedIfDescriptorsAreShort) {
  EXPECT_FALSE(pending_.close_oldest());
  add("b1", "b");
  add("a1", "a");
  EXPECT_TRUE(pending_.close_oldest());
  EXPECT_EQ(closed_, std::vector<std::string>{"b1"});
}

}  // namespace
}  // namespace elastic::host
