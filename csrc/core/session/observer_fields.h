#pragma once

// The fields of the observer's messages, for both directions; see rendezvous_fields.h.

#include "core/register/register_types.h"
#include "core/rendezvous/rendezvous_fields.h"
#include "elastic/observer.h"

namespace elastic::core {

// The rounds that a coordinator remembers and sends.
inline constexpr std::size_t kRoundsObserved = 64;
inline constexpr std::size_t kStragglersObserved = 64;

template <typename Visitor>
void visit(Visitor& v, ObservedWorker& worker) {
  v.number(worker.local_rank);
  v.number(worker.rank);
  v.number(worker.pid);
  v.choice(worker.state, ObservedWorkerState::kStopped);
  v.number(worker.exit_code);
}

template <typename Visitor>
void visit(Visitor& v, WorkerReport& report) {
  v.number(report.round);
  v.name(report.host, kNodeTextBytesMax);
  v.list(report.workers, static_cast<std::size_t>(kLocalWorldSizeMax),
         [&](ObservedWorker& worker) { visit(v, worker); });
}

template <typename Visitor>
void visit(Visitor& v, ObservedNode& node) {
  visit(v, node.id);
  v.name(node.name, kNodeTextBytesMax);
  v.name(node.address, kNodeTextBytesMax);
  v.name(node.role, kNodeTextBytesMax);
  v.number(node.local_world_size);
  v.choice(node.phase, rdzv::NodePhase::kDone);
  v.number(node.rank);
  v.flag(node.is_suspect);
  v.flag(node.hosts_coordinator);
  v.duration(node.silence);
  v.optional(node.report, [&](WorkerReport& report) { visit(v, report); });
}

template <typename Visitor>
void visit_time(Visitor& v, std::optional<Instant>& at) {
  v.optional(at, [&](Instant& one) { v.instant(one); });
}

template <typename Visitor>
void visit(Visitor& v, ObservedRound& round) {
  v.number(round.round);
  v.number(round.nodes);
  v.number(round.world_size);
  v.number(round.restarts);
  visit_time(v, round.formed);
  visit_time(v, round.first_step);
  visit_time(v, round.ended);
  visit_time(v, round.failed);
  visit_time(v, round.stopped);
  v.optional(round.cause,
             [&](rdzv::RestartCause& cause) { v.choice(cause, rdzv::RestartCause::kMemberLeft); });
  v.text(round.reason, kFieldBytesMax);
  v.name(round.node, kNodeTextBytesMax);
  v.number(round.rank);
  v.number(round.exit_code);
}

template <typename Visitor>
void visit(Visitor& v, ObservedStraggler& straggler) {
  v.number(straggler.rank);
  v.name(straggler.node, kNodeTextBytesMax);
  v.number(straggler.step);
  v.duration(straggler.idle);
}

template <typename Visitor>
void visit(Visitor& v, ObservedHang& hang) {
  v.duration(hang.idle);
  v.number(hang.step);
  v.number(hang.rank);
  v.text(hang.place, kFieldBytesMax);
}

template <typename Visitor>
void visit(Visitor& v, ObservedProgress& progress) {
  v.number(progress.step);
  v.number(progress.slowest);
  v.number(progress.ranks);
  v.duration(progress.step_time);
}

template <typename Visitor>
void visit(Visitor& v, CoordinatorInfo& info) {
  v.name(info.address, kNodeTextBytesMax);
  v.name(info.lineage, kNodeTextBytesMax);
  v.number(info.term);
  v.list(info.voters, reg::kVotersMax,
         [&](std::string& voter) { v.name(voter, kNodeTextBytesMax); });
}

// Without its nodes, which are sent in pages, and what are extensions: incumbent, hang and
// progress.
template <typename Visitor>
void visit(Visitor& v, ObservedJob& job) {
  v.exact_name(job.id, kMessageBytesMax);
  v.number(job.term);
  v.number(job.coordinator);
  v.instant(job.now);
  v.number(job.wall_time);
  v.choice(job.phase, RendezvousPhase::kClosed);
  v.text(job.description, kFieldBytesMax);
  visit(v, job.settings);
  visit_timings(v, job.settings);
  visit(v, job.record);
  v.number(job.waiting_nodes);
  v.number(job.spare_nodes);
  visit_time(v, job.began);
  v.duration(job.running);
  v.list(job.rounds, kRoundsObserved, [&](ObservedRound& round) { visit(v, round); });
  v.list(job.stragglers, kStragglersObserved,
         [&](ObservedStraggler& straggler) { visit(v, straggler); });
  v.optional(job.result, [&](JobResult& result) { visit(v, result); });
}

}  // namespace elastic::core
