#pragma once

// Whether this process runs the coordinator, and the coordinator if it does.
//
// The endpoint's host is whoever can bind the endpoint's address: names are never compared. The
// first agent there that does so hosts, and every other one, on that machine too, is a client.
//
// Loop thread only; the coordinator has a thread of its own.

#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "core/session/session_machine.h"
#include "elastic/rendezvous_options.h"
#include "elastic/status.h"
#include "host/coordinator/coordinator_service.h"
#include "os/loop/event_loop.h"
#include "os/loop/loop_thread.h"
#include "os/net/address.h"

namespace elastic::host {

// "localhost" and literal loopback addresses: every machine means itself by them.
bool is_loopback_name(const std::string& host);

class Hosting {
 public:
  using Addresses = std::vector<os::SocketAddress>;
  using Failure = core::SessionMachine::AttemptFailed;
  using LogSink = std::function<void(const std::string& message)>;

  // `endpoint` is for sentences. `log` gets what the coordinator logs, on the loop. `loop` outlives
  // the object.
  Hosting(os::EventLoop* loop, const RendezvousOptions& options, std::string run_id,
          std::string endpoint, LogSink log_action, LogSink log);
  Hosting(const Hosting&) = delete;
  Hosting& operator=(const Hosting&) = delete;
  ~Hosting();  // ends the coordinator, as a crash would

  // Where the session connects to, by what the endpoint's name resolves to. Until settle() each
  // call looks whether this process is the host, and starts the coordinator if so.
  std::variant<Addresses, Failure> route(const Result<Addresses>& found);
  // A coordinator was found: who is not the host now will not become it.
  void fix_role() { is_role_fixed_ = true; }
  bool is_host() const { return service_ != nullptr; }

  // What happened, and why nobody may have answered.
  Status explain(const Status& why) const;

  // Calls `done` from the loop when every job is over and every session has gone, when a job is not
  // over and waiting would help nobody, or after `limit`. REQUIRES: is_host(), called once
  void drain(Duration limit, const CoordinatorEnd& end, std::function<void()> done);

 private:
  Status try_host(const Result<Addresses>& found);
  Status try_host_everywhere(const std::string& why);
  Status bind(const std::string& host);

  os::EventLoop* const loop_;
  const RendezvousOptions options_;
  const std::string run_id_;
  const std::string endpoint_;
  const LogSink note_;
  const LogSink log_;
  bool is_role_fixed_ = false;
  Addresses resolved_;  // what the endpoint's name last was
  Status bind_error_;   // of an address that is this machine's
  Addresses own_;       // at which the coordinator of this process is reached from here
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<os::LoopThread> thread_;
  std::unique_ptr<CoordinatorService> service_;  // lives on thread_
};

}  // namespace elastic::host
