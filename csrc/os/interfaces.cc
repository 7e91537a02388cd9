#include "os/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>

#include <cstring>
#include <memory>

#include "os/fd.h"

namespace elastic::os {
namespace {

bool is_link_local(const SocketAddress& address) {
  return address.family() == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr);
}

// Connecting a datagram socket sends nothing; the kernel only chooses the way. `documentation` is
// an address that no machine has, and that every default route covers.
std::string source_towards(const char* documentation) {
  const auto target = look_up(documentation, 9);
  if (!target.ok()) return "";
  const UniqueFd fd(::socket(target->front().family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid() || ::connect(fd.get(), target->front().get(), target->front().size) != 0) {
    return "";
  }
  const SocketAddress local = local_end(fd.get());
  return local.is_loopback() ? "" : local.host();
}

}  // namespace

std::vector<SocketAddress> interface_addresses() {
  std::vector<SocketAddress> addresses;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return addresses;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  for (const ifaddrs* item = list; item != nullptr; item = item->ifa_next) {
    if (item->ifa_addr == nullptr || (item->ifa_flags & IFF_UP) == 0) continue;
    const int family = item->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    SocketAddress address;
    address.size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&address.storage, item->ifa_addr, address.size);
    if (!address.is_loopback() && !is_link_local(address)) addresses.push_back(address);
  }
  return addresses;
}

std::string primary_address() {
  for (const char* documentation : {"192.0.2.1", "2001:db8::1"}) {
    const std::string source = source_towards(documentation);
    if (!source.empty()) return source;
  }
  const auto addresses = interface_addresses();
  return addresses.empty() ? "" : addresses.front().host();
}

}  // namespace elastic::os
