#pragma once

// Whether this process runs the coordinator, and the coordinator if it does.
//
// The agent that can bind the endpoint's address hosts the coordinator; names are never compared.
// The first agent on that machine that binds it is the host; all other agents are clients.
//
// Loop thread only; the coordinator runs on a separate thread.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/session/session_machine.h"
#include "elastic/rendezvous_options.h"
#include "elastic/status.h"
#include "host/coordinator/coordinator_service.h"
#include "os/loop/loop_object.h"
#include "os/loop/registration.h"
#include "os/net/address.h"

namespace elastic::host {

// Which of a name's addresses, on several hosts, belongs to the host that runs the coordinator:
// IPv4 before IPv6, then the smallest. Every node that resolves the name to the same addresses
// finds the same one. REQUIRES: !addresses.empty()
const os::SocketAddress& hosting_address(const std::vector<os::SocketAddress>& addresses);

class Hosting {
 public:
  using Addresses = std::vector<os::SocketAddress>;
  using Failure = core::SessionMachine::AttemptFailed;
  using LogSink = std::function<void(const std::string& message)>;

  // `endpoint` is for messages. `log` receives the coordinator's log lines, on the loop. `loop`
  // outlives the object.
  Hosting(os::EventLoop* loop, const RendezvousOptions& options, std::string run_id,
          std::string endpoint, LogSink log_action, LogSink log);
  Hosting(const Hosting&) = delete;
  Hosting& operator=(const Hosting&) = delete;
  ~Hosting();  // ends the coordinator, as a crash would
  // To the succession machine of this agent, called on the loop. Call it before route().
  void set_feed(SuccessionFeed feed) { feed_ = std::move(feed); }

  // Returns the addresses to connect to, given those that the endpoint's name resolves to. Until
  // fix_role() each call checks whether this process is the host, and then starts the coordinator;
  // not while `may_host` is false.
  std::variant<Addresses, Failure> route(const Result<Addresses>& found, bool may_host = true);
  // As route(), for a further endpoint, where no coordinator is started.
  std::variant<Addresses, Failure> route_further(const Result<Addresses>& found,
                                                 std::uint16_t port) const;
  // Listens at a further endpoint if that is an address of this host, to direct nodes to the
  // coordinator. `own`: the only address of this node to do that at; "": any.
  void stand_by(const Result<Addresses>& found, std::uint16_t port, const std::string& own);
  // As stand_by(), for the first endpoint: only if its name has addresses of several hosts.
  void stand_by_first(const Result<Addresses>& found, const std::string& own);
  // The coordinator to which nodes are directed, if this process listens at a further endpoint.
  void note_coordinator(const std::string& address);
  // A coordinator was found: a process that is not the host now will not become it.
  void fix_role() { is_role_fixed_ = true; }
  // It runs in an agent of another job, and may end with that agent: then this process may host.
  void release_role() { is_role_fixed_ = false; }
  bool is_host() const { return service_ != nullptr && !is_standby_; }
  // The coordinator of this agent's own job is the one in this process.
  bool is_serving() const { return is_serving_; }
  // At which this process reaches the coordinator in it. REQUIRES: is_host()
  const Addresses& own_addresses() const { return own_; }
  // At which other nodes reach the coordinator of this process, if they reach this process at
  // `published`. REQUIRES: is_host()
  std::string address(const std::string& published) const;

  // Runs the coordinator that this node was elected for, at a port of the options' range. `host`:
  // where it listens; "": every interface. `self`: this node.
  Status succeed(const succession::StartCoordinator& start, const std::string& host,
                 const NodeId& self);
  // Listens where succeed() would run it, unless this process listens already.
  Status prepare(const std::string& host) { return open_in_range(host, true); }
  // This agent's job has dissolved: its coordinator is in another process.
  void displaced() { is_serving_ = false; }
  // Executes an action of this agent's succession machine that concerns the coordinator.
  void on_succession(const succession::Action& action);

  // Adds to the error why no coordinator may have answered.
  Status explain(const Status& why) const;

  // Calls `done` from the loop when every job and every session has ended, when waiting would not
  // let an unfinished job end, or after `limit`. REQUIRES: is_host(), called once
  void drain(Duration limit, const CoordinatorEnd& end, std::function<void()> done);

 private:
  Status try_host(const Result<Addresses>& found);
  bool is_of_several_hosts(const Addresses& addresses) const;
  bool is_own_standby(const os::SocketAddress& address) const;
  Status try_host_everywhere(const std::string& why);
  Status bind(const std::string& host);
  Status open_service(const std::string& host, const PortRange& ports, bool is_standby = false);
  Status open_in_range(const std::string& host, bool is_standby = false);
  void set_serving(bool is_serving);

  os::EventLoop* const loop_;
  const RendezvousOptions options_;
  const std::string run_id_;
  const std::string endpoint_;
  const LogSink note_;
  const LogSink log_;
  SuccessionFeed feed_;
  bool is_role_fixed_ = false;
  // The name has addresses of several hosts. The one at the first of them asks the others before it
  // hosts.
  bool has_asked_others_ = false;
  std::string first_host_;  // that address, in messages; "": the name has one host's addresses
  Addresses resolved_;      // to which the endpoint's name resolved last
  Status bind_error_;       // for an address of this machine
  Addresses own_;           // at which this process reaches its own coordinator
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<os::LoopObject<CoordinatorService>> service_;  // null: nothing listens here
  std::string bound_host_;
  std::uint16_t port_ = 0;
  bool is_serving_ = false;
  std::string coordinator_;  // as noted last
  bool is_standby_ = false;  // the service has coordinated no job yet
};

}  // namespace elastic::host
