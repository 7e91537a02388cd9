#pragma once

// What a session does for the succession of its coordinator: opens the node's voter port, notices
// that the coordinator is lost, and runs the coordinator when this node is elected.
//
// Loop thread only. With voters=1 it opens its port only when the coordinator ends and asks for
// that. Where a store keeps the job's record it has no voter port.

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "core/session/coordinator_loss.h"
#include "core/session/session_wire.h"
#include "core/succession/succession_events.h"
#include "core/succession/succession_types.h"
#include "elastic/rendezvous_options.h"
#include "host/base/settled_line.h"
#include "host/coordinator/hosting.h"
#include "host/membership/endpoint_caller.h"
#include "host/membership/membership.h"
#include "host/membership/succession_part.h"
#include "host/succession/job_voter.h"
#include "host/succession/record_keeper.h"
#include "os/loop/registration.h"
#include "os/net/address.h"

namespace elastic::host {

class SessionSuccession final : public SuccessionPart {
 public:
  // `hosting` outlives the object.
  SessionSuccession(os::EventLoop* loop, const RendezvousOptions& options, std::string run_id,
                    Hosting* hosting, Sink sink);
  SessionSuccession(const SessionSuccession&) = delete;
  SessionSuccession& operator=(const SessionSuccession&) = delete;
  ~SessionSuccession() override = default;

  bool is_enabled() const override { return options_.voters != 1 || options_.backend != nullptr; }

  // Opens the store that keeps the job's record, or finds the witness.
  Status begin(Start start) override;
  // Opens the node's voter port, once.
  void introduce(const core::NodeInfo& node, const JobSettings& settings) override;
  void hosting_began() override;
  void round_started(const RoundRecord& record, int rank) override;
  void set_spares(int spares) override;
  void job_ended() override { has_ended_ = true; }
  void end() override { is_ending_ = true; }

  std::optional<std::string> recorded_address() const override;
  Status why_unrecorded() const override;
  void release(std::function<void()> done) override;
  void coordinator_absent(const std::string& address, bool is_reported) override;

  void complete(session::ClientHello* hello) const override;
  void session_connected() override;
  void session_opened(std::uint64_t incarnation, std::uint64_t term,
                      const std::string& address) override;
  void session_active() override;
  void session_closed(const JobSettings& settings, Duration round_trip) override;
  void session_silent(const JobSettings& settings) override;
  void informed(const succession::Incumbent& incumbent) override;
  void set_timings(Duration node_timeout, Duration store_grace) override;
  void displaced(const succession::Incumbent& by) override;
  session::OpenedPorts open_ports(const succession::Incumbent& coordinator) override;
  std::string sent_elsewhere(const succession::Incumbent& successor,
                             bool is_from_coordinator) override;

 private:
  Status open_keeper(std::function<std::string(const std::string&)> address);
  void find_witness(std::function<void()> ready);
  // Before introduce(): handled by it.
  void feed(succession::Event event);
  void on_action(const succession::Action& action);
  void follow(const succession::StartCoordinator& start);
  void follow(const succession::Follow& action);
  void follow(const succession::AnnounceAtEndpoints& action);
  void follow(const succession::Displaced& action);
  void follow(const succession::Expired& action);
  void follow(const succession::KeeperFault& action);
  void follow(const succession::Log& action);
  template <typename OfCoordinator>
  void follow(const OfCoordinator& action) {
    hosting_->on_succession(action);
  }
  void judge_loss();
  void await_loss();
  Status open_voter(bool has_port);
  void retire_voter();
  void note_lineage(const reg::LineageId& lineage);
  void join_lineage(const reg::LineageId& lineage);
  void log_survival(bool is_round);
  void report_coordinator(CoordinatorInfo now);

  os::EventLoop* const loop_;
  const RendezvousOptions options_;
  const std::string run_id_;
  Hosting* const hosting_;
  const Sink sink_;

  std::shared_ptr<Tokens> tokens_;  // set by begin()
  JobVoter::Options port_;          // set by introduce()
  core::NamedSuccessor named_;
  std::string witness_;  // host:port; "": none
  std::unique_ptr<os::NameLookup> witness_lookup_;
  // The lineages of dissolved jobs. Under the same id this node does not vote in them again.
  std::set<reg::LineageId> former_lineages_;
  std::deque<succession::Event> early_;
  bool was_introduced_ = false;

  std::string survival_;             // as last found
  bool was_replicated_ = false;      // the job had several voters
  succession::SurvivalFacts round_;  // of the current round
  bool is_ending_ = false;
  bool has_ended_ = false;
  core::CoordinatorWatch watch_;
  std::shared_ptr<const CoordinatorInfo> coordinator_;  // as last reported
  os::Timer loss_timer_;
  std::unique_ptr<JobKeeper> voter_;
  RecordKeeper* keeper_ = nullptr;  // voter_, if a store keeps the record
  SettledLine survival_line_;
  EndpointCaller caller_;
};

}  // namespace elastic::host
