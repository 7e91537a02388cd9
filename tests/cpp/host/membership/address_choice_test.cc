// Which of a name's addresses hosts the coordinator, and in which order they are tried.

#include "host/membership/address_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "host/coordinator/hosting.h"

namespace elastic::host {
namespace {

using testing::ElementsAre;

std::vector<os::SocketAddress> addresses(const std::vector<std::string>& hosts) {
  std::vector<os::SocketAddress> all;
  for (const std::string& host : hosts) all.push_back(os::look_up(host, 29400)->front());
  return all;
}

std::vector<std::string> hosts_of(const std::vector<os::SocketAddress>& all) {
  std::vector<std::string> hosts;
  for (const os::SocketAddress& one : all) hosts.push_back(one.host());
  return hosts;
}

TEST(AddressChoice, TheSmallestAddressHostsWhateverTheOrderOfTheResolver) {
  std::vector<std::string> hosts = {"10.0.0.10", "10.0.0.9", "192.168.0.1", "fd00::1"};
  std::sort(hosts.begin(), hosts.end());
  do {
    EXPECT_EQ(hosting_address(addresses(hosts)).host(), "10.0.0.9") << "by number, not by text";
  } while (std::next_permutation(hosts.begin(), hosts.end()));
  EXPECT_EQ(hosting_address(addresses({"fd00::10", "fd00::9"})).host(), "fd00::9");
}

TEST(AddressChoice, EachAddressIsTriedInTurn) {
  AddressChoice choice;
  const auto found = addresses({"10.0.0.1", "10.0.0.2", "10.0.0.3"});
  EXPECT_THAT(hosts_of(choice.order(found)), ElementsAre("10.0.0.1", "10.0.0.2", "10.0.0.3"));
  choice.note_dead_end("10.0.0.1:29400");
  EXPECT_TRUE(choice.has_untried());
  EXPECT_THAT(hosts_of(choice.order(found)), ElementsAre("10.0.0.2", "10.0.0.3", "10.0.0.1"));
  choice.note_dead_end("10.0.0.2:29400");
  choice.note_dead_end("10.0.0.3:29400");
  EXPECT_FALSE(choice.has_untried());
  EXPECT_THAT(hosts_of(choice.order(found)), ElementsAre("10.0.0.1", "10.0.0.2", "10.0.0.3"));
  choice.note_dead_end("10.0.0.1:29400");
  EXPECT_THAT(hosts_of(choice.order(found)), ElementsAre("10.0.0.2", "10.0.0.3", "10.0.0.1"));
  choice.forget();
  EXPECT_THAT(hosts_of(choice.order(found)), ElementsAre("10.0.0.1", "10.0.0.2", "10.0.0.3"));
}

TEST(AddressChoice, AnAddressThatTheNameGetsLaterIsTriedFirst) {
  AddressChoice choice;
  choice.order(addresses({"10.0.0.1"}));
  choice.note_dead_end("10.0.0.1:29400");
  EXPECT_FALSE(choice.has_untried());
  EXPECT_THAT(hosts_of(choice.order(addresses({"10.0.0.1", "10.0.0.2"}))),
              ElementsAre("10.0.0.2", "10.0.0.1"));
  EXPECT_TRUE(choice.has_untried());
}

}  // namespace
}  // namespace elastic::host
