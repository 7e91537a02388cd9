// Theory of operation. The coordinator of a lineage probes this witness again and again, in the
// name of its lineage; the first frame of a lineage creates its machine. A record that replaces
// another lineage (succession_override.cc) is accepted only if the machine of that one may leave
// it, which is removed then, and is not created again while the new one lives.

#include "core/succession/witnessed_job.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "core/succession/job_record.h"

namespace elastic::succession {

void WitnessedJob::receive(const Received& event, Instant now, std::vector<Action>* actions) {
  now_ = std::max(now_, now);
  const Result<VoterFrame> frame = decode_frame(event.frame);
  if (!frame.ok() || frame->job_id != job_id_) return;
  const auto id = lineage_of(*frame);
  if (!id) return refuse(*frame, event.connection, actions);
  Lineage* const lineage = find_or_add(*id);
  if (lineage == nullptr) return;
  const auto* message = std::get_if<reg::Message>(&frame->body);
  if (message != nullptr && !replace_others(*id, *message, lineage)) return;
  lineage->last_frame = now_;
  step(lineage, event, actions);
}

// An operator may give the command to a witness.
void WitnessedJob::refuse(const VoterFrame& frame, ConnectionId connection,
                          std::vector<Action>* actions) {
  const auto* command = std::get_if<Override>(&frame.body);
  if (command == nullptr || command->is_survey) return;
  const OverrideReply reply{
      command->nonce, false,
      "this is a witness, which runs no coordinator: give the command to a node that votes"};
  actions->push_back(
      Send{connection, "", encode_frame({job_id_, NodeId{}, frame.from, VoterBody(reply)})});
}

WitnessedJob::Lineage* WitnessedJob::find_or_add(const reg::LineageId& id) {
  const auto found = lineages_.find(id);
  if (found != lineages_.end()) return &found->second;
  for (const auto& [other, lineage] : lineages_) {
    const bool is_replaced =
        std::any_of(lineage.replaces.begin(), lineage.replaces.end(),
                    [&](const Replaced& replaced) { return replaced.lineage == id; });
    if (is_replaced) return nullptr;
  }
  if (lineages_.size() >= kLineagesMax) {
    // One that was probed and never voted makes room.
    auto oldest = lineages_.end();
    for (auto one = lineages_.begin(); one != lineages_.end(); ++one) {
      if (one->second.machine->job_register().known()) continue;
      const bool is_older =
          oldest == lineages_.end() || one->second.last_frame < oldest->second.last_frame;
      if (is_older) oldest = one;
    }
    if (oldest == lineages_.end()) return nullptr;
    lineages_.erase(oldest);
  }
  Settings settings;
  settings.job_id = job_id_;
  settings.self = {{rng_.next(), rng_.next()}, ""};
  settings.is_witness = true;
  Lineage& lineage = lineages_[id];
  lineage.machine = std::make_unique<Machine>(std::move(settings), rng_.next());
  lineage.last_frame = now_;
  return &lineage;
}

// Before the lineage's first record. False: the message is ignored, because a lineage that its
// record replaces has its coordinator, or has gone on.
bool WitnessedJob::replace_others(const reg::LineageId& id, const reg::Message& message,
                                  Lineage* lineage) {
  const auto* accept = std::get_if<reg::Accept>(&message.body);
  if (accept == nullptr || lineage->machine->job_register().known()) return true;
  const auto job = decode_record(accept->proposal.record.content.bytes);
  if (!job.ok() || job->replaces.empty()) return true;
  const auto is_replaced = [&](const reg::LineageId& other) {
    return other != id && std::any_of(job->replaces.begin(), job->replaces.end(),
                                      [&](const Replaced& one) { return one.lineage == other; });
  };
  for (const auto& [other, one] : lineages_) {
    const bool has_voted = one.machine->job_register().known().has_value();
    if (has_voted && is_replaced(other) && !one.machine->may_change(job->replaces)) return false;
  }
  std::erase_if(lineages_, [&](const auto& entry) { return is_replaced(entry.first); });
  lineage->replaces = job->replaces;
  return true;
}

void WitnessedJob::connection_ended(const ConnectionEnded& event, Instant now,
                                    std::vector<Action>* actions) {
  now_ = std::max(now_, now);
  for (auto& [id, lineage] : lineages_) step(&lineage, event, actions);
}

void WitnessedJob::tick(Instant now, std::vector<Action>* actions) {
  now_ = std::max(now_, now);
  std::erase_if(lineages_, [this](const auto& entry) {
    return now_ >= add_saturating(entry.second.last_frame, kForgetAfter);
  });
  for (auto& [id, lineage] : lineages_) step(&lineage, Tick{}, actions);
}

std::optional<Instant> WitnessedJob::next_deadline() const {
  std::optional<Instant> next;
  for (const auto& [id, lineage] : lineages_) {
    const Instant due = std::min(lineage.machine->next_deadline().value_or(Instant::max()),
                                 add_saturating(lineage.last_frame, kForgetAfter));
    next = std::min(next.value_or(Instant::max()), due);
  }
  return next;
}

void WitnessedJob::step(Lineage* lineage, const Event& event, std::vector<Action>* actions) {
  Machine& machine = *lineage->machine;
  machine.step(event, now_, actions);
  const auto& known = machine.job_register().known();
  if (!known) return;
  const std::uint64_t term = known->record.newness.term;
  if (std::exchange(lineage->logged_term, term) == term) return;
  actions->push_back(Log{"this witness keeps its record; the coordinator of term " +
                         std::to_string(term) + " is " + known->record.proposer.address});
}

}  // namespace elastic::succession
