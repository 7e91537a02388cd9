#pragma once

// The fields of the session's messages: one list for each message serves both directions, as in
// rendezvous_fields.h. session_wire.cc writes and reads them; tests fill them.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/fields.h"
#include "core/rendezvous/rendezvous_fields.h"
#include "core/session/drain_fields.h"
#include "core/session/gate_fields.h"
#include "core/session/hang_fields.h"
#include "core/session/session_wire.h"
#include "core/session/snapshot_fields.h"

namespace elastic::session {

using core::kFieldBytesMax;

inline constexpr std::uint8_t kAnnouncedExtension = core::kRequiredExtension + 1;

template <typename Visitor>
void visit_report(Visitor& v, FailureReport& failure) {
  visit(v, failure);
  v.instant(failure.at);
}

template <typename Visitor>
void extend_advice(Visitor& v, std::uint8_t kind, std::optional<FailureAdvice>& advice) {
  v.extension(kind, advice, [](auto& inner, FailureAdvice& one) { visit(inner, one); });
}

template <typename Visitor>
void visit_cause(Visitor& v, std::shared_ptr<const RoundCause>& cause) {
  std::optional<RoundCause> value;
  if (cause != nullptr) value = *cause;
  v.extension(1, value, [](auto& inner, RoundCause& one) { visit(inner, one); });
  if constexpr (!Visitor::kIsWriter) {
    cause = value ? std::make_shared<const RoundCause>(std::move(*value)) : nullptr;
  }
}

template <typename Visitor>
void visit_settings(Visitor& v, JobSettings& settings) {
  visit(v, settings);
  visit_timings(v, settings);
}

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
void visit(Visitor& v, ObservedStall& stall) {
  v.duration(stall.idle);
  v.number(stall.rank);
  v.text(stall.text, kMessageBytesMax);
  v.text(stall.place, kFieldBytesMax);
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
  v.name(info.address, reg::kAddressBytesMax);
  v.name(info.lineage, kNodeTextBytesMax);
  v.number(info.term);
  v.list(info.voters, reg::kVotersMax,
         [&](std::string& voter) { v.name(voter, reg::kAddressBytesMax); });
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

// The agent allocates and indexes by these numbers.
inline bool is_possible(const RoundRecord& record, const NodeAssignment& own) {
  const std::int64_t size = own.local_world_size;
  const bool has_place = record.round <= core::kRoundMax && record.term <= reg::kNumberMax &&
                         record.nodes >= 1 && record.nodes <= kNodesMax && own.group_rank >= 0 &&
                         own.group_rank < record.nodes;
  const bool has_ranks =
      own.base_rank >= 0 && own.base_rank + size <= record.world_size && own.base_role_rank >= 0 &&
      own.base_role_rank + size <= own.role_world_size && own.role_world_size <= record.world_size;
  return has_place && size >= 1 && size <= kLocalWorldSizeMax && has_ranks;
}

template <typename Visitor>
void fields(Visitor& v, ClientHello& hello) {
  v.number(hello.version);
  v.number(hello.oldest_version);
  v.number(hello.capabilities);
  v.number(hello.term);
  v.check(hello.term <= reg::kNumberMax);
  v.exact_name(hello.job_id, kJobIdBytesMax);
  visit(v, hello.node);
  v.number(hello.secret.high);
  v.number(hello.secret.low);
  v.number(hello.attempt);
  v.extension(1, hello.succession, [](auto& inner, SuccessionHello& succession) {
    inner.name(succession.voter_address, reg::kAddressBytesMax);
    inner.number(succession.lineage.high);
    inner.number(succession.lineage.low);
    inner.flag(succession.is_replicated);
  });
  v.extension(2, hello.witness, [](auto& inner, std::string& witness) {
    inner.name(witness, reg::kAddressBytesMax);
  });
  v.extension(3, hello.endpoints, [](auto& inner, std::vector<std::string>& endpoints) {
    inner.list(endpoints, kEndpointsMax,
               [&](std::string& endpoint) { inner.name(endpoint, reg::kAddressBytesMax); });
  });
  v.extension(4, hello.liveness_port, [](auto& inner, std::uint16_t& port) { inner.number(port); });
  v.extension(core::kRequiredExtension, hello.observer,
              [](auto& inner, ObserverRequest& request) { inner.flag(request.workers); });
  v.extension(kAnnouncedExtension, hello.announced,
              [](auto& inner, succession::Incumbent& incumbent) { visit(inner, incumbent); });
}

template <typename Visitor>
void fields(Visitor& v, ServerHello& hello) {
  v.number(hello.version);
  v.number(hello.oldest_version);
  v.number(hello.capabilities);
  v.number(hello.term);
  v.check(hello.term <= reg::kNumberMax);  // the node's next hello repeats it
  v.number(hello.incarnation);
  v.instant(hello.time);
  v.extension(1, hello.host_job,
              [](auto& inner, std::string& id) { inner.exact_name(id, kJobIdBytesMax); });
}

template <typename Visitor>
void fields(Visitor& v, Heartbeat& send_heartbeat) {
  v.instant(send_heartbeat.sent);
}

template <typename Visitor>
void fields(Visitor& v, HeartbeatReply& reply) {
  v.instant(reply.sent);
  v.instant(reply.time);
  v.extension(1, reply.alone, [](auto& inner, Duration& alone) { inner.duration(alone); });
}

template <typename Visitor>
void fields(Visitor& v, Counts& counts) {
  v.number(counts.waiting_nodes);
  v.number(counts.spare_nodes);
}

template <typename Visitor>
void fields(Visitor& v, rdzv::Join& join) {
  visit(v, join.node);
  visit_settings(v, join.settings);
  core::extend_node(v, 1, 2, 3, join.node);
  core::extend_replicated(v, 4, join.node.held);
}

template <typename Visitor>
void fields(Visitor& v, rdzv::Resume& resume) {
  visit(v, resume.node);
  visit_settings(v, resume.settings);
  v.choice(resume.phase, rdzv::NodePhase::kDone);
  v.optional(resume.last, [&](core::HeldRound& held) { visit(v, held); });
  v.optional(resume.failure, [&](FailureReport& failure) { visit_report(v, failure); });
  std::shared_ptr<const RoundCause> none;
  visit_cause(v, resume.last ? resume.last->cause : none);
  core::extend_node(v, 2, 4, 5, resume.node);
  RoundRecord no_record;
  core::extend_record(v, 3, resume.last ? resume.last->record : no_record);
  core::extend_replicated(v, 7, resume.node.held);
  core::extend_resume(v, 8, resume.last ? resume.last->record.resume : no_record.resume);
  std::optional<FailureAdvice> no_advice;
  extend_advice(v, 6, resume.failure ? resume.failure->advice : no_advice);
}

template <typename Visitor>
void fields(Visitor& v, rdzv::Failed& failed) {
  v.number(failed.round);
  visit_report(v, failed.failure);
  extend_advice(v, 1, failed.failure.advice);
}

template <typename Visitor>
void fields(Visitor& v, rdzv::Gone& gone) {
  v.number(gone.round);
}

template <typename Visitor>
void fields(Visitor& v, rdzv::Done& done) {
  v.number(done.round);
}

template <typename Visitor>
void fields(Visitor& v, rdzv::Leave& leave) {
  v.text(leave.reason, kFieldBytesMax);
  v.number(leave.exit_code);
  v.check(core::is_exit_code(leave.exit_code));
}

template <typename Visitor>
void fields(Visitor& v, rdzv::Close& close) {
  visit(v, close.result);
}

// Of the coordinator: the node counts on from it.
template <typename Visitor>
void visit_round(Visitor& v, std::uint64_t& round) {
  v.number(round);
  v.check(round <= core::kRoundMax);
}

template <typename Visitor>
void fields(Visitor& v, rdzv::Round& round) {
  v.shared(round.record, [&](RoundRecord& record) { visit(v, record); });
  visit(v, round.own);
  v.check(is_possible(*round.record, round.own));
  visit_cause(v, round.cause);
  RoundRecord record = *round.record;
  core::extend_record(v, 2, record);
  core::extend_sources(v, 3, 4, round.sources);
  core::extend_resume(v, 5, record.resume);
  if constexpr (!Visitor::kIsWriter) {
    if (record.resume != ResumePoint{}) {
      round.record = std::make_shared<const RoundRecord>(std::move(record));
    }
  }
}

template <typename Visitor>
void fields(Visitor& v, rdzv::Restart& restart) {
  visit_round(v, restart.round);
  v.choice(restart.cause, rdzv::RestartCause::kMemberLeft);
  v.text(restart.reason, kFieldBytesMax);
  v.duration(restart.grace);
  v.extension(1, restart.why, [](auto& inner, StopReason& why) { visit(inner, why); });
}

template <typename Visitor>
void fields(Visitor& v, rdzv::Waiting& waiting) {
  v.text(waiting.message, kFieldBytesMax);
  v.extension(1, waiting.remaining, [](auto& inner, Duration& left) { inner.duration(left); });
}

template <typename Visitor>
void fields(Visitor& v, rdzv::Resumed& resumed) {
  v.number(resumed.round);
}

template <typename Visitor>
void fields(Visitor& v, rdzv::Evicted& evicted) {
  visit_round(v, evicted.round);
  v.text(evicted.reason, kFieldBytesMax);
}

template <typename Visitor>
void fields(Visitor& v, rdzv::Refused& refused) {
  StatusCode code = refused.error.code();
  std::string message(refused.error.message());
  v.choice(code, StatusCode::kInternal);
  v.text(message, kFieldBytesMax);
  if constexpr (!Visitor::kIsWriter) {
    v.check(code != StatusCode::kOk);  // Refused requires an error code
    refused.error = Status(code, std::move(message));
  }
  extend_flag(v, 1, refused.is_excluded);
}

template <typename Visitor>
void fields(Visitor& v, rdzv::TimedOut& timed_out) {
  v.text(timed_out.message, kFieldBytesMax);
}

template <typename Visitor>
void fields(Visitor& v, rdzv::Closed& closed) {
  v.shared(closed.result, [&](JobResult& result) { visit(v, result); });
}

template <typename Visitor>
void fields(Visitor& v, rdzv::RoundOver& over) {
  visit_round(v, over.round);
}

template <typename Visitor>
void fields(Visitor& v, Timings& timings) {
  visit_timings(v, timings.settings);
  // A node that used a negative store_grace would give the job up when its session ends next.
  v.check(timings.settings.validate().ok());
}

template <typename Visitor>
void fields(Visitor& v, Incumbent& message) {
  visit(v, message.incumbent);
  v.flag(message.is_elsewhere);
  v.extension(1, message.displaced,
              [](auto& inner, std::string& reason) { inner.text(reason, kFieldBytesMax); });
}

template <typename Visitor>
void fields(Visitor& v, StoreClients& clients) {
  v.number(clients.round);
  v.list(clients.addresses, kStoreClientsMax,
         [&](std::string& address) { v.name(address, kNodeTextBytesMax); });
}

template <typename Visitor>
void fields(Visitor& v, OpenPorts& message) {
  visit(v, message.coordinator);
}

template <typename Visitor>
void fields(Visitor& v, OpenedPorts& reply) {
  v.name(reply.address, reg::kAddressBytesMax);
  v.text(reply.error, kFieldBytesMax);
}

template <typename Visitor>
void fields(Visitor& v, Leaving& leaving) {
  v.text(leaving.reason, kFieldBytesMax);
}

template <typename Visitor>
void fields(Visitor& v, Workers& workers) {
  visit(v, workers.report);
}

template <typename Visitor>
void fields(Visitor&, ObserverReady&) {}

template <typename Visitor>
void fields(Visitor& v, WatchWorkers& watch) {
  v.flag(watch.is_on);
}

template <typename Visitor>
void fields(Visitor& v, JobFacts& facts) {
  visit(v, facts.job);
  v.extension(1, facts.job.incumbent,
              [](auto& inner, CoordinatorInfo& incumbent) { visit(inner, incumbent); });
  v.extension(2, facts.job.hang, [](auto& inner, ObservedHang& hang) { visit(inner, hang); });
  v.extension(3, facts.job.progress,
              [](auto& inner, ObservedProgress& progress) { visit(inner, progress); });
  core::extend_record(v, 4, facts.job.record);
  v.extension(5, facts.job.saved, [](auto& inner, ObservedSave& saved) {
    inner.number(saved.step);
    inner.duration(saved.age);
    inner.number(saved.copied);
  });
  auto memory = facts.job.saved ? facts.job.saved->memory : std::nullopt;
  v.extension(9, memory, [](auto& inner, ObservedMemory& one) {
    visit_memory(inner, one);
    visit(inner, one.node);
  });
  if (facts.job.saved) facts.job.saved->memory = memory;
  v.extension(6, facts.job.stall, [](auto& inner, ObservedStall& stall) { visit(inner, stall); });
  v.extension(7, facts.job.mismatch,
              [](auto& inner, std::string& text) { inner.text(text, kMessageBytesMax); });
  core::extend_value(v, 10, facts.job.findings, [](auto& inner, auto& all) {
    inner.list(all, kFindingsObserved, [&](ObservedFinding& one) {
      inner.name(one.host, kNodeTextBytesMax);
      inner.text(one.text, kMessageBytesMax);
      inner.duration(one.age);
    });
  });
  extend_rules(v, 11, facts.job.rounds);
  core::extend_value(v, 8, facts.job.excluded, [](auto& inner, auto& all) {
    inner.list(all, kExcludedObserved, [&](ObservedExclusion& one) {
      inner.name(one.host, kNodeTextBytesMax);
      inner.duration(one.left);
      inner.text(one.reason, kMessageBytesMax);
      inner.number(one.times);
    });
  });
}

template <typename Visitor>
void fields(Visitor& v, NodePage& page) {
  v.flag(page.is_last);
  v.list(page.nodes, kNodesPerPage, [&](ObservedNode& node) { visit(v, node); });
  v.list(page.removed, kNodesPerPage, [&](NodeId& id) { visit(v, id); });
}

template <typename Visitor>
void fields(Visitor& v, Beats& beats) {
  v.list(beats.silence_ms, static_cast<std::size_t>(kNodesMax),
         [&](std::uint32_t& silence) { v.number(silence); });
}

}  // namespace elastic::session
