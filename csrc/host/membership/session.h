#pragma once

// A node's membership through a session with a coordinator.
//
// Loop thread only. The rules (what is sent first on a new connection, heartbeats, when to give up)
// are in core/session/session_machine.h; this class connects the machine to sockets, name look-ups
// and, where this process is the host of the endpoint, to the coordinator
// (host/coordinator/hosting.h). The coordinator may move (host/membership/succession_part.h), and
// without an endpoint a store names it.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/session/session_connection.h"
#include "core/session/session_machine.h"
#include "core/session/session_route.h"
#include "core/session/session_wire.h"
#include "elastic/rendezvous_options.h"
#include "host/base/action_queue.h"
#include "host/base/tokens.h"
#include "host/coordinator/hosting.h"
#include "host/membership/membership.h"
#include "host/membership/session_link.h"
#include "host/membership/succession_part.h"
#include "os/loop/registration.h"
#include "os/net/address.h"
#include "os/net/stream.h"

namespace elastic::host {

class Session final : public Membership {
 public:
  // `loop` outlives the session. `liveness_port`: of this process; 0: none. REQUIRES: options have
  // an endpoint or a backend, settings.validate().ok()
  static Result<std::unique_ptr<Session>> open(os::EventLoop* loop,
                                               const RendezvousOptions& options,
                                               const std::string& run_id, Sink sink,
                                               std::uint16_t liveness_port = 0);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() override;

  void send(const core::NodeStatement& statement) override;
  void introduce(const core::NodeInfo& node) override;
  void report_only(const NodeId& node) override { feed(Machine::Introduce{node}); }
  void send_workers(const WorkerReport& report) override {
    if (link_ != nullptr) link_->send(session::Workers{report});
  }
  void report(const core::NodeReport& report) override { feed(Machine::Report{report}); }
  int waiting_nodes() const override { return counts_.waiting_nodes; }
  void drain(Duration limit, std::function<void()> done) override;

 private:
  using Machine = core::SessionMachine;

  Session(os::EventLoop* loop, const RendezvousOptions& options, const std::string& run_id,
          Sink sink, std::uint16_t liveness_port);
  Status begin();
  void local_address_found(const Result<std::vector<os::SocketAddress>>& found);
  Status begin_succession();
  void search();
  void feed(const Machine::Event& event);
  void carry_out(std::vector<Machine::Action> actions);
  void execute(Machine::Connect action);
  void execute(Machine::CancelAttempt) { attempt_.reset(); }
  void execute(Machine::Disconnect action);
  void execute(Machine::SendHello action);
  void execute(Machine::Send action);
  void execute(Machine::SendReport action);
  void execute(Machine::SendHeartbeat action) { link_->send(session::Heartbeat{action.sent}); }
  void execute(Machine::Deliver action);
  void execute(Machine::Log action) { notify(MembershipProgress{action.message, action.deadline}); }
  void execute(Machine::Lost action);
  void execute(Machine::EndCoordinator action);
  void execute(Machine::ReleaseRecord);
  void execute(Machine::Ended) { on_drained_(); }
  void execute(Machine::CoordinatorActive) { succession_->session_active(); }
  void execute(Machine::CoordinatorFound action);
  void execute(Machine::CoordinatorNamed action);
  void execute(Machine::Directed action);
  void execute(Machine::Dissolved action) { succession_->displaced(action.by.incumbent); }
  void execute(Machine::PortsWanted action);
  void execute(Machine::JobTimings action) {
    succession_->set_timings(action.node_timeout, action.store_grace);
  }
  void execute(Machine::JobCounts action);
  void execute(Machine::Inform action);
  void on_timer();
  void start_attempt(const Machine::Connect& connect);
  void stand_by();
  void attempt_done(std::variant<os::DetachedStream, SessionAttempt::Failure> outcome);
  void install(os::DetachedStream connection);
  void on_message(const session::ServerMessage& message);
  void join_elsewhere(const std::string& address, const std::string& reason);
  void on_lost(const Status& why);
  void notify(const MembershipEvent& event) { sink_(event); }
  void log_progress(const std::string& message) { notify(MembershipProgress{message}); }
  std::string published_address() const;
  std::string coordinator_address() const;
  void note_host(const std::optional<std::string>& job);
  std::variant<Hosting::Addresses, Hosting::Failure> route_first(
      const Result<Hosting::Addresses>& found);
  // Constant after construction.
  os::EventLoop* const loop_;
  const RendezvousOptions options_;
  const std::uint16_t liveness_port_;
  const std::string run_id_;
  const std::vector<Endpoint> endpoints_;  // the first one, and the further ones
  const Sink sink_;

  Machine machine_;
  ActionQueue<Machine::Action> actions_;
  const session::NodeSecret secret_;
  std::shared_ptr<Tokens> tokens_;  // null: sessions are not encrypted
  Hosting hosting_;
  const std::unique_ptr<SuccessionPart> succession_;
  session::Counts counts_;
  std::string local_address_;    // "": the connection's
  os::SocketAddress link_peer_;  // the other end of `link_`
  core::SessionRoute<os::SocketAddress> route_;
  bool has_stood_by_ = false;
  std::vector<std::unique_ptr<os::NameLookup>> endpoint_lookups_;
  std::string host_job_noted_;
  std::unique_ptr<os::NameLookup> local_lookup_;
  const std::shared_ptr<PeerGroup> connections_;
  std::unique_ptr<SessionAttempt> attempt_;
  std::unique_ptr<SessionLink> link_;
  std::function<void()> on_drained_;
  os::StallWatch stall_watch_;
  os::Timer timer_;
};

}  // namespace elastic::host
