#include "host/coordinator/hosting.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "core/base/join_address.h"
#include "elastic/agent.h"
#include "os/base/process.h"
#include "os/loop/event_loop.h"
#include "os/net/listener.h"

namespace elastic::host {
namespace {

std::string list_of(const std::vector<os::SocketAddress>& addresses) {
  std::string text;
  for (const os::SocketAddress& address : addresses) {
    text += (text.empty() ? "" : ", ") + address.host();
  }
  return text.empty() ? "none" : text;
}

bool is_every_interface(const os::SocketAddress& address) {
  const std::string host = address.host();
  return host == "0.0.0.0" || host == "::";
}

}  // namespace

const os::SocketAddress& hosting_address(const std::vector<os::SocketAddress>& addresses) {
  const auto rank = [](const os::SocketAddress& one) {
    const auto bytes = [](const auto& ip) {
      return std::string(reinterpret_cast<const char*>(&ip), sizeof ip);
    };
    return one.family() == AF_INET
               ? std::tuple(0, bytes(reinterpret_cast<const sockaddr_in&>(one.storage).sin_addr))
               : std::tuple(1, bytes(reinterpret_cast<const sockaddr_in6&>(one.storage).sin6_addr));
  };
  return *std::min_element(addresses.begin(), addresses.end(),
                           [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
}

Hosting::Hosting(os::EventLoop* loop, const RendezvousOptions& options, std::string run_id,
                 std::string endpoint, LogSink log_action, LogSink log)
    : loop_(loop),
      options_(options),
      run_id_(std::move(run_id)),
      endpoint_(std::move(endpoint)),
      note_(std::move(log_action)),
      log_(std::move(log)) {}

Hosting::~Hosting() = default;

std::variant<Hosting::Addresses, Hosting::Failure> Hosting::route(const Result<Addresses>& found,
                                                                  bool may_host) {
  if (found.ok()) resolved_ = *found;
  if (may_host && service_ == nullptr && !is_role_fixed_ && options_.is_host != false) {
    bind_error_ = try_host(found);
    if (!bind_error_.ok() && options_.is_host == true) {
      return Failure{bind_error_, kExitCannotServe};
    }
  }
  // The host connects to the address where its coordinator is bound, whatever the name resolves to.
  if (is_serving_) return own_;
  return route_further(found, options_.endpoint_port);
}

std::variant<Hosting::Addresses, Hosting::Failure> Hosting::route_further(
    const Result<Addresses>& found, std::uint16_t port) const {
  if (!found.ok()) return Failure{found.status(), std::nullopt};
  if (is_serving_) return own_;
  Addresses others = *found;
  if (port_ == port) {
    std::erase_if(others, [this](const auto& address) { return is_own_standby(address); });
  }
  if (!others.empty()) return others;
  return Failure{Status(StatusCode::kUnavailable,
                        "this agent listens there and knows no coordinator of the job"),
                 std::nullopt};
}

bool Hosting::is_own_standby(const os::SocketAddress& address) const {
  return is_standby_ && address.host() == bound_host_;
}

void Hosting::stand_by_first(const Result<Addresses>& found, const std::string& own) {
  if (!found.ok() || !is_of_several_hosts(*found)) return;
  stand_by(found, options_.endpoint_port, own);
}

// Some addresses belong to other machines, or the name has several addresses of this one only.
bool Hosting::is_of_several_hosts(const Addresses& addresses) const {
  return addresses.size() > 1 &&
         std::any_of(addresses.begin(), addresses.end(), [this](const auto& address) {
           const Status status = os::Listener::check(address.host(), options_.endpoint_port);
           return status.code() == StatusCode::kInvalidArgument;
         });
}

void Hosting::stand_by(const Result<Addresses>& found, std::uint16_t port, const std::string& own) {
  if (!found.ok() || options_.is_host == false) return;
  for (const os::SocketAddress& address : *found) {
    const std::string host = address.host();
    const bool is_own = own.empty() ? !address.is_loopback() : host == own;
    if (service_ != nullptr || !is_own || !os::Listener::check(host, port).ok()) continue;
    static_cast<void>(open_service(host, {port, port}, true));  // else the next address
  }
  note_coordinator(coordinator_);
}

void Hosting::note_coordinator(const std::string& address) {
  coordinator_ = address;
  if (!is_standby_ || address.empty()) return;
  service_->post([address](CoordinatorService& service) { service.direct_to(address); });
}

// Fails if an address of the endpoint belongs to this machine and cannot be bound. Then another
// process serves it already, unless the user set this process to be the host.
Status Hosting::try_host(const Result<Addresses>& found) {
  const bool is_told = options_.is_host == true;
  if (!found.ok()) {
    return is_told ? try_host_everywhere(std::string(found.status().message())) : Status();
  }
  if (std::all_of(found->begin(), found->end(), is_every_interface)) {
    return try_host_everywhere("it names none of them");
  }
  Addresses candidates = *found;
  const bool is_literal = os::parse_address(options_.endpoint_host).has_value();
  if (options_.settings.max_nodes > 1 && !is_literal) {
    std::erase_if(candidates, [](const auto& address) { return address.is_loopback(); });
    if (candidates.empty()) {
      return try_host_everywhere("it resolves to " + list_of(*found) +
                                 " here, which other hosts cannot reach");
    }
  }
  // Exactly one of several hosts may host the job, and only if it does not already run on another.
  if (!is_told && is_of_several_hosts(candidates)) {
    const os::SocketAddress first = hosting_address(candidates);
    first_host_ = first.host();
    if (!std::exchange(has_asked_others_, true)) return {};
    const Status status = bind(first_host_);
    return status.code() == StatusCode::kInvalidArgument ? Status() : status;
  }
  for (const os::SocketAddress& address : candidates) {
    const Status status = bind(address.host());
    // Not an address of this machine; the next one may be.
    if (status.code() != StatusCode::kInvalidArgument) return status;
  }
  return is_told ? try_host_everywhere("no interface has " + list_of(*found)) : Status();
}

Status Hosting::try_host_everywhere(const std::string& why) {
  Status status = bind("");
  if (status.ok()) {
    note_("the coordinator listens on every interface: the endpoint is " + endpoint_ + ", and " +
          why);
  }
  return status;
}

Status Hosting::bind(const std::string& host) {
  // Most agents are clients, and so are all but one of those on the endpoint's machine.
  Status status = os::Listener::check(host, options_.endpoint_port);
  const bool must_name_owner =
      options_.is_host == true && status.code() == StatusCode::kUnavailable;
  if (!status.ok() && !must_name_owner) return status;
  return open_service(host, {options_.endpoint_port, options_.endpoint_port});
}

// At the first of the ports that is free.
Status Hosting::open_service(const std::string& host, const PortRange& ports, bool is_standby) {
  const auto create = [&](os::EventLoop* own) {
    CoordinatorOptions coordinator;
    coordinator.host = host;
    // If a store keeps a record, it is the record of this agent's job; other jobs have one voter.
    coordinator.voters = options_.backend == nullptr ? options_.voters : 1;
    coordinator.token = options_.token;
    coordinator.on_exclude = options_.on_exclude;
    // This process also needs descriptors for the workers' store, their files and the guardian.
    coordinator.store_limits.descriptors_reserved = os::descriptor_limit() / 4;
    coordinator.log = [loop = loop_, alive = std::weak_ptr<bool>(alive_),
                       log = log_](std::string_view line) {
      loop->post([alive, log, text = std::string(line)] {
        if (alive.lock() != nullptr) log(text);
      });
    };
    CoordinatorHost agent{.job = run_id_, .feed = {}, .is_standby = is_standby};
    if (feed_) {
      agent.feed = [loop = loop_, alive = std::weak_ptr<bool>(alive_),
                    feed = feed_](const succession::Event& event) {
        loop->post([alive, feed, event] {
          if (alive.lock() != nullptr) feed(event);
        });
      };
    }
    for (std::uint32_t port = ports.first;; ++port) {
      coordinator.port = static_cast<std::uint16_t>(port);
      auto opened = CoordinatorService::open(own, coordinator, agent);
      const bool is_taken = opened.status().code() == StatusCode::kUnavailable;
      if (!is_taken || port >= ports.last) return opened;
    }
  };
  auto service = os::LoopObject<CoordinatorService>::start("elastic-coord", create, loop_->clock());
  if (!service.ok()) return service.status();
  service_ = *std::move(service);
  is_serving_ = !is_standby;
  is_standby_ = is_standby;
  bound_host_ = service_->object().host();
  port_ = service_->object().port();
  const bool is_reachable = !os::parse_address(bound_host_)->is_loopback();
  if (is_reachable && !options_.token.is_set()) {
    const bool is_endpoint = options_.backend == nullptr && port_ == options_.endpoint_port;
    const std::string where = is_endpoint ? endpoint_ : core::join_address(bound_host_, port_);
    note_("warning: every process that reaches the coordinator at " + where +
          " can join or close this job: set a token on all nodes (--token-file)");
  }
  own_ = *os::look_up(bound_host_, port_);
  if (is_every_interface(own_.front())) own_ = *os::look_up("127.0.0.1", port_);
  return {};
}

// Unless this process listens already.
Status Hosting::open_in_range(const std::string& host, bool is_standby) {
  if (service_ != nullptr) return {};
  return open_service(host, options_.voter_ports, is_standby);
}

void Hosting::set_serving(bool is_serving) {
  is_serving_ = is_serving;
  is_standby_ = is_standby_ && !is_serving_;
}

Status Hosting::succeed(const succession::StartCoordinator& start, const std::string& host,
                        const NodeId& self) {
  Status status = open_in_range(host);
  if (!status.ok()) return status;
  service_->call([&](CoordinatorService& service) { status = service.succeed(start, self); });
  set_serving(status.ok());
  return status;
}

std::string Hosting::address(const std::string& published) const {
  const bool is_everywhere = bound_host_ == "0.0.0.0" || bound_host_ == "::";
  return core::join_address(is_everywhere ? published : bound_host_, port_);
}

void Hosting::on_succession(const succession::Action& action) {
  if (service_ == nullptr) return;
  if (std::holds_alternative<succession::StopCoordinator>(action) ||
      std::holds_alternative<succession::Displaced>(action)) {
    is_serving_ = false;
  }
  service_->post([action](CoordinatorService& service) { service.on_succession(action); });
}

Status Hosting::explain(const Status& why) const {
  if (is_host() || resolved_.empty()) return why;
  const std::string self =
      options_.is_host == false
          ? "another agent must host it (is_host=0, or --node-rank is not 0): start "
            "it, or correct the node rank"
      : !first_host_.empty() ? "the agent at " + first_host_ + ", the first of them, must host it"
      : !bind_error_.ok()    ? std::string(bind_error_.message())
                          : "the addresses of this host are " + list_of(os::interface_addresses());
  return {why.code(), std::string(why.message()) + "; no agent may be hosting " + endpoint_ +
                          "; it resolved to " + list_of(resolved_) + "; " + self};
}

void Hosting::drain(Duration limit, const CoordinatorEnd& end, std::function<void()> done) {
  service_->post([limit, end, loop = loop_, alive = std::weak_ptr<bool>(alive_),
                  done = std::move(done)](CoordinatorService& service) {
    const auto drained = [loop, alive, done] {
      loop->post([alive, done] {
        if (alive.lock() != nullptr) done();
      });
    };
    service.drain(limit, drained, end);
  });
}

}  // namespace elastic::host
