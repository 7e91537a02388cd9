#pragma once

// One job, as its coordinator has it: the rendezvous with the gate behind it, and the parts that
// extensions add, as one machine; and what observers see of it.
//
//   core::Job job("id", settings, now, kStartHold);
//   std::vector<core::JobAction> actions;
//   job.step(rdzv::Join{node, settings}, now, &actions);
//   // execute the actions in order; call step(rdzv::Tick{}) at job.next_deadline()
//
// Pure: no I/O, clock, threads or logging. The same calls in the same order give the same actions.
// A coordinator and the agent of a job with one node are its transports. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/parts.h"
#include "core/base/round_events.h"
#include "core/drain/drain_machine.h"
#include "core/gate/finding.h"
#include "core/gate/host_memory.h"
#include "core/gate/host_requests.h"
#include "core/gate/network_check.h"
#include "core/hang/hang_watch.h"
#include "core/job/job_history.h"
#include "core/job/round_gate.h"
#include "core/rendezvous/rendezvous_machine.h"
#include "core/snapshot/copy_plan.h"
#include "core/snapshot/snapshot_status.h"
#include "elastic/observer.h"
#include "elastic/time.h"

namespace elastic::core {

namespace job_event {
// As rdzv::Tick, without the rendezvous: at next_watch_deadline().
struct WatchTick {};
// The steps of a node's ranks.
struct Progressed {
  NodeId node;
  hang::NodeProgress progress;
};
// A node announces that ranks are to stop at an agreed step.
struct Noticed {
  NodeId node;
  drain::Notice notice;
};
struct Copied {
  NodeId node;
  snapshot::CopyReport report;
};
struct StopReplied {
  NodeId node;
  drain::Reply reply;
};
// A check of a node has ended.
struct Found {
  NodeId node;  // that reports it; it may not have joined
  gate::Finding finding;
};
// The same as Noticed by an observer, which receives a drain_action::Inform. `node`: only the nodes
// that have this name (HOST_PID, HOST_PID_N), or are on the host of this name or address, leave.
struct DrainRequested {
  std::uint64_t observer = 0;
  drain::Notice notice;
  std::optional<std::string> node;
};
}  // namespace job_event

using JobEvent =
    std::variant<RendezvousEvent, job_event::WatchTick, job_event::Progressed, hang_event::Finished,
                 hang_event::StacksReceived, hang_event::SignaturesReceived, hang_event::Requested,
                 job_event::Noticed, job_event::StopReplied, job_event::DrainRequested,
                 job_event::Found, job_event::Copied, job_event::HostRequested, job_event::Probed>;

namespace job_action {
using snapshot::OrderCopy;
}  // namespace job_action

// A RendezvousAction, a drain_action::Send and an OrderCopy are messages to one node.
using JobAction =
    std::variant<RendezvousAction, hang_action::Ask, hang_action::Publish, hang_action::Reply,
                 drain_action::Send, drain_action::Announce, drain_action::Inform,
                 job_action::OrderCopy, gate::HostAction, gate_action::Inform, gate::NetworkAction>;

// The parts, in the order in which they receive an event:
//
//   part          of         receives                                    asks the job for
//   hangs_        hang       Began Ended Over Leaving Left Progressed    its end
//                            ClockGap PartTick; hang_event::*
//   drain_        drain      Began Ended Over Leaving Left Progressed    its end, and when it grows
//                            ClockGap PartTick; drain_event::*
//   network_      gate       PartTick; job_event::Probed                 hosts_ to keep findings
//   snapshots_    snapshot   Ended Left; snapshot::Saved
//   copies_       snapshot   Ended Left; snapshot::Copied
//
// What a part asks the job for has an apply(); all other actions of a part are actions of the job.
// A part is added with a member, its name in parts_of(), and its own events in JobEvent. An event
// that needs something of the rendezvous before a part receives it, or that also has an effect on
// the rendezvous, has an on().
//
// hosts_ and history_ are no parts: the rendezvous asks hosts_ who may join, and history_ records
// rounds for observers.
class Job : private PartOwner<Job> {
 public:
  // As RendezvousMachine. REQUIRES: settings.validate().ok()
  Job(std::string id, JobSettings settings, Instant now, Duration start_hold);

  // The same as RendezvousMachine's, on a new object.
  Status restore(std::string_view bytes, Instant now) {
    Status fault = rendezvous_.restore(bytes, now);
    hosts_version_ = hosts_->version();
    note_generation();
    return fault;
  }
  Status succeed(std::string_view bytes, const RendezvousSuccession& succession, Instant now) {
    Status fault = rendezvous_.succeed(bytes, succession, now);
    hosts_version_ = hosts_->version();
    note_generation();
    return fault;
  }
  void begin_anew(const JobSettings& settings, Instant now) {
    rendezvous_.begin_anew(settings, now);
  }
  // Whether the step of this event may need them, which visit the owner's other jobs.
  bool needs_neighbours(const JobEvent& event) const {
    return std::holds_alternative<RendezvousEvent>(event) &&
           rendezvous_.phase() == RendezvousPhase::kForming;
  }
  void set_neighbours(std::string text) { rendezvous_.set_neighbours(std::move(text)); }

  void step(const JobEvent& event, Instant now, std::vector<JobAction>* out);
  // The record of this proposal is in force: what was held until then is sent.
  void in_force(std::uint64_t number, Instant now, std::vector<JobAction>* out);
  // The owner ends the job.
  void close(JobResult result, Instant now, std::vector<JobAction>* out);
  // The latest time for the next step(rdzv::Tick{}); an earlier one is allowed. nullopt: none is
  // needed.
  std::optional<Instant> next_deadline() const;
  // The same for job_event::WatchTick: for an owner whose nodes cannot be lost, while they wait for
  // nothing.
  std::optional<Instant> next_watch_deadline() const;

  const RendezvousMachine& rendezvous() const { return rendezvous_; }
  bool is_over() const { return rendezvous_.phase() == RendezvousPhase::kClosed; }
  // Decisions are sent when they are in force at its keeper.
  RoundGate& gate() { return gate_; }
  const RoundGate& gate() const { return gate_; }
  std::optional<Proposal> take_proposal() { return gate_.take_proposal(rendezvous_); }
  // What an earlier job of the id has left. Before the first step.
  void take_hosts(gate::HostMemory hosts) {
    *hosts_ = std::move(hosts);
    hosts_version_ = hosts_->version();
  }
  const gate::HostMemory& hosts() const { return *hosts_; }
  const HangWatch& hangs() const { return hangs_; }
  // What observers see of the agreed step; "": no notice was given.
  std::string describe_drain() const { return drain_.describe(); }
  const JobHistory& history() const { return history_; }
  std::optional<ObservedSave> saved(Instant now) const {
    auto found = snapshots_.newest(static_cast<std::size_t>(rendezvous_.members_left()), now);
    if (found) found->copied = copies_.copied().step;
    return found;
  }
  // What observers see, or what is stored, may have changed since the last call.
  bool take_changed() { return std::exchange(has_changed_, false); }

 private:
  void on(const RendezvousEvent& event);
  void on(const job_event::WatchTick&);
  void on(const job_event::Progressed& event);
  void on(const job_event::Noticed& event);
  void on(const job_event::StopReplied& event);
  void on(const job_event::DrainRequested& event);
  void on(const job_event::Found& event);
  void on(const job_event::Copied& event);
  void on(const job_event::HostRequested& event);
  template <typename Event>  // only of parts
  void on(const Event& event) {
    feed(event);
  }

  // ---- The parts.
  friend class PartOwner<Job>;
  template <typename Self>
  static auto parts_of(Self* job) {
    return std::tie(job->hangs_, job->drain_, job->network_, job->snapshots_, job->copies_);
  }
  template <typename Part>
  void settled(Part* part) {
    if (!findings_.empty()) remember_findings();
    if constexpr (requires { part->take_changed(); }) {
      if (part->take_changed()) note_change(*part);
    }
  }
  void apply(hang_action::Close action) { closing_ = std::move(action.result); }
  void apply(drain_action::Close action) { closing_ = std::move(action.result); }
  void apply(drain_action::HoldGrowth) { is_growth_to_be_held_ = true; }
  void apply(drain_action::Grow action) { grows_ = rdzv::Grow{std::move(action.why)}; }
  void apply(drain_action::Announce action);
  void apply(gate::network_action::Inform action);
  template <typename Other>
  void apply(Other action) {
    out_->push_back(std::move(action));
  }
  template <typename Part>
  void note_change(const Part&) {
    has_changed_ = true;
  }
  void note_change(const HangWatch& hangs);

  void begin(Instant now, std::vector<JobAction>* out);
  void decide();
  void settle();
  void rendezvous_step(const RendezvousEvent& event);
  void note_generation();
  bool is_needed_member(const NodeId& node) const;
  void note_report(const RendezvousEvent& event);
  void pass(std::vector<RendezvousAction> actions);
  // A node of the round that runs, or the end of the round, as this action says it to a node.
  void follow(const rdzv::Round& action);
  void follow(const rdzv::Resumed& action);
  void follow(const rdzv::Restart& action);
  void follow(const rdzv::Closed& action);
  void follow(const rdzv::Evicted& action);
  template <typename Other>
  void follow(const Other&) {}
  round_event::Began began(const NodeId& node, std::uint64_t round, int nodes,
                           Duration resume_limit) const;
  // Of the agreed step: job_drain.cc.
  bool follow_growth();
  bool follow_idle();
  void note_done_member(const rdzv::Resume& resume);
  std::vector<NodeId> members_at(const std::string& text) const;
  int spares() const;
  // Of hosts: job_hosts.cc.
  void feed_hosts(const gate::HostEvent& event);
  void pass_host_actions();
  std::optional<Instant> straggler_deadline() const;
  void judge_stragglers();
  std::string host_meant_by(const std::string& text) const;
  std::string stay_of(const std::string& host) const;
  // Of the network: job_network.cc.
  bool follow_start();
  void remember_findings();

  std::string id_;
  std::unique_ptr<gate::HostMemory> hosts_ = std::make_unique<gate::HostMemory>();
  std::uint64_t hosts_version_ = 0;  // as last submitted
  // Until the record with the number is in force.
  std::deque<std::pair<std::uint64_t, JobAction>> waiting_actions_;
  RendezvousMachine rendezvous_;
  RoundGate gate_;
  HangWatch hangs_;
  DrainMachine drain_;
  JobHistory history_;
  snapshot::SnapshotStatus snapshots_;
  snapshot::CopyPlan copies_;
  gate::NetworkCheck network_;
  bool is_network_checked_ = false;  // for the round that waits for it
  std::uint32_t generation_ = 1;     // as last seen
  bool is_growth_due_ = false;       // likewise
  bool has_changed_ = false;

  // During a step.
  std::vector<JobAction>* out_ = nullptr;
  std::optional<JobResult> closing_;  // by the judge of hangs, or at the agreed step
  bool is_growth_to_be_held_ = false;
  std::optional<rdzv::Grow> grows_;      // the round is to end for nodes that wait
  std::vector<gate::Finding> findings_;  // of the network, for hosts_
};

// The state of a job as observers see it, without the job's id, who coordinates it, and the time of
// the wall clock. `job`: null before the first join.
ObservedJob describe_job(const Job* job, Instant now);
std::vector<ObservedNode> describe_nodes(const RendezvousMachine& rendezvous, Instant now);

}  // namespace elastic::core
