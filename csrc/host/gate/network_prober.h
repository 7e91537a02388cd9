#pragma once

// A node's part in the check of the network: answers other nodes at a port of its own, and measures
// the network to another node when the coordinator orders it (docs/policy.md).
//
// The members are called on the loop thread. The measurements have a thread of their own, with a
// loop: they disturb neither the agent nor each other.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/gate/probe_messages.h"
#include "elastic/rendezvous_options.h"
#include "elastic/status.h"
#include "elastic/token_options.h"
#include "os/loop/loop_object.h"

namespace elastic::os {
class EventLoop;
}  // namespace elastic::os

namespace elastic::host {

class NetworkProber {
 public:
  struct Options {
    std::string job_id = {};
    std::string bind_host = {};  // where the port listens; "": every interface
    PortRange ports = {};
    TokenOptions token = {};  // not set: nothing is encrypted
  };
  struct Sink {
    std::function<void(const gate::ProbeReport& report)> report;
    std::function<void(const std::string& text)> log;
  };

  // Listens. Errors are those of os::Listener::open() and open_tokens(). `loop` outlives the
  // object; the sink is called from it.
  static Result<std::unique_ptr<NetworkProber>> open(os::EventLoop* loop, Options options,
                                                     Sink sink);
  NetworkProber(const NetworkProber&) = delete;
  NetworkProber& operator=(const NetworkProber&) = delete;
  ~NetworkProber();  // ends what is being measured, and joins the thread

  std::uint16_t port() const;
  // A report follows; unless a later order replaces it.
  void on_order(const gate::ProbeOrder& order);

 private:
  class Worker;

  NetworkProber(std::shared_ptr<Sink> sink, std::unique_ptr<os::LoopObject<Worker>> worker);

  const std::shared_ptr<Sink> sink_;  // ends with this object, whatever is posted then
  const std::unique_ptr<os::LoopObject<Worker>> worker_;
};

}  // namespace elastic::host
