#pragma once

// The fields of the values in elastic/rendezvous_types.h as they are stored and sent: one list for
// each, which a FieldWriter or a FieldReader visits. A field that is added to one of these lists
// changes every format that holds it (rendezvous_codec.cc, coordinator_state.cc, session_wire.cc)
// and needs a new version of each. A session's message can be extended without: extension().

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/fields.h"
#include "core/rendezvous/rendezvous_events.h"
#include "elastic/rendezvous_types.h"

namespace elastic::core {

// The timings of a job: the durations among its settings, with their names, in the order of the
// encodings. The first node's timings apply; every other node uses them in place of its own and
// logs the difference.
inline constexpr std::pair<const char*, Duration JobSettings::*> kTimings[] = {
    {"join_timeout", &JobSettings::join_timeout},
    {"last_call_timeout", &JobSettings::last_call_timeout},
    {"settle", &JobSettings::settle},
    {"shrink_delay", &JobSettings::shrink_delay},
    {"node_timeout", &JobSettings::node_timeout},
    {"reconnect_grace", &JobSettings::reconnect_grace},
    {"store_grace", &JobSettings::store_grace},
    {"restart_backoff", &JobSettings::restart_backoff},
};

void copy_timings(const JobSettings& from, JobSettings* to);

// "2", "2:4": as --nnodes.
std::string nnodes_text(const JobSettings& settings);

// One sentence for the node's log; "" if its own timings equal the job's.
std::string describe_timing_difference(const JobSettings& job, const JobSettings& own);

inline constexpr std::size_t kFieldBytesMax = 4 * kMessageBytesMax;
inline constexpr std::size_t kAdviceBytesMax = 512;  // its reason
inline constexpr std::size_t kLostNamesMax = 8;
inline constexpr std::size_t kExtraSettingsMax = 255;
inline constexpr std::size_t kHeldStatesMax = std::size_t{8} * kLocalWorldSizeMax;
inline constexpr std::size_t kHeldAddressMax = 300;  // a host and a port

inline bool is_exit_code(int code) { return code >= 0 && code <= 255; }

template <typename Visitor>
void visit(Visitor& v, NodeId& id) {
  visit_id(v, id);
}

template <typename Visitor>
void visit(Visitor& v, NodeInfo& info) {
  visit(v, info.id);
  v.name(info.name, kNodeTextBytesMax);
  v.name(info.address, kNodeTextBytesMax);
  v.number(info.store_port);
  v.number(info.local_world_size);
  v.name(info.role, kNodeTextBytesMax);
  v.number(info.previous_rank);
  v.number(info.highest_round);
  v.number(info.static_rank);
  v.name(info.topology, kNodeTextBytesMax);
  v.duration(info.stop_grace);
  v.duration(info.failure_grace);
  v.flag(info.hosts_coordinator);
}

// What the nodes of a job must agree on.
template <typename Visitor>
void visit(Visitor& v, JobSettings& settings) {
  v.number(settings.min_nodes);
  v.number(settings.max_nodes);
  v.number(settings.max_restarts);
  v.number(settings.max_membership_changes);
  v.flag(settings.static_ranks);
  v.choice(settings.on_loss, LossPolicy::kFail);
  v.list(settings.extra, kExtraSettingsMax, [&](auto& pair) {
    v.text(pair.first, kMessageBytesMax);
    v.text(pair.second, kMessageBytesMax);
  });
}

template <typename Visitor>
void visit_timings(Visitor& v, JobSettings& settings) {
  for (const auto& [name, member] : kTimings) v.duration(settings.*member);
}

template <typename Visitor>
void visit(Visitor& v, RoundRecord& record) {
  v.number(record.term);
  v.number(record.round);
  v.number(record.generation);
  v.number(record.nodes);
  v.number(record.world_size);
  v.name(record.master_addr, kNodeTextBytesMax);
  v.number(record.master_port);
  v.number(record.restarts);
  v.number(record.membership_changes);
  v.number(record.coordinator_rank);
  v.number(record.members_digest);
}

template <typename Visitor>
void visit(Visitor& v, ResumePoint& point) {
  v.number(point.step);
  v.number(point.round);
  v.choice(point.kind, ResumeKind::kMixed);
}

// Extensions of messages, like RoundRecord::resume and NodeInfo::held. The first one has the step
// alone, which every version knows.
template <typename Visitor>
void extend_record(Visitor& v, std::uint8_t kind, RoundRecord& record) {
  std::optional<std::int64_t> step;
  if (record.resume.step >= 0) step = record.resume.step;
  v.extension(kind, step, [](auto& inner, std::int64_t& value) { inner.number(value); });
  record.resume.step = step && *step >= 0 ? *step : -1;
}

template <typename Visitor>
void extend_resume(Visitor& v, std::uint8_t kind, ResumePoint& point) {
  std::optional<ResumePoint> sent;
  if (point.round >= 0 || point.kind != ResumeKind::kOwn) sent = point;
  v.extension(kind, sent, [](auto& inner, ResumePoint& one) { visit(inner, one); });
  if (sent) point = *sent;
}

// Which of the states that extend_node() has read are replicated.
template <typename Visitor>
void extend_replicated(Visitor& v, std::uint8_t kind, std::vector<HeldState>& held) {
  std::optional<std::vector<std::uint8_t>> flags;
  for (const HeldState& one : held) {
    if (one.is_replicated && !flags) flags.emplace();
  }
  if (flags) {
    for (const HeldState& one : held) flags->push_back(one.is_replicated ? 1 : 0);
  }
  v.extension(kind, flags, [](auto& inner, std::vector<std::uint8_t>& list) {
    inner.list(list, kHeldStatesMax, [&](std::uint8_t& flag) { inner.number(flag); });
  });
  if (!flags) return;
  const std::size_t count = std::min(flags->size(), held.size());
  for (std::size_t i = 0; i < count; ++i) held[i].is_replicated = (*flags)[i] != 0;
}

// With three numbers.
template <typename Visitor>
void extend_node(Visitor& v, std::uint8_t kind, std::uint8_t host_kind, std::uint8_t probe_kind,
                 NodeInfo& info) {
  std::optional<std::vector<HeldState>> held;
  if (!info.held.empty()) held = info.held;
  std::string address = info.copies_address;
  v.extension(kind, held, [&](auto& inner, std::vector<HeldState>& states) {
    inner.name(address, kHeldAddressMax);
    inner.list(states, kHeldStatesMax, [&](HeldState& state) {
      inner.number(state.rank);
      inner.number(state.world_size);
      inner.number(state.step);
      inner.number(state.round);
      inner.number(state.digest);
      inner.flag(state.is_copy);
    });
  });
  info.copies_address = held ? std::move(address) : std::string();
  info.held = std::move(held).value_or(std::vector<HeldState>());
  std::optional<std::string> host;
  if (!info.host.empty()) host = info.host;
  v.extension(host_kind, host,
              [](auto& inner, std::string& name) { inner.name(name, kNodeTextBytesMax); });
  info.host = std::move(host).value_or("");
  std::optional<std::uint16_t> port;
  if (info.probe_port != 0) port = info.probe_port;
  v.extension(probe_kind, port, [](auto& inner, std::uint16_t& value) { inner.number(value); });
  info.probe_port = port.value_or(std::uint16_t{0});
}

template <typename Visitor>
void extend_sources(Visitor& v, std::uint8_t kind, std::uint8_t shared_kind,
                    std::vector<HeldSource>& sources) {
  std::optional<std::vector<HeldSource>> some;
  std::optional<HeldSource> shared;
  for (const HeldSource& one : sources) {
    if (one.is_shared) {
      shared = one;
    } else {
      if (!some) some.emplace();
      some->push_back(one);
    }
  }
  v.extension(kind, some, [](auto& inner, std::vector<HeldSource>& list) {
    inner.list(list, static_cast<std::size_t>(kLocalWorldSizeMax), [&](HeldSource& source) {
      inner.number(source.rank);
      inner.number(source.round);
      inner.name(source.address, kHeldAddressMax);
    });
  });
  sources = std::move(some).value_or(std::vector<HeldSource>());
  v.extension(shared_kind, shared, [](auto& inner, HeldSource& source) {
    inner.number(source.rank);
    inner.number(source.world_size);
    inner.number(source.round);
    inner.name(source.address, kHeldAddressMax);
    source.is_shared = true;
  });
  if (shared) sources.push_back(*std::move(shared));
}

template <typename Visitor>
void visit(Visitor& v, snapshot::SavedStep& saved) {
  v.number(saved.step);
  v.number(saved.round);
}

template <typename Visitor>
void visit(Visitor& v, NodeAssignment& assignment) {
  v.number(assignment.group_rank);
  v.number(assignment.local_world_size);
  v.number(assignment.base_rank);
  v.number(assignment.base_role_rank);
  v.number(assignment.role_world_size);
}

template <typename Visitor>
void visit(Visitor& v, StopReason& why) {
  v.choice(why.cause, StopCause::kJobEnded);
  v.number(why.rank);
  v.name(why.node, kNodeTextBytesMax);
  v.number(why.exit_code);
  v.optional(why.failure_class, [&](FailureClass& failure_class) {
    v.choice(failure_class, FailureClass::kInfrastructure);
  });
  v.text(why.text, kMessageBytesMax);
}

template <typename Visitor>
void visit(Visitor& v, RoundCause& cause) {
  visit(v, cause.why);
  v.number(cause.same_failures);
  v.number(cause.failure_digest);
  v.text(cause.rule, kMessageBytesMax);
}

// Without its cause, which is an extension.
template <typename Visitor>
void visit(Visitor& v, HeldRound& held) {
  visit(v, held.record);
  v.number(held.group_rank);
}

template <typename Visitor>
void visit(Visitor& v, RoundMember& member) {
  visit(v, member.id);
  v.name(member.name, kNodeTextBytesMax);
  v.name(member.address, kNodeTextBytesMax);
  v.number(member.local_world_size);
  v.name(member.role, kNodeTextBytesMax);
  v.choice(member.fate, MemberFate::kLost);
}

template <typename Visitor>
void visit(Visitor& v, FailureEvidence& evidence) {
  v.name(evidence.host, kNodeTextBytesMax);
  v.number(evidence.time);
  v.text(evidence.output, kEvidenceBytesMax);
  v.choice(evidence.failure_class, FailureClass::kInfrastructure);
  v.choice(evidence.cause, FailureCause::kHang);
  v.text(evidence.error, kMessageBytesMax);
  v.text(evidence.hint, kMessageBytesMax);
}

// Without its time, of which each format has its own notion.
template <typename Visitor>
void visit(Visitor& v, FailureReport& failure) {
  v.number(failure.local_rank);
  v.number(failure.rank);
  v.number(failure.exit_code);
  v.check(is_exit_code(failure.exit_code));
  v.text(failure.message, kMessageBytesMax);
  v.optional(failure.evidence, [&](FailureEvidence& evidence) { visit(v, evidence); });
}

template <typename Visitor>
void visit(Visitor& v, FailureAdvice& advice) {
  v.choice(advice.action, FailureAction::kExclude);
  v.optional(advice.counts, [&](bool& counts) { v.flag(counts); });
  v.name(advice.from, kNodeTextBytesMax);
  v.text(advice.reason, kAdviceBytesMax);
}

template <typename Visitor>
void visit(Visitor& v, JobResult& result) {
  v.choice(result.outcome, JobOutcome::kClosed);
  v.choice(result.cause, JobCause::kRequested);
  v.number(result.exit_code);
  v.check(is_exit_code(result.exit_code));
  v.number(result.rank);
  v.name(result.node, kNodeTextBytesMax);
  visit(v, result.node_id);
  v.text(result.message, kFieldBytesMax);
  v.list(result.lost, kLostNamesMax, [&](std::string& name) { v.name(name, kNodeTextBytesMax); });
  v.list(result.finished, kLostNamesMax,
         [&](std::string& name) { v.name(name, kNodeTextBytesMax); });
  v.optional(result.evidence, [&](FailureEvidence& evidence) { visit(v, evidence); });
}

}  // namespace elastic::core
