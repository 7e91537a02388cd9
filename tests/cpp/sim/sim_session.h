#pragma once

// One agent's session with the coordinator: the machine that production runs, on simulated links.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/session/coordinator_watch.h"
#include "core/session/session_machine.h"
#include "sim/sim_net.h"

namespace elastic::test {

class SimSession {
 public:
  // What takes part in the succession of the coordinator; without functions: nothing does.
  struct Succession {
    std::function<session::SuccessionHello()> hello;
    std::function<void(const succession::Incumbent&)> informed;
    std::function<void()> lost;
    std::function<void()> returned;
    std::function<void(const succession::Incumbent&)> displaced;
  };
  // The agent of the session, which outlives it.
  struct Host {
    SimClock* clock;
    std::uint64_t seed;
    // A new connection to the address, or to the endpoint if it is empty. Null: no listener, or the
    // path is blocked.
    std::function<std::shared_ptr<SimLink>(const std::string& address)> connect;
    // Runs something later, or now; it is delayed while the agent is paused, and dropped when the
    // agent has ended.
    std::function<void(Duration, std::function<void()>)> later;
    std::function<void(std::function<void()>)> now;
    std::function<void(const core::RendezvousAction&)> deliver;
    std::function<void()> lost;
    std::function<void(const std::string&)> log_progress;
    Succession succession = {};
  };

  SimSession(const JobSettings& settings, Host host);

  void begin();
  void send(const core::NodeStatement& statement);
  // The coordinator is at this address.
  void follow(const std::string& address);
  // The job has dissolved: another one goes on, with a coordinator at this address.
  void displace(const std::string& address);
  void set_override_timeout(Duration timeout) { machine_.set_override_timeout(timeout); }
  // The coordinator in the session's own process has lost its authority.
  void expire(const std::string& reason) { feed(Machine::CoordinatorExpired{reason}); }
  // Calls `done` when the session has ended.
  void drain(std::function<void()> done);
  // The agent has ended. The peer is not notified if the host has died.
  void end(bool is_host_dead);
  std::shared_ptr<SimLink> link() const { return link_; }
  const std::string& fault() const { return fault_; }

 private:
  using Machine = core::SessionMachine;

  void feed(const Machine::Event& event);
  void carry_out(const std::vector<Machine::Action>& actions);
  void execute(const Machine::Action& action);
  void attempt(const std::string& address);
  void lose_link();
  void watch_loss();
  void listen(const std::shared_ptr<SimLink>& link);
  void receive(const SimLink::Message& message);
  void closed(const char* why);
  void watch_deadline();
  void tick();

  Host host_;
  Machine machine_;
  std::shared_ptr<SimLink> link_;
  std::shared_ptr<SimLink> attempt_;  // has not answered yet
  std::uint64_t attempts_ = 0;        // callbacks of older attempts are ignored
  std::uint64_t alarms_ = 0;
  std::function<void()> on_drained_;
  core::CoordinatorWatch watch_;
  std::string leaving_;  // the reason that the last coordinator sent before it ended
  std::string fault_;
};

}  // namespace elastic::test
