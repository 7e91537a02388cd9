// Which of a name's addresses hosts the coordinator.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "host/coordinator/hosting.h"

namespace elastic::host {
namespace {

std::vector<os::SocketAddress> addresses(const std::vector<std::string>& hosts) {
  std::vector<os::SocketAddress> all;
  for (const std::string& host : hosts) all.push_back(os::look_up(host, 29400)->front());
  return all;
}

TEST(HostingAddress, TheSmallestAddressHostsWhateverTheOrderOfTheResolver) {
  std::vector<std::string> hosts = {"10.0.0.10", "10.0.0.9", "192.168.0.1", "fd00::1"};
  std::sort(hosts.begin(), hosts.end());
  do {
    EXPECT_EQ(hosting_address(addresses(hosts)).host(), "10.0.0.9") << "by number, not by text";
  } while (std::next_permutation(hosts.begin(), hosts.end()));
  EXPECT_EQ(hosting_address(addresses({"fd00::10", "fd00::9"})).host(), "fd00::9");
}

}  // namespace
}  // namespace elastic::host
