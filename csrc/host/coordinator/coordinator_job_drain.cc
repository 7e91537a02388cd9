// The agreed step of a job: the part of CoordinatorJob that connects its machine with the sessions.

#include <string>
#include <utility>

#include "host/coordinator/coordinator_job.h"

namespace elastic::host {

DrainDesk::Sink CoordinatorJob::drain_sink() {
  return {.send =
              [this](const NodeId& to, const drain::Order& order) {
                const auto found = sessions_.find(to);
                if (found != sessions_.end()) found->second->send(order);
              },
          .announce =
              [this](const std::string& text) {
                log(text);
                for (const auto& [id, peer] : sessions_) {
                  if (peer->has_joined) peer->send(drain::News{text});
                }
                mark_changed();
              },
          .close = [this](const JobResult& result) { close_with(result); },
          .inform =
              [this](const core::drain_action::Inform& answer) {
                const auto found = drain_asked_.find(answer.observer);
                if (found == drain_asked_.end()) return;
                found->second->send(session::DrainReport{answer.is_agreed, answer.text});
                drain_asked_.erase(found);
              }};
}

Status CoordinatorJob::on(SessionPeer*, drain::Notice& notice) {
  if (is_over()) return {};
  hold_growth();
  const Duration limit = machine_ != nullptr ? machine_->takeover_limit() : Duration::zero();
  drain_.feed(core::drain_event::Noticed{notice, 0, limit});
  return {};
}

Status CoordinatorJob::on(SessionPeer* peer, drain::Reply& reply) {
  drain_.feed(core::drain_event::Replied{peer->node, reply});
  if (drain_.is_reached()) hangs_.feed(core::hang_event::Ended{});
  return {};
}

// A restart for a node that joins would stop ranks that are to reach the step, or save their state.
void CoordinatorJob::hold_growth() { step(rdzv::HoldGrowth{}); }

// A node that is done is a member of the round, but receives no Resumed for it.
void CoordinatorJob::note_done_member(const rdzv::Resume& resume) {
  if (resume.phase != rdzv::NodePhase::kDone || !resume.last || is_over()) return;
  const RoundRecord& record = machine_->record();
  const std::vector<RoundMember>& members = machine_->members();
  const auto rank = static_cast<std::size_t>(resume.last->group_rank);
  const bool is_member = machine_->phase() == RendezvousPhase::kRunning &&
                         resume.last->record.round == record.round && rank < members.size() &&
                         members[rank].id == resume.node.id &&
                         members[rank].fate == MemberFate::kPresent;
  if (!is_member) return;
  drain_.feed(core::drain_event::Began{resume.node.id, record.round, machine_->members_left(),
                                       name_of(resume.node.id), machine_->takeover_limit()});
}

Status CoordinatorJob::on(SessionPeer*, session::RequestDrain&) {
  return Status(StatusCode::kPeerViolation, "a node may send no messages of an observer");
}

Status CoordinatorJob::request_drain(SessionPeer* peer, const session::RequestDrain& request) {
  if (peer->role() != PeerRole::kNode) {
    peer->send(session::DrainReport{
        false, "this is a token of observers, which only reads: use the token of the job"});
    return {};
  }
  if (is_over()) {
    peer->send(session::DrainReport{false, "no round of the job runs"});
    return {};
  }
  hold_growth();
  drain_asked_[++drain_requests_] = peer;
  drain_.feed(core::drain_event::Noticed{request.notice, drain_requests_});
  return {};
}

}  // namespace elastic::host
