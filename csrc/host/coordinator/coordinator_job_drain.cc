// The agreed step of a job: the part of CoordinatorJob that connects its machine with the sessions.

#include <algorithm>
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
          .inform = [this](const auto& answer) { observers_.reply(answer); },
          .hold_growth = [this] { growth_timer_.arm(context_.loop->now()); }};
}

Status CoordinatorJob::on(SessionPeer*, drain::Notice& notice) {
  if (is_over()) return {};
  if (!notice.departure) hold_growth();
  const Duration limit = machine_ != nullptr ? machine_->takeover_limit() : Duration::zero();
  drain_.feed(core::drain_event::Noticed{notice, 0, limit, spares()});
  return {};
}

Status CoordinatorJob::on(SessionPeer* peer, drain::Reply& reply) {
  drain_.feed(core::drain_event::Replied{peer->node, reply, spares()});
  if (drain_.is_reached()) hangs_.feed(core::hang_event::Ended{});
  return {};
}

// A restart for a node that joins would stop ranks that are to reach the step, or save their state.
void CoordinatorJob::hold_growth() { step(rdzv::HoldGrowth{}); }

// With the ranks of the command line no other node takes the place of one that leaves.
int CoordinatorJob::spares() const {
  if (machine_ == nullptr || machine_->settings().static_ranks) return 0;
  return machine_->waiting_nodes() + machine_->spare_nodes();
}

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
                                       name_of(resume.node.id), machine_->takeover_limit(),
                                       machine_->settings().min_nodes});
}

Status CoordinatorJob::on(SessionPeer*, session::RequestDrain&) {
  return Status(StatusCode::kPeerViolation, "a node may send no messages of an observer");
}

std::optional<std::string> CoordinatorJob::request_drain(drain::Notice notice,
                                                         const std::optional<std::string>& node,
                                                         std::uint64_t number) {
  if (is_over()) return "no round of the job runs";
  if (node) {
    notice.departure = drain::Departure{members_at(*node)};
    if (notice.departure->nodes.empty()) return "no node of the round is " + *node;
    drain_.feed(core::drain_event::Noticed{notice, number, {}, spares()});
    return std::nullopt;
  }
  hold_growth();
  drain_.feed(core::drain_event::Noticed{notice, number});
  return std::nullopt;
}

// By the name of a node (HOST_PID, HOST_PID_N), or by that or the address of its host, which may
// have several.
std::vector<NodeId> CoordinatorJob::members_at(const std::string& text) const {
  std::vector<NodeId> found;
  if (machine_ == nullptr) return found;
  for (const RoundMember& member : machine_->members()) {
    const bool is_meant =
        member.name == text || member.address == text ||
        (member.name.starts_with(text + "_") &&
         member.name.find_first_not_of("0123456789_", text.size()) == std::string::npos);
    if (is_meant && member.fate == MemberFate::kPresent) found.push_back(member.id);
  }
  return found;
}

}  // namespace elastic::host
