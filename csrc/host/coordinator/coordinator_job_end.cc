// A coordinator that ends before its job does.
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
// begin before it knows that (core/succession/offered_job.h), so an answer that is lost with its
// connection leads to no second coordinator: the member returns within reconnect_grace and repeats
// it, or the next member is asked.

#include <algorithm>
#include <tuple>
#include <utility>
#include <variant>

#include "core/base/earliest.h"
#include "host/coordinator/coordinator_job.h"
#include "os/loop/random_seed.h"

namespace elastic::host {
namespace {

constexpr const char* kSessionClosed = "its session was closed";

}  // namespace

bool CoordinatorJob::offer(const std::string& reason) {
  offer_.reset();
  if (is_over() || is_gated() || rendezvous()->settings().static_ranks) return false;
  while (num_stepped_leaves_ < late_leaves_.size()) {
    const session::LateLeave& leave = late_leaves_[num_stepped_leaves_++];
    step(rdzv::Leave{leave.node, leave.reason});
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
    const auto found = sessions_.find(one.id);
    if (found == sessions_.end() || asked_.contains(one.id)) continue;
    SessionPeer* const peer = found->second;
    if (!peer->has_joined || !peer->can_take_over || peer->closed()) continue;
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
      late_leaves_.push_back({peer->node, has_reason ? leave->reason : "it was stopped"});
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
    if (job_ != nullptr) step(rdzv::Leave{leave.node, leave.reason});
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
