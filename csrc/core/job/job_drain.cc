// The agreed step of a job, as it follows it: who asks for one, what it means for rounds that would
// begin meanwhile, and when nodes that wait are let in.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/job/job.h"

namespace elastic::core {

void Job::apply(drain_action::Announce action) {
  has_changed_ = true;
  out_->push_back(std::move(action));
}

// A restart for a node that joins would stop ranks that are to reach the step, or save their state.
void Job::on(const job_event::Noticed& event) {
  // A node that is not of the job repeats the notice of an earlier one.
  if (is_over() || !rendezvous_.has_node(event.node)) return;
  if (!event.notice.departure) rendezvous_step(rdzv::HoldGrowth{});
  feed(drain_event::Noticed{event.notice, 0, rendezvous_.takeover_limit(), spares()});
}

void Job::on(const job_event::StopReplied& event) {
  feed(drain_event::Replied{event.node, event.reply, spares()});
  // Every rank has stopped: what they do now is no progress, and no hang.
  if (drain_.phase() == DrainPhase::kReached) give(&hangs_, round_event::Ended{});
}

void Job::on(const job_event::DrainRequested& event) {
  const auto refuse = [&](std::string why) {
    out_->push_back(drain_action::Inform{event.observer, false, std::move(why)});
  };
  if (is_over()) return refuse(hang::kNoRound);
  drain::Notice notice = event.notice;
  if (!event.node) {
    rendezvous_step(rdzv::HoldGrowth{});
    return feed(drain_event::Noticed{notice, event.observer, {}, 0});
  }
  if (rendezvous_.settings().max_nodes == 1) {
    return refuse("the job has one node, which cannot leave alone");
  }
  notice.departure = drain::Departure{members_at(*event.node)};
  if (notice.departure->nodes.empty()) return refuse("no node of the round is " + *event.node);
  feed(drain_event::Noticed{notice, event.observer, {}, spares()});
}

std::vector<NodeId> Job::members_at(const std::string& text) const {
  std::vector<NodeId> found;
  for (const RoundMember& member : rendezvous_.members()) {
    const bool is_meant =
        member.name == text || member.address == text ||
        (member.name.starts_with(text + "_") &&
         member.name.find_first_not_of("0123456789_", text.size()) == std::string::npos);
    if (is_meant && member.fate == MemberFate::kPresent) found.push_back(member.id);
  }
  return found;
}

// With the ranks of the command line no other node takes the place of one that leaves.
int Job::spares() const {
  if (rendezvous_.settings().static_ranks) return 0;
  return rendezvous_.replacements();
}

// The agreed step says when the round ends for nodes that wait.
bool Job::follow_growth() {
  const bool is_due = rendezvous_.is_growth_due();
  if (std::exchange(is_growth_due_, is_due) == is_due) return false;
  if (is_due) {
    feed(drain_event::GrowthDue{rendezvous_.waiting_nodes(), rendezvous_.replacement_text()});
  } else {
    feed(drain_event::GrowthOff{});
  }
  return true;
}

// A notice is given, and no rank exists that could reach a step.
bool Job::follow_idle() {
  if (drain_.phase() != DrainPhase::kAwaitRound || !rendezvous_.is_short_of_nodes()) return false;
  feed(drain_event::Idle{"no rank was running, and the next round waited for more nodes"});
  return closing_.has_value();
}

// A node that is done is a member of the round, but receives no Resumed for it.
void Job::note_done_member(const rdzv::Resume& resume) {
  if (resume.phase != rdzv::NodePhase::kDone || !resume.last || is_over()) return;
  const RoundRecord& record = rendezvous_.record();
  const std::vector<RoundMember>& members = rendezvous_.members();
  const auto rank = static_cast<std::size_t>(resume.last->group_rank);
  const bool is_member = rendezvous_.phase() == RendezvousPhase::kRunning &&
                         resume.last->record.round == record.round && rank < members.size() &&
                         members[rank].id == resume.node.id &&
                         members[rank].fate == MemberFate::kPresent;
  if (!is_member) return;
  give(&drain_, began(resume.node.id, record.round, rendezvous_.members_left(),
                      rendezvous_.takeover_limit()));
}

}  // namespace elastic::core
