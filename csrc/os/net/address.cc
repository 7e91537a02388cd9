#include "os/net/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "elastic/rendezvous_options.h"
#include "os/base/fd.h"
#include "os/base/posix_error.h"
#include "os/loop/event_loop.h"
#include "os/loop/thread.h"

namespace elastic::os {
namespace {

std::string without_brackets(const std::string& host) {
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    return host.substr(1, host.size() - 2);
  }
  return host;
}

Status resolver_error(const std::string& host, int code) {
  const std::string context = "cannot resolve " + host;
  if (code == EAI_SYSTEM) return posix_error(context, errno);
  const StatusCode status =
      code == EAI_MEMORY ? StatusCode::kResourceExhausted : StatusCode::kUnavailable;
  return {status, context + ": " + ::gai_strerror(code)};
}

// Interleaves the families, so that a host with unreachable IPv6 (or IPv4) costs one attempt.
std::vector<SocketAddress> take_turns(const std::vector<SocketAddress>& found) {
  std::vector<SocketAddress> first, second, ordered;
  for (const SocketAddress& address : found) {
    (address.family() == found.front().family() ? first : second).push_back(address);
  }
  for (std::size_t i = 0; i < std::max(first.size(), second.size()); ++i) {
    if (i < first.size()) ordered.push_back(first[i]);
    if (i < second.size()) ordered.push_back(second[i]);
  }
  return ordered;
}

SocketAddress without_mapping(const SocketAddress& address) {
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
  if (address.family() != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) return address;
  SocketAddress plain;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&plain.storage);
  v4->sin_family = AF_INET;
  v4->sin_port = v6->sin6_port;
  std::memcpy(&v4->sin_addr, &v6->sin6_addr.s6_addr[12], sizeof v4->sin_addr);
  plain.size = sizeof(sockaddr_in);
  return plain;
}

// getaddrinfo. `flags` may be AI_NUMERICHOST: then it does not block.
int ask_resolver(const std::string& host, std::uint16_t port, int flags,
                 std::vector<SocketAddress>* found) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (code != 0) return code;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  for (const addrinfo* item = list; item != nullptr; item = item->ai_next) {
    SocketAddress address;
    std::memcpy(&address.storage, item->ai_addr, item->ai_addrlen);
    address.size = item->ai_addrlen;
    // An interface has the IPv4 address, which is compared with an endpoint's addresses.
    found->push_back(without_mapping(address));
  }
  return 0;
}

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

// For one name on loops. If no name server answers, a request keeps its thread for ten seconds or
// more, and callers ask again each second.
constexpr int kThreadsMax = 32;

// The threads that resolve each name for loops. A global, because they outlive the lookups.
class Threads {
 public:
  bool begin(const std::string& host) {
    const std::lock_guard lock(mutex_);
    int& count = counts_[host];
    if (count == kThreadsMax) return false;
    ++count;
    return true;
  }
  void end(const std::string& host) {
    const std::lock_guard lock(mutex_);
    const auto found = counts_.find(host);
    if (--found->second == 0) counts_.erase(found);
  }

  // Across a fork: the child has none of these threads.
  void lock() { mutex_.lock(); }
  void unlock(bool is_child) {
    if (is_child) counts_.clear();
    mutex_.unlock();
  }

 private:
  std::mutex mutex_;
  std::map<std::string, int> counts_;  // guarded by mutex_
};

// Never destroyed: a thread may end while the program exits.
Threads& threads = *new Threads;

[[maybe_unused]] const int is_kept_across_forks =
    ::pthread_atfork([] { threads.lock(); }, [] { threads.unlock(/*is_child=*/false); },
                     [] { threads.unlock(/*is_child=*/true); });

}  // namespace

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  return ::gethostname(name, HOST_NAME_MAX) == 0 ? name : "";
}

std::uint16_t SocketAddress::port() const {
  // The port has the same offset in both families (RFC 3493).
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

void SocketAddress::set_port(std::uint16_t port) {
  reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(port);
}

std::string SocketAddress::host() const {
  char text[NI_MAXHOST];
  const int code = ::getnameinfo(get(), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return code == 0 ? text : "?";
}

std::string SocketAddress::text() const {
  const std::string bare = host();
  const std::string port_text = std::to_string(port());
  return family() == AF_INET6 ? "[" + bare + "]:" + port_text : bare + ":" + port_text;
}

bool SocketAddress::is_loopback() const {
  if (family() == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&storage);
    return (ntohl(v4->sin_addr.s_addr) >> 24) == IN_LOOPBACKNET;
  }
  return family() == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
}

SocketAddress local_end(int fd) {
  SocketAddress address;
  if (::getsockname(fd, address.get(), &address.size) != 0) return {};
  return without_mapping(address);
}

SocketAddress peer_end(int fd) {
  SocketAddress address;
  if (::getpeername(fd, address.get(), &address.size) != 0) return {};
  return without_mapping(address);
}

std::optional<SocketAddress> parse_address(const std::string& text) {
  std::vector<SocketAddress> found;
  if (ask_resolver(without_brackets(text), 0, AI_NUMERICHOST, &found) != 0) return std::nullopt;
  return found.front();
}

std::optional<SocketAddress> parse_address_and_port(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  std::uint16_t port = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data() + colon + 1, end, port);
  if (parsed.ec != std::errc() || parsed.ptr != end || port == 0) return std::nullopt;
  const std::string host = text.substr(0, colon);
  const bool is_bracketed = host.starts_with('[');
  if (!is_bracketed && host.find(':') != std::string::npos) return std::nullopt;
  auto address = parse_address(host);
  if (address) address->set_port(port);
  return address;
}

Result<std::vector<SocketAddress>> look_up(const std::string& host, std::uint16_t port) {
  const std::string bare = without_brackets(host);
  if (bare.empty()) return Status(StatusCode::kInvalidArgument, "the host name is empty");
  std::vector<SocketAddress> found;
  if (ask_resolver(bare, port, AI_NUMERICHOST, &found) == 0) return found;
  const int code = ask_resolver(bare, port, 0, &found);
  if (code != 0) return resolver_error(bare, code);
  return take_turns(found);
}

struct Resolution {
  Notifier ready;
  std::optional<Result<std::vector<SocketAddress>>> result;  // written before, read after `ready`

  static Result<std::shared_ptr<Resolution>> create() {
    auto ready = Notifier::create();
    if (!ready.ok()) return ready.status();
    return std::make_shared<Resolution>(Resolution{*std::move(ready), std::nullopt});
  }
  // Begins to resolve. The thread shares ownership, because it may outlive who waits for it, and
  // calls `ended` before it reports.
  static Status begin(const std::shared_ptr<Resolution>& self, const std::string& host,
                      std::uint16_t port, const std::function<void()>& ended) {
    auto thread = start_quiet_thread("elastic-resolve", [self, host, port, ended] {
      self->result = look_up(host, port);
      ended();
      self->ready.notify();
    });
    if (!thread.ok()) return thread.status().with_context("cannot resolve " + host);
    thread->detach();
    return {};
  }
};

Result<std::vector<SocketAddress>> look_up(const std::string& host, std::uint16_t port,
                                           const WaitLimits& limits) {
  if (host.empty() || parse_address(host)) return look_up(host, port);
  const auto resolution = Resolution::create();
  if (!resolution.ok()) return resolution.status();
  Status status = Resolution::begin(*resolution, host, port, [] {});
  if (!status.ok()) return status;
  status = (*resolution)->ready.wait(limits);
  if (!status.ok()) return status.with_context("cannot resolve " + host + " in time");
  return *(*resolution)->result;
}

NameLookup::NameLookup(std::shared_ptr<Resolution> resolution, Done done)
    : resolution_(std::move(resolution)), done_(std::move(done)) {}

NameLookup::~NameLookup() = default;

Result<std::unique_ptr<NameLookup>> NameLookup::start(EventLoop* loop, const std::string& host,
                                                      std::uint16_t port, Done done) {
  const auto resolution = Resolution::create();
  if (!resolution.ok()) return resolution.status();
  std::unique_ptr<NameLookup> lookup(new NameLookup(*resolution, std::move(done)));
  auto watch = loop->watch((*resolution)->ready.fd(), EPOLLIN, lookup.get());
  if (!watch.ok()) return watch.status();
  lookup->watch_ = *std::move(watch);
  // A literal needs no resolver.
  if (parse_address(host) || loop->is_turned()) {
    (*resolution)->result = look_up(host, port);
    (*resolution)->ready.notify();
    return lookup;
  }
  if (!threads.begin(host)) {
    return Status(StatusCode::kUnavailable, "cannot resolve " + host +
                                                ": the resolver has not answered " +
                                                std::to_string(kThreadsMax) + " earlier requests");
  }
  const Status begun = Resolution::begin(*resolution, host, port, [host] { threads.end(host); });
  if (begun.ok()) return lookup;
  threads.end(host);
  return begun;
}

void NameLookup::on_ready(std::uint32_t) {
  watch_.reset();
  const auto resolution = resolution_;  // this may be destroyed
  resolution->ready.clear();            // what is read follows what was written before notify()
  const Done done = std::move(done_);
  done(*resolution->result);
}

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
