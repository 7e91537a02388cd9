#pragma once

// What a session does for the succession of its coordinator: opens the node's voter port, notices
// that the coordinator is lost, and runs the coordinator when this node is elected.
//
// Loop thread only. With voters=1 it runs the coordinator only if it is asked to. Where a store
// keeps the job's record it has no voter port.

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
#include "host/membership/membership.h"
#include "host/succession/job_voter.h"
#include "host/succession/record_keeper.h"
#include "os/loop/registration.h"

namespace elastic::host {

class SessionVoter {
 public:
  struct Sink {
    // The session connects to the coordinator at this address.
    std::function<void(const std::string& address)> move;
    // It joins a job of the same id at this address, because its own has dissolved.
    std::function<void(const std::string& address, const std::string& reason)> displace;
    // The elected coordinator of this process announces itself at the job's endpoints.
    std::function<void(const succession::Incumbent& incumbent)> announce;
    std::function<void(const std::string& message)> log;
    std::function<void(const std::string& message)> log_detail;
    std::function<void(MembershipCoordinator now)> coordinator;
    // The coordinator in this process has lost its authority for good: the node stops its workers.
    std::function<void(int exit_code, const std::string& reason)> lost;
  };

  static bool is_enabled(const RendezvousOptions& options) {
    return options.voters != 1 || options.backend != nullptr;
  }

  // `hosting` outlives the object.
  SessionVoter(os::EventLoop* loop, const RendezvousOptions& options, std::string run_id,
               Hosting* hosting, Sink sink);
  SessionVoter(const SessionVoter&) = delete;
  SessionVoter& operator=(const SessionVoter&) = delete;
  ~SessionVoter() = default;

  // The node joins: opens its voter port, once. `tokens`: null: nothing is encrypted.
  void open(const core::NodeInfo& node, const JobSettings& settings,
            std::shared_ptr<Tokens> tokens);
  // The address of the job's witness: host:port. Call it before open().
  void set_witness(const std::string& address) { witness_ = address; }
  const std::string& witness() const { return witness_; }
  // Opens the store that keeps the job's record: `address` receives this host's
  // (RecordKeeper). Call it before the first attempt to connect. REQUIRES: options.backend
  Status open_keeper(std::function<void(std::string)> address);
  // This process runs the coordinator of the job from now on, without the state of an earlier one.
  void hosting_began();
  // At which other nodes reach a coordinator of this process. With a store only.
  void set_own_address(const std::string& address);
  // The store that keeps the job's record; null: voters do.
  const RecordKeeper* keeper() const { return keeper_; }
  // No coordinator of the job is at the address: the process there says so, or none listens.
  void coordinator_absent(const std::string& address, bool says_so);
  // There is a connection to a process that has answered as a coordinator, perhaps of a different
  // job.
  void session_connected();
  // Gives the role of the coordinator back and calls `done`. REQUIRES: keeper() != nullptr
  void release(std::function<void()> done) { keeper_->release(std::move(done)); }
  // Before open(): handled by it.
  void feed(succession::Event event);
  std::optional<session::SuccessionHello> hello() const;

  // A round begins: the agent that runs the coordinator logs what the job survives.
  void round_started(const RoundRecord& record, int rank);
  void set_spares(int spares);

  // The job's result is known: losses of voters are expected from now on.
  void job_ended() { has_ended_ = true; }

  // This agent ends: it takes nothing over, and announces itself no more.
  void end() { is_ending_ = true; }
  // The coordinator ends before the job, and asks this node to run it.
  std::optional<session::TakenOver> take_over(const session::TakeOver& offer);
  // The last reply, if the coordinator of a session that is open again may not have received it.
  std::optional<session::TakenOver> repeat_taken_over() const;

  // ---- The session with the coordinator.

  // `address`: of the coordinator, as this node reached it.
  void session_opened(std::uint64_t incarnation, std::uint64_t term, const std::string& address);
  // The coordinator at the other end named itself and the voters.
  void informed(const succession::Incumbent& incumbent);
  // The coordinator at the other end has dissolved the job: the node joins the job of `by`.
  void displaced(const succession::Incumbent& by);
  // It ends without a successor, and closes the session after this.
  void coordinator_leaves() { hand_over_.coordinator_leaves(); }
  // The process at the other end names the coordinator. `is_from_coordinator`: the session was with
  // a coordinator. Returns the address to go to.
  std::string sent_elsewhere(const session::Incumbent& successor, bool is_from_coordinator);
  const std::optional<succession::Successor>& named() const { return hand_over_.named(); }
  void session_active();
  void session_closed(const JobSettings& settings, Duration round_trip);
  // A heartbeat has no reply.
  void session_silent(const JobSettings& settings);

 private:
  void on_action(const succession::Action& action);
  void start_coordinator(const succession::StartCoordinator& start);
  void judge_loss();
  void await_loss();
  void carry_out(core::HandOverMember::Order order);
  void run_taken_over();
  void announce_taken_over(const succession::Successor& job);
  void log_survival(bool is_round);
  void report_coordinator(CoordinatorInfo now);

  os::EventLoop* const loop_;
  const RendezvousOptions options_;
  const std::string run_id_;
  Hosting* const hosting_;
  const Sink sink_;

  JobVoter::Options port_;  // set by open()
  core::HandOverMember hand_over_;
  std::string witness_;  // "": none
  // The lineages of dissolved jobs. Under the same id this node does not vote in them again.
  std::set<reg::LineageId> former_lineages_;
  std::deque<succession::Event> early_;
  bool was_opened_ = false;

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
};

}  // namespace elastic::host
