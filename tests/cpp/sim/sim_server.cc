#include "sim/sim_server.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "core/rendezvous/rendezvous_events.h"

namespace elastic::test {

using namespace std::chrono_literals;

void SimServer::keep_alone(SimFile* file) {
  is_alone_ = true;
  file_ = file;
  if (file == nullptr || !file->state()) return;
  job_.emplace(kJobId, file->state()->settings, clock_->now(), core::kStartHold);
  const Status restored = job_->restore(file->state()->bytes, clock_->now());
  world_->trace(
      SimProcesses::name(slot_) + "  coordinator: continues from its file: " +
      (restored.ok() ? rendezvous().describe(clock_->now()) : std::string(restored.message())));
  job_->gate().restored(rendezvous(), core::RecordKeeper::kFile);
  checker_->in_force(rendezvous().record());
  watch_deadline();
}

void SimServer::succeed(const succession::StartCoordinator& start, const NodeId& self) {
  term_ = start.term;
  if (start.is_kept) {
    kept_ = succession::Incumbent{start.lineage, start.term, self, {}, {}};
    if (start.record.state.empty()) return;  // nothing was decided yet
  }
  job_.emplace(kJobId, start.record.settings, clock_->now(), Duration(0));
  const Status restored =
      job_->succeed(start.record.state, {start.term, self, start.lost_incumbent}, clock_->now());
  world_->trace(
      SimProcesses::name(slot_) + "  coordinator: continues the job: " +
      (restored.ok() ? rendezvous().describe(clock_->now()) : std::string(restored.message())));
  job_->gate().restored(rendezvous(), core::RecordKeeper::kSuccession);
  checker_->in_force(rendezvous().record());
  for (const auto& node : start.record.nodes) {
    job_->gate().set_voter_address(node.node, node.voter_address);
  }
  const auto limit = kept_ ? early_joins_.begin(rendezvous()) : std::nullopt;
  if (limit) {
    clock_->after(*limit, [this, era = era_] {
      const auto settings = era == era_ ? early_joins_.time_out() : std::nullopt;
      if (!job_ || !settings) return;
      job_->begin_anew(*settings, clock_->now());
      admit_early_joins();
    });
  }
  watch_deadline();
}

// A store that keeps the record has one coordinator.
Duration SimServer::start_hold() const {
  return kept_ ? Duration::zero() : SimService::start_hold();
}

void SimServer::job_began() {
  if (file_ != nullptr) job_->gate().keep_at(core::RecordKeeper::kFile);
  if (kept_) job_->gate().keep_at(core::RecordKeeper::kSuccession);
}

bool SimServer::must_wait_for_resumes(const core::RendezvousEvent& event) {
  using Verdict = succession::EarlyJoins::Verdict;
  const auto* join = std::get_if<rdzv::Join>(&event);
  const auto* resume = std::get_if<rdzv::Resume>(&event);
  if (!job_ || (join == nullptr && resume == nullptr)) return false;
  const Verdict verdict = join != nullptr ? early_joins_.judge(rendezvous(), *join)
                                          : early_joins_.judge(rendezvous(), *resume);
  if (verdict == Verdict::kBeginAnew) {
    job_->begin_anew(join != nullptr ? join->settings : resume->settings, clock_->now());
  }
  return verdict == Verdict::kWait || verdict == Verdict::kKnown;
}

void SimServer::admit_early_joins() {
  for (const rdzv::Join& join : early_joins_.take()) {
    if (sessions_.contains(join.node.id)) serve(join.node.id, join);
  }
}

// The coordinator as this process names it.
std::optional<succession::Incumbent> SimServer::own() const {
  if (is_alone_) return std::nullopt;
  return kept_ ? (informed_ ? informed_ : kept_) : processes_->incumbent(slot_);
}

void SimServer::begin_record() {
  if (!job_ || job_->gate().keeper() == core::RecordKeeper::kSuccession) return;
  job_->gate().keep_at(core::RecordKeeper::kSuccession);
  propose();
}

void SimServer::in_force(std::uint64_t number) {
  if (!job_) return;
  if (proposed_ && proposed_->first == number) checker_->in_force(proposed_->second);
  std::vector<core::JobAction> actions;
  job_->in_force(number, clock_->now(), &actions);
  carry_out(actions);
  acknowledge_leaves();
  propose();
}

Duration SimServer::alone() const {
  return alone_since_ ? std::max(clock_->now() - *alone_since_, Duration(1)) : Duration(0);
}

void SimServer::set_majority(bool has_majority) {
  alone_since_.reset();
  if (!has_majority && deleted_ != ServiceRule::kSayAlone) alone_since_ = clock_->now();
}

void SimServer::inform(const succession::Incumbent& incumbent) {
  informed_ = incumbent;
  if (job_) {
    std::vector<NodeId> voters;
    for (const reg::Voter& voter : incumbent.voters) {
      if (voter.node != incumbent.node) voters.push_back(voter.node);
    }
    job_->gate().set_voters(std::move(voters));
    acknowledge_leaves();
  }
  for (const auto& [id, session] : sessions_) {
    session.link->send(Side::kServer, session::Incumbent{incumbent, false});
  }
}

void SimServer::dismiss(const std::vector<SimLink::Message>& messages) {
  drop_job();
  for (const auto& [id, session] : std::exchange(sessions_, {})) {
    for (const SimLink::Message& one : messages) session.link->send(Side::kServer, one);
    session.link->close(Side::kServer);
  }
}

void SimServer::stop(const succession::StopCoordinator& stop) {
  stopped_ = stop;
  admission_.lost(kJobId, stop.successor, clock_->now());
  std::vector<SimLink::Message> messages;
  if (stop.successor) messages.push_back(session::Incumbent{*stop.successor, true});
  messages.push_back(SimLink::Leaving{stop.reason});
  dismiss(messages);
}

std::optional<succession::Admission::Here> SimServer::here() const {
  using succession::Standing;
  if (stopped_ || is_displaced_) return std::nullopt;
  const bool is_over = job_ && job_->is_over();
  const Standing standing = is_over     ? Standing::kOver
                            : kept_     ? Standing::kStored
                            : !job_     ? Standing::kEmpty
                            : is_alone_ ? Standing::kRunning
                                        : Standing::kReplicated;
  return succession::Admission::Here{standing, own()};
}

session::Incumbent SimServer::announce(const succession::Incumbent& theirs) {
  using succession::Reaction;
  const auto answer = admission_.answer(
      {.job = kJobId, .from = succession::Admission::Call::From::kCoordinator, .announced = theirs},
      here(), clock_->now());
  const bool is_met = answer.reaction == Reaction::kMeet && deleted_ != ServiceRule::kMeet;
  if (is_met) processes_->feed(slot_, succession::Met{theirs});
  if (answer.reaction == Reaction::kGiveWay) displace(theirs);
  return {answer.incumbent, answer.reaction == Reaction::kNote};
}

// A coordinator that runs here later does so in a new server.
void SimServer::displace(const succession::Incumbent& by) {
  is_displaced_ = true;
  admission_.lost(kJobId, by, clock_->now());
  dismiss({session::Incumbent{by, true, "the job runs already"}});
}

bool SimServer::may_acknowledge(const NodeId& id, Session* session, Instant sent) {
  return deleted_ == ServiceRule::kRecordLeaves || SimService::may_acknowledge(id, session, sent);
}

void SimServer::greet(const std::shared_ptr<SimLink>& link, const SimLink::Hello& hello) {
  const auto own = this->own();
  const bool is_ours = own && hello.succession && hello.succession->lineage == own->lineage;
  succession::Admission::Call call{.job = kJobId};
  if (hello.succession && hello.succession->is_replicated) {
    call.lineage = hello.succession->lineage;
  }
  const auto answer = admission_.answer(call, here(), clock_->now());
  const bool is_refused = answer.reaction == succession::Reaction::kSend ||
                          answer.reaction == succession::Reaction::kSearch;
  const bool must_refuse = !here() || deleted_ != ServiceRule::kRefuseOtherLineage;
  if (is_refused && must_refuse) {
    link->send(Side::kServer, session::Incumbent{answer.incumbent, true});
    return link->close(Side::kServer);
  }
  if (is_displaced_) return link->close(Side::kServer);
  if (stopped_) begin_next_job();
  if (is_ours && hello.term > own->term)
    processes_->feed(slot_, succession::LaterTermSeen{hello.term});
  if (stopped_) return link->close(Side::kServer);
  Session& session = open(hello.node, link);
  if (hello.succession) {
    session.voter_address = hello.succession->voter_address;
    session.lineage = hello.succession->lineage;
  }
  link->send(Side::kServer, SimLink::HelloReply{1, clock_->now(), own ? own->term : 1});
  if (informed_) link->send(Side::kServer, session::Incumbent{*informed_, false});
  report_nodes();
}

// Of the same id; the process has a new machine for it.
void SimServer::begin_next_job() {
  admission_.began(kJobId);
  stopped_.reset();
  informed_.reset();
  alone_since_.reset();
  num_nodes_ = 0;
  term_ = 1;
}

void SimServer::session_lost(const NodeId& id, const SimLink&) {
  early_joins_.forget(id);
  if (job_) step(rdzv::SessionLost{id, Duration(0)});
  report_nodes();
}

void SimServer::serve(const NodeId& id, const core::RendezvousEvent& event) {
  const auto* resume = std::get_if<rdzv::Resume>(&event);
  if (resume != nullptr && is_of_another_job(id, *resume)) {
    send(rdzv::Evicted{id, resume->last->record.round, "a round of another job"});
    return;
  }
  if (must_wait_for_resumes(event)) return;
  if (std::holds_alternative<rdzv::Leave>(event)) early_joins_.forget(id);
  SimService::serve(id, event);
  if (job_) admit_early_joins();
  report_nodes();
}

bool SimServer::is_of_another_job(const NodeId& id, const rdzv::Resume& resume) const {
  const auto own = this->own();
  if (!own || own->term == 1 || !resume.last || !job_) return false;
  if (sessions_.at(id).lineage == own->lineage) return false;
  const auto nodes = rendezvous().nodes(clock_->now());
  return std::none_of(nodes.begin(), nodes.end(),
                      [&](const core::NodeStatus& one) { return one.id == id; });
}

void SimServer::step(const core::JobEvent& event) {
  for (const auto& [id, session] : sessions_) {
    job_->gate().set_voter_address(id, session.voter_address);
  }
  std::vector<core::JobAction> actions;
  job_->step(event, clock_->now(), &actions);
  if (job_->gate().keeper() == core::RecordKeeper::kOneVoter) {
    checker_->in_force(rendezvous().record());
  }
  carry_out(actions);
  propose();
  if (!job_) return;
  const std::size_t nodes = rendezvous().nodes(clock_->now()).size();
  const bool has_lost = std::exchange(num_nodes_, nodes) > nodes;
  if (std::exchange(has_removed_, false) || has_lost) report_nodes();
  if (job_) watch_deadline();
}

void SimServer::propose() {
  if (!job_) return;
  if (auto proposal = job_->take_proposal()) {
    const std::uint64_t number = proposal->number;
    proposed_.emplace(number, rendezvous().record());
    if (file_ != nullptr) {
      file_->put({rendezvous().settings(), rendezvous().encode()}, [this, era = era_, number] {
        if (era == era_) in_force(number);
      });
    }
    processes_->feed(slot_, succession::Propose{number, std::move(proposal->content), term_});
    if (deleted_ == ServiceRule::kHoldDecisions) in_force(number);
  }
}

bool SimServer::send(const core::RendezvousAction& action) {
  processes_->check(slot_, action, checker_);
  const bool is_removed = SimService::send(action);
  has_removed_ |= is_removed;
  return is_removed;
}

// The nodes of several changes together, as CoordinatorJob does.
void SimServer::report_nodes() {
  if (std::exchange(is_reporting_, true)) return;
  clock_->after(world_->dice().between(Duration(0), Duration(5ms)), [this, era = era_] {
    is_reporting_ = false;
    if (era == era_) report_nodes_now();
  });
}

void SimServer::report_nodes_now() {
  succession::Nodes nodes;
  // A node can be lost before it receives that: what it is sent may be held.
  std::set<NodeId> present;
  if (job_) {
    for (const core::NodeStatus& status : rendezvous().nodes(clock_->now()))
      present.insert(status.id);
  }
  for (const auto& [id, session] : sessions_) {
    const bool has_left = job_ && !job_->gate().may_acknowledge(id);
    if (!has_left && (!session.has_joined || !present.contains(id))) continue;
    nodes.nodes.push_back({.node = id,
                           .voter_address = session.voter_address,
                           .host = "h" + std::to_string(id.high),
                           .topology = {},
                           .kind = reg::VoterCandidate::Kind::kMember,
                           .is_connected = true,
                           .has_left = has_left});
  }
  processes_->feed(slot_, nodes);
}

}  // namespace elastic::test
