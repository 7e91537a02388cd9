#pragma once

// One agent's session with the coordinator: the machine that production runs, on simulated links.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/session/coordinator_loss.h"
#include "core/session/session_machine.h"
#include "sim/kernel/net.h"

namespace elastic::test {

class SimAgent;
class SimAgentWorld;

class SimSession {
 public:
  // The agent outlives its session.
  SimSession(SimAgent* agent, SimAgentWorld* world, const JobSettings& settings);

  void begin();
  void send(const core::NodeStatement& statement);
  void report(const core::NodeReport& report);
  // The coordinator is at this address.
  void follow(const std::string& address);
  // The job has dissolved: another one goes on, with a coordinator at this address.
  void displace(const std::string& address);
  // The coordinator in the session's own process has lost its authority.
  // Calls `done` when the session has ended.
  void drain(std::function<void()> done);
  // The agent has ended. The peer is not notified if the host has died.
  void end(bool is_host_dead);
  // The coordinator has acknowledged the last messages, before the limit of the end.
  bool was_acknowledged() const { return was_acknowledged_; }
  std::shared_ptr<SimLink> link() const { return link_; }
  const std::string& fault() const { return fault_; }

 private:
  using Machine = core::SessionMachine;

  void feed(const Machine::Event& event);
  void carry_out(const std::vector<Machine::Action>& actions);
  void execute(const Machine::Action& action);
  void attempt(const std::string& address);
  void lose_link();
  void report_absent(const std::string& address, bool says_so);
  void watch_loss();
  void listen(const std::shared_ptr<SimLink>& link);
  void receive(const SimLink::Message& message);
  void closed(const char* why);
  void watch_deadline();
  void tick();

  // Later is delayed while the agent is paused, and dropped when it has ended.
  void later(Duration wait, std::function<void()> what);
  void log_progress(const std::string& what);

  SimAgent* agent_;
  SimAgentWorld* world_;
  SimClock* clock_;
  Machine machine_;
  std::shared_ptr<SimLink> link_;
  std::shared_ptr<SimLink> attempt_;  // has not answered yet
  std::string address_;               // of the last attempt
  std::string link_address_;
  std::uint64_t attempts_ = 0;  // callbacks of older attempts are ignored
  std::uint64_t alarms_ = 0;
  std::function<void()> on_drained_;
  bool was_acknowledged_ = false;
  core::CoordinatorWatch watch_;
  std::string leaving_;  // the reason that the last coordinator sent before it ended
  std::string fault_;
};

}  // namespace elastic::test
