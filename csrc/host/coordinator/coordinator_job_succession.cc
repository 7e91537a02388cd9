// The succession of a job's coordinator: what is held back until it is in force, which nodes could
// vote, and the end of this coordinator's authority.

#include <algorithm>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/text.h"
#include "core/succession/succession_types.h"
#include "elastic/agent.h"
#include "host/coordinator/coordinator_job.h"
#include "os/base/process.h"
#include "os/loop/event_loop.h"
#include "os/net/address.h"

namespace elastic::host {

Status CoordinatorJob::succeed(const succession::StartCoordinator& start, const NodeId& self) {
  const succession::JobRecord& record = start.record;
  is_kept_ = start.is_kept;
  if (is_kept_ && record.state.empty()) {  // nothing was decided yet
    begin(start, self);
    return {};
  }
  if (Status fault = record.settings.validate(); !fault.ok()) return fault;
  const Instant now = context_.loop->now();
  auto job = make_job(record.settings, Duration::zero());
  const core::RendezvousSuccession succession{
      .term = start.term, .successor = self, .lost_incumbent = start.lost_incumbent};
  if (Status fault = job->succeed(record.state, succession, now); !fault.ok()) return fault;
  job_ = std::move(job);
  begin(start, self);
  for (const succession::RecordedNode& one : record.nodes) {
    if (one.voter_address.empty()) continue;
    voter_ports_[one.node] = {one.voter_address, succession::host_of(one.voter_address), {}};
    job_->gate().set_voter_address(one.node, one.voter_address);
  }
  job_->gate().restored(*rendezvous(), core::RecordKeeper::kSuccession);
  const auto limit = is_kept_ ? early_joins_.begin(*rendezvous()) : std::nullopt;
  if (limit) resumes_timer_.arm(add_saturating(now, *limit));
  logged_round_ = rendezvous()->record().round;
  is_result_logged_ = is_over();
  if (context_.log) {
    log("this process is the coordinator now (term " + std::to_string(term_) +
        "): " + rendezvous()->describe(now));
  }
  step(rdzv::Tick{});
  return {};
}

template <typename Entry>
bool CoordinatorJob::must_wait_for_resumes(const Entry& entry) {
  using Verdict = succession::EarlyJoins::Verdict;
  switch (early_joins_.judge(*rendezvous(), entry)) {
    case Verdict::kEnter: return false;
    case Verdict::kBeginAnew: begin_anew(entry.settings); return false;
    case Verdict::kWait:
      execute(rdzv::Waiting{entry.node.id, "the nodes of the former job of this id have " +
                                               core::duration_text(rendezvous()->takeover_limit()) +
                                               " to come back"});
      return true;
    case Verdict::kKnown: return true;
  }
  return false;
}
template bool CoordinatorJob::must_wait_for_resumes(const rdzv::Join& entry);
template bool CoordinatorJob::must_wait_for_resumes(const rdzv::Resume& entry);

void CoordinatorJob::end_wait_for_resumes() {
  const auto settings = early_joins_.time_out();
  if (job_ == nullptr || !settings) return;
  begin_anew(*settings);
  admit_early_joins();
}

void CoordinatorJob::begin_anew(const JobSettings& settings) {
  log("no node of the former job of this id is here: the next one begins");
  job_->begin_anew(settings, context_.loop->now());
  feed_timings();
}

void CoordinatorJob::admit_early_joins() {
  for (rdzv::Join& join : early_joins_.take()) {
    if (SessionPeer* const peer = session_of(join.node.id)) (void)enter(peer, join);
  }
}

void CoordinatorJob::begin(const succession::StartCoordinator& start, const NodeId& self) {
  term_ = start.term;
  incumbent_.emplace();
  incumbent_->lineage = start.lineage;
  incumbent_->term = start.term;
  incumbent_->node = self;
  incumbent_->address = context_.address;
}

void CoordinatorJob::begin_record() {
  if (job_ == nullptr) return;
  // With room for the addresses of the nodes' voter ports, and for further nodes.
  const std::size_t size = rendezvous()->encode().size();
  const std::string fault = check_record(size + size / 4);
  if (!fault.empty()) log(fault + "; it has one voter now");
  job_->gate().keep_at(fault.empty() ? core::RecordKeeper::kSuccession : keeper());
  propose_later();
}

void CoordinatorJob::propose() {
  if (job_ == nullptr) return;
  if (!unrecorded_.empty()) return close_unrecorded(std::exchange(unrecorded_, {}));
  auto proposal = job_->take_proposal();
  if (!proposal) return;
  if (keeper() == core::RecordKeeper::kFile) {
    const std::weak_ptr<bool> is_it = written_;
    return context_.store(id_, [this, is_it, number = proposal->number] {
      if (is_it.lock() != nullptr) in_force(number);
    });
  }
  const std::string fault = check_record(proposal->content.bytes.size());
  if (!fault.empty()) return close_unrecorded(fault);
  feed_(succession::Propose{proposal->number, std::move(proposal->content), term_});
}

// The record has every node: it is encoded in an iteration of its own, and what happens meanwhile
// is in the same proposal.
void CoordinatorJob::propose_later() {
  const bool is_due = job_->gate().has_proposal() || !unrecorded_.empty();
  if (is_due && !proposal_timer_.armed()) {
    proposal_timer_.arm(context_.loop->now() + Duration(1));
  }
}

std::string CoordinatorJob::check_record(std::size_t bytes) const {
  return succession::check_record_size(bytes, context_.record_bytes_max);
}

// Voters keep no such record, so no further round could begin. A member closes the job;
// nothing is held from then on.
//
// Weak point: no record has this result. If this host is lost before every member has received it,
// a successor continues the job from the last record.
void CoordinatorJob::close_unrecorded(const std::string& fault) {
  const bool has_member = std::any_of(sessions_.begin(), sessions_.end(),
                                      [](const auto& one) { return one.second->has_joined; });
  if (!has_member) {
    unrecorded_ = fault;
    return;
  }
  job_->gate().keep_at(core::RecordKeeper::kOneVoter);
  JobResult result;
  result.outcome = JobOutcome::kFailed;
  result.cause = JobCause::kRequested;
  result.exit_code = kExitUsage;
  result.message = fault;
  actions_.clear();
  job_->close(std::move(result), context_.loop->now(), &actions_);
  after_step();
}

void CoordinatorJob::in_force(std::uint64_t number) {
  if (job_ == nullptr) return;
  actions_.clear();
  job_->in_force(number, context_.loop->now(), &actions_);
  after_step();
  acknowledge_leaves();
}

void CoordinatorJob::acknowledge_leaves() {
  for (const NodeId& node : job_->gate().take_acknowledged()) {
    SessionPeer* const peer = session_of(node);
    if (peer == nullptr || !peer->unanswered_beat) continue;
    peer->send(heartbeat_reply(*std::exchange(peer->unanswered_beat, std::nullopt)));
  }
}

// The current time, not the iteration's: the client computes the clock offset from it.
session::HeartbeatReply CoordinatorJob::heartbeat_reply(Instant sent) const {
  session::HeartbeatReply reply{sent, context_.loop->read_clock()};
  if (alone_since_) reply.alone = std::max(reply.time - *alone_since_, Duration(1));
  return reply;
}

void CoordinatorJob::set_majority(bool has_majority) {
  alone_since_.reset();
  if (!has_majority) alone_since_ = context_.loop->now();
}

void CoordinatorJob::inform(const succession::Incumbent& incumbent) {
  if (incumbent_ == incumbent) return;
  incumbent_ = incumbent;
  term_ = std::max(term_, incumbent.term);
  if (job_ != nullptr) {
    std::vector<NodeId> voters;
    for (const reg::Voter& voter : incumbent.voters) {
      if (voter.node != incumbent.node) voters.push_back(voter.node);
    }
    job_->gate().set_voters(std::move(voters));
    acknowledge_leaves();
  }
  const auto frame = SessionPeer::shared_frame(session::Incumbent{incumbent, false});
  for (const auto& [id, peer] : sessions_) {
    if (peer->succession) peer->send_shared(frame);
  }
  if (job_ != nullptr) request_ports();
  observers_.job_changed();
}

void CoordinatorJob::stop(const succession::StopCoordinator& stop) {
  timer_.disarm();
  nodes_timer_.disarm();
  proposal_timer_.disarm();
  for (const auto& [id, peer] : std::exchange(sessions_, {})) {
    peer->job = nullptr;
    if (!peer->succession && !stop.successor) {
      peer->end(session::Leaving{stop.reason});
      continue;
    }
    peer->send(session::Leaving{stop.reason});
    peer->end(session::Incumbent{stop.successor.value_or(succession::Incumbent{}), true});
  }
  if (context_.log) log("this process is not the coordinator any more: " + stop.reason);
  feed_ = nullptr;
  leave_job();  // the nodes give the successor a notice again
}

void CoordinatorJob::leave_job() {
  resumes_timer_.disarm();
  end_job();
}

void CoordinatorJob::end_job() {
  job_.reset();
  written_ = std::make_shared<bool>(true);
}

void CoordinatorJob::reject(const Status& why) {
  for (const auto& [id, peer] : std::exchange(sessions_, {})) {
    peer->job = nullptr;
    peer->finish(why);
  }
  feed_ = nullptr;
}

void CoordinatorJob::displace(const succession::Incumbent& by) {
  timer_.disarm();
  nodes_timer_.disarm();
  proposal_timer_.disarm();
  const std::string reason =
      "the job runs already, with the coordinator at " + by.address + ", and continues there";
  for (const auto& [id, peer] : std::exchange(sessions_, {})) {
    peer->job = nullptr;
    peer->end(session::Incumbent{by, true, reason});
  }
  if (context_.log) log("dissolves here: " + reason);
  feed_ = nullptr;
  leave_job();
}

// A node that is directed here may hold a round that a coordinator without the register has formed.
// Its number says nothing about the rounds of this lineage, which a successor restores from
// resumes.
bool CoordinatorJob::is_of_another_job(const SessionPeer& peer, const rdzv::Resume& resume) const {
  if (!incumbent_ || term_ == 1 || !resume.last || job_ == nullptr) return false;
  if (peer.succession && peer.succession->lineage == incumbent_->lineage) return false;
  return !rendezvous()->has_node(peer.node);
}

void CoordinatorJob::note_term(const session::ClientHello& hello) {
  if (!feed_ || hello.term <= term_ || !incumbent_ || !hello.succession) return;
  if (hello.succession->lineage == incumbent_->lineage) {
    feed_(succession::LaterTermSeen{hello.term});
  }
}

void CoordinatorJob::note_witness(const session::ClientHello& hello) {
  if (!feed_ || !hello.witness || hello.witness == witness_) return;
  witness_ = *hello.witness;
  feed_(succession::Witnesses{{witness_}});
}

// Nodes with other lists could find different coordinators once the first one is lost.
Status CoordinatorJob::check_endpoints(const session::ClientHello& hello) const {
  std::vector<std::string> endpoints = hello.endpoints.value_or(std::vector<std::string>());
  std::sort(endpoints.begin(), endpoints.end());
  if (endpoints.empty() || endpoints_.empty() || endpoints == endpoints_) return {};
  const auto text = [](const std::vector<std::string>& all) {
    std::string one;
    for (const std::string& endpoint : all) one += (one.empty() ? "" : ",") + endpoint;
    return one;
  };
  return {StatusCode::kFailedPrecondition, "the endpoints of this node are " + text(endpoints) +
                                               ", those of the job are " + text(endpoints_) +
                                               ": give every node the same list (--rdzv-endpoint)"};
}

// REQUIRES: the hello was admitted; a rejected node decides nothing.
void CoordinatorJob::note_endpoints(const session::ClientHello& hello) {
  if (!hello.endpoints || !endpoints_.empty()) return;
  endpoints_ = *hello.endpoints;
  std::sort(endpoints_.begin(), endpoints_.end());
}

// The address at which the coordinator sees the node, and the port from its hello.
void CoordinatorJob::note_voter(const SessionPeer& peer, const std::string& node_address,
                                const std::string& topology) {
  if (!feed_ || !peer.succession) return;
  const std::string& address = peer.succession->voter_address;
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos) return;
  const bool is_literal = os::parse_address(node_address).has_value();
  const std::string host = is_literal ? node_address : peer.remote().host();
  const bool needs_brackets = host.find(':') != std::string::npos;
  VoterPort port{(needs_brackets ? "[" + host + "]" : host) + address.substr(colon), host,
                 topology};
  job_->gate().set_voter_address(peer.node, port.address);
  voter_ports_[peer.node] = std::move(port);
}

void CoordinatorJob::feed_timings() {
  const JobSettings& settings = rendezvous()->settings();
  if (feed_) feed_(succession::Timings{settings.node_timeout, settings.store_grace});
}

void CoordinatorJob::feed_nodes() {
  if (!feed_ || job_ == nullptr) return;
  std::vector<succession::KnownNode> nodes;
  nodes.reserve(voter_ports_.size());
  // Both are in the order of ids. Ports of nodes that have left are still among the others.
  auto found = voter_ports_.begin();
  const auto forget_before = [&](const NodeId* id) {
    while (found != voter_ports_.end() && (id == nullptr || found->first < *id)) {
      if (!job_->gate().may_acknowledge(found->first)) {
        const auto& [node, port] = *found++;
        nodes.push_back({.node = node,
                         .voter_address = port.address,
                         .host = port.host,
                         .topology = port.topology,
                         .has_left = true});
        continue;
      }
      job_->gate().forget(found->first);
      found = voter_ports_.erase(found);
    }
  };
  const bool is_limited = needs_ports();
  const auto has_open_ports = [this](const NodeId& node) {
    const auto ports = ports_.find(node);
    return ports != ports_.end() && ports->second == Ports::kOpen;
  };
  for (const core::NodeStatus& status : rendezvous()->nodes(context_.loop->now())) {
    forget_before(&status.id);
    if (found == voter_ports_.end() || found->first != status.id) continue;
    const VoterPort& port = found++->second;
    const bool has_ports = !is_limited || has_open_ports(status.id);
    const bool is_member = status.rank >= 0 || rendezvous()->record().round == 0;
    nodes.push_back(
        {.node = status.id,
         .voter_address = has_ports ? port.address : "",
         .host = port.host,
         .topology = port.topology,
         .kind = is_member ? reg::VoterCandidate::Kind::kMember : reg::VoterCandidate::Kind::kSpare,
         .is_connected = sessions_.contains(status.id)});
  }
  forget_before(nullptr);
  if (nodes != known_nodes_) {
    known_nodes_ = nodes;
    feed_(succession::Nodes{std::move(nodes)});
  }
  request_ports();
  feed_resign();
}

// ---- A coordinator that ends before its job does.
//
// Theory of operation. The succession machine chooses a node that answers, and the register hands
// the authority over to it (succession::Resign). A job with one voter has no record there until
// now: its first record is proposed, and some nodes are asked to open the ports that a successor
// needs, so that none is chosen that cannot. The job goes on here until another coordinator is
// elected.

void CoordinatorJob::resign() {
  if (is_over() || !has_succession()) return;
  if (!is_recorded()) {
    // Its first node has the workers' store.
    if (rendezvous()->settings().static_ranks) return;
    if (!check_record(rendezvous()->encode().size()).empty()) {
      return log("the job's record is too large to be handed over");
    }
    begin_record();
    if (!is_recorded()) return;
  }
  propose();  // what was decided is handed over, too
  is_resigning_ = true;
  awaits_nodes_ = has_other_nodes();
  feed_nodes();  // the successor is one whose session is open now
  feed_(succession::Resign{awaits_nodes_});
}

// With several voters another one is elected, if need be.
bool CoordinatorJob::needs_ports() const {
  return is_resigning_ && (!incumbent_ || !incumbent_->is_replicated());
}

// The lineage is known when the first record is in force (inform()). Members come first, by rank.
void CoordinatorJob::request_ports() {
  constexpr int kRequestsMax = 3;
  if (!needs_ports() || !incumbent_) return;
  std::vector<core::NodeStatus> nodes = rendezvous()->nodes(context_.loop->now());
  std::stable_sort(nodes.begin(), nodes.end(), [](const auto& a, const auto& b) {
    return std::tuple(a.rank < 0, a.rank) < std::tuple(b.rank < 0, b.rank);
  });
  for (const core::NodeStatus& one : nodes) {
    const auto used = std::count_if(ports_.begin(), ports_.end(),
                                    [](const auto& all) { return all.second != Ports::kNone; });
    if (used >= kRequestsMax) return;
    SessionPeer* const peer = session_of(one.id);
    if (peer == nullptr || !peer->has_joined || !may_succeed(one.id)) continue;
    if (!ports_.try_emplace(one.id, Ports::kRequested).second) continue;
    peer->send(session::OpenPorts{*incumbent_});
  }
}

// It may be lost with the session: the node is asked again when it resumes.
void CoordinatorJob::forget_request(const NodeId& node) {
  const auto found = ports_.find(node);
  if (found != ports_.end() && found->second == Ports::kRequested) ports_.erase(found);
}

Status CoordinatorJob::on(SessionPeer* peer, session::OpenedPorts& opened) {
  const auto found = ports_.find(peer->node);
  if (job_ == nullptr || !feed_ || found == ports_.end()) return {};
  if (opened.address.empty()) {
    found->second = Ports::kNone;
    log(peer->name + " cannot run the coordinator of the job: " + opened.error);
  } else {
    found->second = Ports::kOpen;
    if (!peer->succession) peer->succession.emplace();
    peer->succession->voter_address = opened.address;
    const auto known = voter_ports_.find(peer->node);
    const std::string topology = known == voter_ports_.end() ? "" : known->second.topology;
    for (const core::NodeStatus& one : rendezvous()->nodes(context_.loop->now())) {
      if (one.id == peer->node) note_voter(*peer, one.address, topology);
    }
  }
  feed_nodes();
  return {};
}

// As far as is known.
bool CoordinatorJob::may_succeed(const NodeId& node) const {
  if (incumbent_ && node == incumbent_->node) return false;
  if (!needs_ports()) return true;
  const SessionPeer* const peer = session_of(node);
  const auto found = ports_.find(node);
  return (peer == nullptr || peer->opens_ports) &&
         (found == ports_.end() || found->second != Ports::kNone);
}

bool CoordinatorJob::has_other_nodes() const {
  const auto nodes = rendezvous()->nodes(context_.loop->now());
  return std::any_of(nodes.begin(), nodes.end(),
                     [this](const core::NodeStatus& one) { return may_succeed(one.id); });
}

void CoordinatorJob::feed_resign() {
  if (!is_resigning() || awaits_nodes_ == has_other_nodes()) return;
  awaits_nodes_ = !awaits_nodes_;
  feed_(succession::Resign{awaits_nodes_});
}

Duration CoordinatorJob::time_to_return() const {
  if (job_ == nullptr || is_over()) return {};
  const std::vector<core::NodeStatus> nodes = rendezvous()->nodes(context_.loop->now());
  const bool is_any_absent = std::any_of(
      nodes.begin(), nodes.end(), [this](const auto& one) { return !sessions_.contains(one.id); });
  return is_any_absent ? rendezvous()->settings().reconnect_grace : Duration::zero();
}

void CoordinatorJob::announce_end(const CoordinatorEnd& end, bool is_host_job) {
  if (is_over()) return;
  timer_.disarm();
  // Nodes that were never in a round have no workers to keep running: they end as the host does.
  const bool is_given_up = end.gave_up && is_host_job && rendezvous()->record().round == 0;
  for (const auto& [id, peer] : std::exchange(sessions_, {})) {
    peer->job = nullptr;
    if (is_given_up) {
      peer->end(rdzv::TimedOut{id, end.reason});
    } else {
      peer->end(session::Leaving{end.reason});
    }
  }
}

}  // namespace elastic::host
