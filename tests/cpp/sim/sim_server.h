#pragma once

// A model of a coordinator's service with the job's gate: sessions in, a RendezvousMachine and a
// RoundGate behind them. It belongs to a process of succession_world.h, whose machine decides.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/rendezvous/rendezvous_machine.h"
#include "core/succession/meeting.h"
#include "core/succession/round_gate.h"
#include "core/succession/succession_events.h"
#include "sim/sim_net.h"

namespace elastic::test {

// A rule of the service that a test can delete, to show that the simulation notices.
enum class ServiceRule : std::uint8_t {
  kNone,
  kHoldDecisions,       // R3: a round or a result is sent when its record is in force
  kRefuseOtherLineage,  // a coordinator without the register turns a replicated job's nodes away
  kSayAlone,            // R5: nodes count store_grace from the last reply with a majority
  kRecordLeaves,        // R6: a leave is acknowledged when it is recorded
  kMeet,                // R8: of two lineages of one job id the later one dissolves
  kLeaveReplaced,       // a voter of a lineage that was replaced never votes in it again
};

class SimServer {
 public:
  struct Owner {
    SimClock* clock;
    Dice* dice;
    std::string job_id;
    ServiceRule deleted = ServiceRule::kNone;
    std::function<void(const succession::Event&)> feed;  // the succession machine of the process
    std::function<std::optional<succession::Incumbent>()> incumbent;
    std::function<void(const std::string&)> trace;
    // For the checker: an action leaves for a node.
    std::function<void(const core::RendezvousAction&)> sent;
    std::function<std::string(const NodeId&)> host_of;
  };

  explicit SimServer(Owner owner) : owner_(std::move(owner)) {}
  // Continues the job of a record.
  void succeed(const succession::StartCoordinator& start, const NodeId& self);
  std::shared_ptr<SimLink> accept(std::shared_ptr<SimPath> path);
  void turn_on();
  void in_force(std::uint64_t number);
  void inform(const succession::Incumbent& incumbent);
  void set_majority(bool has_majority);
  void stop(const succession::StopCoordinator& stop);
  // An elected coordinator announces itself here; the reply.
  session::Incumbent announce(const succession::Incumbent& theirs);
  void displace(const succession::Incumbent& by);
  void crash(bool is_host_dead);
  bool is_gated() const { return gate_.is_on(); }

 private:
  struct Session {
    std::shared_ptr<SimLink> link;
    std::string voter_address;
    std::optional<Instant> unanswered;  // a heartbeat behind a leave that is not in force
    bool has_joined = false;
    reg::LineageId lineage = {};  // from the hello
  };
  bool is_of_another_job(const NodeId& id, const rdzv::Resume& resume) const;
  void receive(const std::shared_ptr<SimLink>& link, const SimLink::Message& message);
  void greet(const std::shared_ptr<SimLink>& link, const SimLink::Hello& hello);
  void closed(const std::shared_ptr<SimLink>& link);
  void serve(const NodeId& id, const core::RendezvousEvent& event);
  void step(const core::RendezvousEvent& event);
  void send(const core::RendezvousAction& action);
  void propose();
  void report_nodes();
  void watch_deadline();
  SimLink::HeartbeatReply heartbeat_reply(Instant sent) const;
  NodeId node_of(const std::shared_ptr<SimLink>& link) const;

  Owner owner_;
  bool is_up_ = true;
  bool has_removed_ = false;   // a node, in the current step
  std::size_t num_nodes_ = 0;  // of the job, after the last step
  std::optional<core::RendezvousMachine> machine_;
  succession::RoundGate gate_{owner_.job_id};
  std::optional<succession::Incumbent> informed_;
  std::optional<Instant> alone_since_;
  std::optional<succession::StopCoordinator> stopped_;
  bool is_displaced_ = false;
  succession::AnnouncedCoordinators announced_;
  std::vector<std::shared_ptr<SimLink>> links_;
  std::map<NodeId, Session> sessions_;
  std::uint64_t alarm_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace elastic::test
