#include "os/net/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>

#include <cstring>
#include <functional>
#include <memory>

#include "elastic/host_addresses.h"
#include "os/base/fd.h"

namespace elastic::os {
namespace {

bool is_link_local(const SocketAddress& address) {
  return address.family() == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr);
}

// Calls `add` for each address of an interface that is up, without link-local ones.
void list_addresses(const std::function<void(const char* name, const SocketAddress&)>& add) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  for (const ifaddrs* item = list; item != nullptr; item = item->ifa_next) {
    if (item->ifa_addr == nullptr || (item->ifa_flags & IFF_UP) == 0) continue;
    const int family = item->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    SocketAddress address;
    address.size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&address.storage, item->ifa_addr, address.size);
    if (!is_link_local(address)) add(item->ifa_name, address);
  }
}

}  // namespace

// Connecting a datagram socket sends nothing; the kernel only selects the route.
std::string address_towards(const SocketAddress& peer) {
  const UniqueFd fd(::socket(peer.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid() || ::connect(fd.get(), peer.get(), peer.size) != 0) return "";
  return local_end(fd.get()).host();
}

std::vector<SocketAddress> interface_addresses() {
  std::vector<SocketAddress> addresses;
  list_addresses([&](const char*, const SocketAddress& address) {
    if (!address.is_loopback()) addresses.push_back(address);
  });
  return addresses;
}

std::string primary_address() {
  // Addresses for documentation: no machine has them, and every default route covers them.
  for (const char* documentation : {"192.0.2.1", "2001:db8::1"}) {
    const auto target = look_up(documentation, 9);
    const auto source =
        target.ok() ? parse_address(address_towards(target->front())) : std::nullopt;
    if (source && !source->is_loopback()) return source->host();
  }
  const auto addresses = interface_addresses();
  return addresses.empty() ? "" : addresses.front().host();
}

}  // namespace elastic::os

namespace elastic {

std::vector<HostAddress> host_addresses() {
  std::vector<HostAddress> addresses;
  os::list_addresses([&](const char* name, const os::SocketAddress& address) {
    addresses.push_back({name, address.host()});
  });
  return addresses;
}

}  // namespace elastic
