#include "os/net/listener.h"

#include <gtest/gtest.h>

namespace elastic::os {
namespace {

class HeldPortOn : public ::testing::TestWithParam<const char*> {};

TEST_P(HeldPortOn, AServerCanBindTheHeldPortRepeatedly) {
  auto hold = HeldPort::open(GetParam(), 0);
  ASSERT_TRUE(hold.ok()) << hold.status().message();
  ASSERT_NE(hold->port(), 0);
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_TRUE(Listener::open("127.0.0.1", hold->port()).ok());
    EXPECT_TRUE(Listener::open("", hold->port()).ok()) << "as torch's store binds";
  }
}

INSTANTIATE_TEST_SUITE_P(HeldPort, HeldPortOn, ::testing::Values("127.0.0.1", ""),
                         [](const auto& test) {
                           return std::string(test.param).empty() ? "everywhere" : "loopback";
                         });

TEST(HeldPort, CannotBeHeldWhileAnotherSocketListens) {
  auto listener = Listener::open("127.0.0.1", 0);
  ASSERT_TRUE(listener.ok());
  const auto hold = HeldPort::open("127.0.0.1", listener->address().port());
  EXPECT_EQ(hold.status().code(), StatusCode::kUnavailable);
}

TEST(HeldPort, RejectsAForeignAddress) {
  EXPECT_FALSE(HeldPort::open("192.0.2.1", 0).ok());  // an address for documentation (RFC 5737)
}

}  // namespace
}  // namespace elastic::os
