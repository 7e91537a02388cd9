// The succession of a job's coordinator: what is held back until it is in force, which nodes could
// vote, and the end of this coordinator's authority.

#include <algorithm>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/earliest.h"
#include "core/base/text.h"
#include "core/succession/succession_types.h"
#include "elastic/agent.h"
#include "host/coordinator/coordinator_job.h"
#include "os/base/process.h"
#include "os/loop/event_loop.h"
#include "os/net/address.h"

namespace elastic::host {
namespace {

constexpr const char* kSessionClosed = "its session was closed";

}  // namespace

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
  if (start.is_recorded) job_->gate().turn_on_restored(*rendezvous());
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

void CoordinatorJob::turn_on_gate() {
  if (job_ == nullptr || is_offered()) return;
  // With room for the addresses of the nodes' voter ports, and for further nodes.
  const std::size_t size = rendezvous()->encode().size();
  const std::string fault = check_record(size + size / 4);
  if (!fault.empty()) {
    log(fault + "; it has one voter now");
  } else {
    is_in_file_ = false;
  }
  if (job_->gate().is_on()) job_->gate().change_keeper();  // the file was
  if (fault.empty()) job_->gate().turn_on(*rendezvous());
  if (job_->gate().is_on()) propose_later();
}

void CoordinatorJob::propose() {
  if (job_ == nullptr || (!feed_ && !is_in_file_)) return;
  if (!unrecorded_.empty()) return close_unrecorded(std::exchange(unrecorded_, {}));
  if (auto proposal = job_->take_proposal()) {
    if (is_in_file_) {
      const std::weak_ptr<bool> is_it = written_;
      return context_.store(id_, [this, is_it, number = proposal->number] {
        if (is_it.lock() != nullptr) in_force(number);
      });
    }
    const std::string fault = check_record(proposal->content.bytes.size());
    if (!fault.empty()) return close_unrecorded(fault);
    feed_(
        succession::Propose{proposal->number, std::move(proposal->content), is_kept_ ? term_ : 0});
  }
}

// The record has every node: it is encoded in an iteration of its own, and what happens meanwhile
// is in the same proposal.
void CoordinatorJob::propose_later() {
  const bool is_due = job_->gate().has_proposal() || !unrecorded_.empty();
  if ((feed_ || is_in_file_) && is_due && !proposal_timer_.armed()) {
    proposal_timer_.arm(context_.loop->now() + Duration(1));
  }
}

std::string CoordinatorJob::check_record(std::size_t bytes) const {
  return succession::check_record_size(bytes, context_.record_bytes_max);
}

// Voters keep no such record, so no further round could begin. A member closes the job;
// nothing is held from then on.
void CoordinatorJob::close_unrecorded(const std::string& fault) {
  const bool has_member = std::any_of(sessions_.begin(), sessions_.end(),
                                      [](const auto& one) { return one.second->has_joined; });
  if (!has_member) {
    unrecorded_ = fault;
    return;
  }
  job_->turn_off_gate();
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
    session::Incumbent now{stop.successor.value_or(succession::Incumbent{}), true};
    if (stop.successor && id == now.incumbent.node) {
      // In one message: a member that has taken the job over, and only knows that this coordinator
      // leaves, gives the job up, and the others are at its address already.
      if (!late_leaves_.empty()) now.left = late_leaves_;
    } else {
      peer->send(session::Leaving{stop.reason});
    }
    peer->end(now);
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
void CoordinatorJob::note_voter(const SessionPeer& peer, const core::NodeInfo& node) {
  if (!feed_ || !peer.succession) return;
  const std::string& address = peer.succession->voter_address;
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos) return;
  const bool is_literal = os::parse_address(node.address).has_value();
  const std::string host = is_literal ? node.address : peer.remote().host();
  const bool needs_brackets = host.find(':') != std::string::npos;
  VoterPort port{(needs_brackets ? "[" + host + "]" : host) + address.substr(colon), host,
                 node.topology};
  job_->gate().set_voter_address(node.id, port.address);
  voter_ports_[node.id] = std::move(port);
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
  for (const core::NodeStatus& status : rendezvous()->nodes(context_.loop->now())) {
    forget_before(&status.id);
    if (found == voter_ports_.end() || found->first != status.id) continue;
    const VoterPort& port = found++->second;
    const bool is_member = status.rank >= 0 || rendezvous()->record().round == 0;
    nodes.push_back(
        {.node = status.id,
         .voter_address = port.address,
         .host = port.host,
         .topology = port.topology,
         .kind = is_member ? reg::VoterCandidate::Kind::kMember : reg::VoterCandidate::Kind::kSpare,
         .is_connected = sessions_.contains(status.id)});
  }
  forget_before(nullptr);
  if (nodes == known_nodes_) return;
  known_nodes_ = nodes;
  feed_(succession::Nodes{std::move(nodes)});
}

// ---- A coordinator that ends before its job does.
//
// Theory of operation. A job with several voters has a record in the register, and a voter is
// elected (succession::Resign). Without one, this coordinator sends the machine's whole state to a
// member over its session, and the member restores it. From then on the state must not change here:
// messages are ignored, and nothing acknowledges them. A node repeats what it has to report when it
// resumes at the successor. A leave is the exception, since the node may have ended by then: the
// successor receives it with the confirmation, or finds the node lost.
//
// Several members may be asked, one after the other, each with a higher term. The first answer
// counts: its sender is named to all sessions, once, and this coordinator ends. A member does not
// begin before it knows that (core/session/coordinator_loss.h), so an answer that is lost with its
// connection leads to no second coordinator: the member returns within reconnect_grace and repeats
// it, or the next member is asked.

bool CoordinatorJob::offer(const std::string& reason) {
  offer_.reset();
  if (is_over() || is_gated() || rendezvous()->settings().static_ranks) return false;
  while (num_stepped_leaves_ < late_leaves_.size()) {
    const session::LateLeave& leave = late_leaves_[num_stepped_leaves_++];
    step(rdzv::Leave{leave.node, leave.reason, leave.exit_code});
  }
  SessionPeer* const member = is_over() ? nullptr : choose_member();
  if (member == nullptr) return false;
  std::string record = succession::encode_record({.job_id = id_,
                                                  .settings = rendezvous()->settings(),
                                                  .state = rendezvous()->encode(),
                                                  .nodes = {}});
  if (!check_record(record.size()).empty()) {
    if (context_.log) log("the job's record is too large to be handed over");
    return false;
  }
  if (!incumbent_) {
    incumbent_.emplace();
    incumbent_->lineage = {os::random_seed(), os::random_seed()};
  }
  // A later term than any member was asked with before, since that member may still answer.
  offered_term_ = std::max(offered_term_, term_) + 1;
  asked_[member->node].term = offered_term_;
  offer_ = Offer{.member = member->node, .record = std::move(record), .sent = 0, .reason = reason};
  timer_.disarm();
  nodes_timer_.disarm();
  if (context_.log) log(member->name + " is asked to run the coordinator of the job");
  send_piece(member);
  return true;
}

// By rank; spares and nodes that wait for a round come last.
SessionPeer* CoordinatorJob::choose_member() const {
  SessionPeer* best = nullptr;
  int best_rank = -1;
  for (const core::NodeStatus& one : rendezvous()->nodes(context_.loop->now())) {
    SessionPeer* const peer = session_of(one.id);
    if (peer == nullptr || asked_.contains(one.id)) continue;
    if (!peer->has_joined || !peer->can_take_over || !peer->is_open()) continue;
    const auto order = [](int rank) { return std::tuple(rank < 0, rank); };
    if (best != nullptr && order(best_rank) <= order(one.rank)) continue;
    best = peer;
    best_rank = one.rank;
  }
  return best;
}

void CoordinatorJob::send_piece(SessionPeer* peer) {
  const std::string& record = offer_->record;
  session::TakeOver piece{.lineage = incumbent_->lineage,
                          .term = offered_term_,
                          .begin = offer_->sent,
                          .size = record.size(),
                          .piece = record.substr(offer_->sent, session::kTakeOverPieceMax)};
  offer_->sent += piece.piece.size();
  asked_.at(peer->node).has_record = offer_->sent == record.size();
  peer->send(piece);
}

// It may have answered, and repeats that when it is back.
void CoordinatorJob::member_disconnected(const SessionPeer& peer) {
  const auto asked = asked_.find(peer.node);
  if (asked == asked_.end()) return;
  const bool may_receive_rest = peer.node == offer_->member && choose_member() == nullptr;
  if (!asked->second.has_record && !may_receive_rest) {
    return offer_failed(peer.node, kSessionClosed);
  }
  const Duration grace = std::max(rendezvous()->settings().reconnect_grace, peer.least_grace);
  asked->second.returns_until = add_saturating(context_.loop->now(), grace);
  judge_absent_members();
}

// What was sent last may have been lost with its connection. A member that has the record answers
// to the first piece of it.
void CoordinatorJob::member_returned(SessionPeer* peer) {
  const auto asked = asked_.find(peer->node);
  if (asked == asked_.end() || !asked->second.may_answer || asked->second.has_left) return;
  asked->second.returns_until.reset();
  if (peer->node != offer_->member) return;
  offer_->sent = 0;
  send_piece(peer);
}

void CoordinatorJob::judge_absent_members() {
  std::optional<Instant> next;
  std::vector<NodeId> absent;
  for (auto& [node, asked] : asked_) {
    if (!asked.returns_until || !asked.may_answer) continue;
    if (context_.loop->now() < *asked.returns_until) {
      next = core::earliest({next, asked.returns_until});
    } else if (!sessions_.contains(node)) {
      absent.push_back(node);
    }
  }
  if (next) absent_timer_.arm(*next);
  for (const NodeId& node : absent) {
    if (is_offered()) offer_failed(node, kSessionClosed);
  }
}

Status CoordinatorJob::on_message_while_offered(SessionPeer* peer,
                                                const session::ClientMessage& message) {
  if (const auto* leave = std::get_if<rdzv::Leave>(&message)) {
    peer->has_joined = false;
    if (late_leaves_.size() < session::kLateLeavesMax) {
      const bool has_reason = late_leaves_.size() < session::kLateReasonsMax;
      late_leaves_.push_back(
          {peer->node, has_reason ? leave->reason : "it was stopped", leave->exit_code});
    }
    // It must no longer be named: the next record omits it, so that the next member may conclude
    // that no other member was asked.
    if (const auto left = asked_.find(peer->node); left != asked_.end()) {
      left->second.has_left = true;
      offer_failed(peer->node, "it leaves the job, too");
    }
    return {};
  }
  const auto* reply = std::get_if<session::TakenOver>(&message);
  const auto asked = asked_.find(peer->node);
  if (reply == nullptr || asked == asked_.end() || asked->second.has_left) return {};
  if (!reply->address.empty()) {
    succession::Incumbent successor = *incumbent_;
    successor.term = asked->second.term;
    successor.node = peer->node;
    successor.address = reply->address;
    if (context_.log) {
      log(peer->name + " runs the coordinator of the job now, at " + reply->address);
    }
    const std::string reason = std::exchange(offer_, std::nullopt)->reason;
    context_.on_handed_over(this, succession::StopCoordinator{reason, std::move(successor)});
  } else if (!reply->wants_more) {
    offer_failed(peer->node, reply->error);
  } else if (peer->node == offer_->member) {
    send_piece(peer);
  } else {
    offer_failed(peer->node, "another node was asked before it had the whole record");
  }
  return {};
}

Status CoordinatorJob::on(SessionPeer*, session::TakenOver&) { return {}; }  // too late

// A member that was asked before, and has not answered, may still do so.
void CoordinatorJob::offer_failed(const NodeId& node, const std::string& why) {
  const auto asked = asked_.find(node);
  if (asked == asked_.end() || !std::exchange(asked->second.may_answer, false)) return;
  if (context_.log) log(name_of(node) + " cannot run the coordinator of the job: " + why);
  const bool awaits_last = offer_->member != node && may_answer(offer_->member);
  if (!awaits_last) offer_next();
}

void CoordinatorJob::offer_next() {
  const std::string reason = offer_->reason;
  if (offer(reason)) return;
  const bool awaits_answer = std::any_of(asked_.begin(), asked_.end(),
                                         [](const auto& one) { return one.second.may_answer; });
  if (!is_over() && awaits_answer) {
    offer_ = Offer{.member = {}, .record = {}, .sent = 0, .reason = reason};
  } else {
    context_.on_handed_over(this, std::nullopt);
  }
}

bool CoordinatorJob::may_answer(const NodeId& node) const {
  const auto asked = asked_.find(node);
  return asked != asked_.end() && asked->second.may_answer;
}

void CoordinatorJob::ask_another() {
  if (!is_offered() || choose_member() == nullptr) return;
  if (context_.log) log(name_of(offer_->member) + " has not answered yet");
  offer_next();
}

void CoordinatorJob::note_left(const std::vector<session::LateLeave>& left) {
  for (const session::LateLeave& leave : left) {
    if (job_ != nullptr) step(rdzv::Leave{leave.node, leave.reason, leave.exit_code});
  }
}

Duration CoordinatorJob::time_to_return() const {
  if (job_ == nullptr || is_over()) return {};
  const std::vector<core::NodeStatus> nodes = rendezvous()->nodes(context_.loop->now());
  const bool is_any_absent = std::any_of(nodes.begin(), nodes.end(), [this](const auto& one) {
    if (sessions_.contains(one.id)) return false;
    return std::none_of(late_leaves_.begin(), late_leaves_.end(),
                        [&](const session::LateLeave& leave) { return leave.node == one.id; });
  });
  return is_any_absent ? rendezvous()->settings().reconnect_grace : Duration::zero();
}

void CoordinatorJob::announce_end(const CoordinatorEnd& end, bool is_host_job) {
  offer_.reset();
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
