#pragma once

// A small model of a coordinator's service: sessions in, a job behind them, messages out.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/job/job.h"
#include "sim/kernel/net.h"
#include "sim/kernel/world.h"

namespace elastic::test {

inline constexpr const char* kJobId = "job";

class SimService {
 public:
  explicit SimService(SimWorld* world) : world_(world), clock_(&world->clock()) {}
  virtual ~SimService() = default;
  SimService(const SimService&) = delete;
  SimService& operator=(const SimService&) = delete;

  std::shared_ptr<SimLink> accept(std::shared_ptr<SimPath> path);
  // The process, or its host, ends.
  void end(bool is_host_dead);

 protected:
  struct Session {
    std::shared_ptr<SimLink> link;
    bool has_joined = false;       // its heartbeats are a node's signs of life
    std::uint32_t timings_of = 0;  // the generation whose timings were sent
    std::string voter_address;     // from the hello, as the lineage
    reg::LineageId lineage = {};
    std::optional<Instant> unanswered;  // a heartbeat behind a leave that is not in force
  };
  using Sessions = std::map<NodeId, Session>;

  virtual void greet(const std::shared_ptr<SimLink>& link, const SimLink::Hello& hello) = 0;
  // False: the node has left, and no record shows that yet.
  virtual bool may_acknowledge(const NodeId& id, Session* session, Instant sent);
  // Of what the node has sent before this heartbeat.
  virtual void acknowledge(const NodeId& id, Session* session, Instant sent);
  void acknowledge_leaves();
  // How long the coordinator has had no majority.
  virtual Duration alone() const { return {}; }
  virtual void serve(const NodeId& id, const core::RendezvousEvent& event);
  virtual void session_lost(const NodeId& id, const SimLink& link) = 0;
  // Of the job's first round.
  virtual Duration start_hold() const { return core::kStartHold; }
  // The first node has joined.
  virtual void job_began() {}
  virtual void step(const core::JobEvent& event) = 0;
  // Whether the node was removed from the job with it.
  virtual bool send(const core::RendezvousAction& action);
  void carry_out(const std::vector<core::JobAction>& actions);

  // Replaces the session that the node had.
  Session& open(const NodeId& node, const std::shared_ptr<SimLink>& link);
  void watch_deadline();
  void drop_job();
  const core::RendezvousMachine& rendezvous() const { return job_->rendezvous(); }

  SimWorld* world_;
  SimClock* clock_;
  // From the first join or resume on, with its timings.
  std::optional<core::Job> job_;
  std::vector<std::shared_ptr<SimLink>> links_;
  Sessions sessions_;
  Pause pause_;
  std::uint64_t era_ = 0;  // counts lives; older callbacks are void

 private:
  void receive(const std::shared_ptr<SimLink>& link, const SimLink::Message& message);
  void serve_report(const NodeId& id, bool has_joined, const core::NodeReport& report);
  void closed(const std::shared_ptr<SimLink>& link);
  Sessions::iterator session_of(const std::shared_ptr<SimLink>& link);

  Alarm alarm_;
};

}  // namespace elastic::test
