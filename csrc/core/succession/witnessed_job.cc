// Theory of operation. The coordinator of a lineage probes this witness again and again, in the
// name of its lineage; the first frame of a lineage creates its voter.

#include "core/succession/witnessed_job.h"

#include <algorithm>
#include <utility>

#include "core/base/earliest.h"
#include "core/base/timings.h"
#include "core/succession/job_record.h"

namespace elastic::succession {

// ---- In one lineage.

void WitnessVoter::receive(const VoterFrame& frame, ConnectionId connection, Instant now,
                           std::vector<Action>* actions) {
  now_ = now;
  if (frame.from == self_ || (frame.to != NodeId{} && frame.to != self_)) return;
  connections_.note(frame.from, connection);
  if (const auto* probe = std::get_if<Probe>(&frame.body)) {
    reply(frame.from, ProbeReply{probe->lineage}, actions);
  } else if (const auto* message = std::get_if<reg::Message>(&frame.body)) {
    if (message->from == frame.from) feed(reg::Received{*message}, actions);
  }
  watch_incumbent(frame.from, actions);
}

void WitnessVoter::watch_incumbent(const NodeId& from, std::vector<Action>* actions) {
  const auto& incumbent = register_.incumbent();
  if (!incumbent) return;
  const bool is_new = std::exchange(watched_, incumbent->node) != incumbent->node;
  if (!is_new && from != watched_) return;
  if (is_new) {
    const auto job = decode_record(known()->record.content.bytes);
    const JobSettings settings = job.ok() ? job->settings : JobSettings();
    silence_max_ = settings.node_timeout;
    reconnect_grace_ = core::witness_reconnect_grace(settings.reconnect_grace);
  }
  lost_at_ = add_saturating(now_, silence_max_);
  if (register_.has_lost_incumbent()) feed(reg::IncumbentReturned{watched_}, actions);
}

void WitnessVoter::connection_ended(ConnectionId connection, Instant now) {
  const auto node = connections_.end(connection);
  if (!lost_at_ || node != watched_) return;
  lost_at_ = std::min(*lost_at_, add_saturating(now, reconnect_grace_));
}

void WitnessVoter::tick(Instant now, std::vector<Action>* actions) {
  now_ = now;
  feed(reg::Tick{}, actions);
  if (!lost_at_ || now_ < *lost_at_) return;
  lost_at_.reset();
  feed(reg::IncumbentLost{watched_}, actions);
}

std::optional<Instant> WitnessVoter::next_deadline() const {
  return core::earliest({register_.next_deadline(), lost_at_});
}

// It is no candidate: its register does nothing but reply.
void WitnessVoter::feed(const reg::Event& event, std::vector<Action>* actions) {
  std::vector<reg::Action> decided;
  register_.step(event, now_, &decided);
  for (reg::Action& action : decided) {
    auto* const send = std::get_if<reg::Send>(&action);
    if (send == nullptr) continue;
    const NodeId to = send->message.to;
    reply(to, std::move(send->message), actions);
  }
}

void WitnessVoter::reply(const NodeId& to, VoterBody body, std::vector<Action>* actions) const {
  actions->push_back(
      Send{connections_.last_of(to), "", encode_frame({job_id_, self_, to, std::move(body)})});
}

// ---- In all lineages of the job.

void WitnessedJob::receive(const Received& event, Instant now, std::vector<Action>* actions) {
  now_ = std::max(now_, now);
  const Result<VoterFrame> frame = decode_frame(event.frame);
  if (!frame.ok() || frame->job_id != job_id_) return;
  const auto id = lineage_of(*frame);
  if (!id) return;
  Lineage* const lineage = find_or_add(*id);
  if (lineage == nullptr) return;
  lineage->last_frame = now_;
  lineage->voter.receive(*frame, event.connection, now_, actions);
  const auto& known = lineage->voter.known();
  if (!known) return;
  const std::uint64_t term = known->record.newness.term;
  if (std::exchange(lineage->logged_term, term) == term) return;
  actions->push_back(Log{"this witness keeps its record; the coordinator of term " +
                         std::to_string(term) + " is " + known->record.proposer.address});
}

WitnessedJob::Lineage* WitnessedJob::find_or_add(const reg::LineageId& id) {
  const auto found = lineages_.find(id);
  if (found != lineages_.end()) return &found->second;
  if (lineages_.size() >= kLineagesMax) {
    // One that was probed and never voted makes room.
    auto oldest = lineages_.end();
    for (auto one = lineages_.begin(); one != lineages_.end(); ++one) {
      if (one->second.voter.known()) continue;
      const bool is_older =
          oldest == lineages_.end() || one->second.last_frame < oldest->second.last_frame;
      if (is_older) oldest = one;
    }
    if (oldest == lineages_.end()) return nullptr;
    lineages_.erase(oldest);
  }
  const NodeId self{rng_.next(), rng_.next()};
  Lineage lineage{WitnessVoter(job_id_, self, rng_.next()), now_};
  return &lineages_.emplace(id, std::move(lineage)).first->second;
}

void WitnessedJob::connection_ended(const ConnectionEnded& event, Instant now) {
  now_ = std::max(now_, now);
  for (auto& [id, lineage] : lineages_) lineage.voter.connection_ended(event.connection, now_);
}

void WitnessedJob::tick(Instant now, std::vector<Action>* actions) {
  now_ = std::max(now_, now);
  std::erase_if(lineages_, [this](const auto& entry) {
    return now_ >= add_saturating(entry.second.last_frame, kForgetAfter);
  });
  for (auto& [id, lineage] : lineages_) lineage.voter.tick(now_, actions);
}

std::optional<Instant> WitnessedJob::next_deadline() const {
  std::optional<Instant> next;
  for (const auto& [id, lineage] : lineages_) {
    const Instant due = std::min(lineage.voter.next_deadline().value_or(Instant::max()),
                                 add_saturating(lineage.last_frame, kForgetAfter));
    next = std::min(next.value_or(Instant::max()), due);
  }
  return next;
}

}  // namespace elastic::succession
