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
          .inform = [this](const auto& answer) { observers_.reply(answer); }};
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

std::optional<std::string> CoordinatorJob::request_drain(const drain::Notice& notice,
                                                         std::uint64_t number) {
  if (is_over()) return "no round of the job runs";
  hold_growth();
  drain_.feed(core::drain_event::Noticed{notice, number});
  return std::nullopt;
}

}  // namespace elastic::host
