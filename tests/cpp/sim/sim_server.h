#pragma once

// A model of a coordinator's service whose job has a record. It belongs to a process of
// succession_world.h, whose machine decides.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/job/job.h"
#include "core/succession/admission.h"
#include "core/succession/early_joins.h"
#include "core/succession/succession_events.h"
#include "sim/sim_agent.h"
#include "sim/sim_service.h"
#include "sim/sim_store.h"
#include "sim/succession_checker.h"

namespace elastic::test {

// A rule of the service that a test can delete, to show that the simulation notices.
enum class ServiceRule : std::uint8_t {
  kNone,
  kHoldDecisions,       // R3: a round or a result is sent when its record is in force
  kRefuseOtherLineage,  // a coordinator without the register turns a replicated job's nodes away
  kSayAlone,            // R5: nodes count store_grace from the last reply with a majority
  kRecordLeaves,        // R6: a leave is acknowledged when it is recorded
  kMeet,                // R8: of two lineages of one job id the later one dissolves
};

// The processes of a job that take part in the succession of its coordinator.
class SimProcesses : public SimAgentWorld {
 public:
  using SimAgentWorld::SimAgentWorld;

  static std::string name(std::size_t slot) { return "node" + std::to_string(slot); }
  // For the succession machine of a process, and what it says.
  virtual void feed(std::size_t slot, const succession::Event& event) = 0;
  virtual const std::optional<succession::Incumbent>& incumbent(std::size_t slot) const = 0;
  // An action leaves for a node.
  virtual void check(std::size_t slot, const core::RendezvousAction& action,
                     SuccessionChecker* checker) = 0;
};

class SimServer : public SimService {
 public:
  // `checker`: of the job that it coordinates. is_standalone: its process is no agent of the job.
  SimServer(SimProcesses* world, std::size_t slot, SuccessionChecker* checker, ServiceRule deleted,
            bool is_standalone)
      : SimService(world),
        processes_(world),
        slot_(slot),
        checker_(checker),
        deleted_(deleted),
        admission_(is_standalone ? "" : kJobId) {}
  // Its process alone keeps the record, in a file if there is one; continues the job of that.
  void keep_alone(SimFile* file);
  // Continues the job of a record.
  void succeed(const succession::StartCoordinator& start, const NodeId& self);
  void begin_record();
  void in_force(std::uint64_t number);
  void inform(const succession::Incumbent& incumbent);
  void set_majority(bool has_majority);
  void stop(const succession::StopCoordinator& stop);
  // An elected coordinator announces itself here; the reply.
  session::Incumbent announce(const succession::Incumbent& theirs);
  void displace(const succession::Incumbent& by);
  bool is_over() const { return !job_ || job_->is_over(); }
  bool is_serving() const { return !stopped_ && !is_displaced_; }

 private:
  std::optional<succession::Admission::Here> here() const;
  bool is_of_another_job(const NodeId& id, const rdzv::Resume& resume) const;
  void greet(const std::shared_ptr<SimLink>& link, const SimLink::Hello& hello) override;
  bool may_acknowledge(const NodeId& id, Session* session, Instant sent) override;
  Duration alone() const override;
  void serve(const NodeId& id, const core::RendezvousEvent& event) override;
  void session_lost(const NodeId& id, const SimLink& link) override;
  Duration start_hold() const override;
  void job_began() override;
  void step(const core::JobEvent& event) override;
  bool send(const core::RendezvousAction& action) override;
  void begin_next_job();
  std::optional<succession::Incumbent> own() const;
  bool must_wait_for_resumes(const core::RendezvousEvent& event);
  void admit_early_joins();
  void propose();
  void report_nodes();
  void report_nodes_now();
  // All sessions end with these messages.
  void dismiss(const std::vector<SimLink::Message>& messages);

  SimProcesses* processes_;
  std::size_t slot_;
  SuccessionChecker* checker_;
  ServiceRule deleted_;
  bool has_removed_ = false;   // a node, in the current step
  std::size_t num_nodes_ = 0;  // of the job, after the last step
  bool is_alone_ = false;
  SimFile* file_ = nullptr;
  // Of a job whose record a store keeps: this coordinator.
  std::optional<succession::Incumbent> kept_;
  std::uint64_t term_ = 1;
  succession::EarlyJoins early_joins_;
  std::optional<std::pair<std::uint64_t, RoundRecord>> proposed_;  // last, with its number
  std::optional<succession::Incumbent> informed_;
  std::optional<Instant> alone_since_;
  std::optional<succession::StopCoordinator> stopped_;
  bool is_displaced_ = false;
  bool is_reporting_ = false;
  succession::Admission admission_;
};

}  // namespace elastic::test
