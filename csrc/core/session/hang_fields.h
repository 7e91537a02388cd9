#pragma once

// As session_fields.h, which includes it: what nodes, coordinators and observers send each other
// about progress and hangs.

#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>

#include "core/base/fields.h"
#include "core/rendezvous/rendezvous_fields.h"
#include "core/session/session_wire.h"
#include "core/session/snapshot_fields.h"

namespace elastic::session {

template <typename Visitor>
void fields(Visitor& v, hang::NodeProgress& progress) {
  v.number(progress.round);
  v.number(progress.reporting);
  v.number(progress.newest);
  v.number(progress.oldest);
  v.number(progress.slowest_rank);
  v.duration(progress.slowest_idle);
  v.duration(progress.idle);
  v.duration(progress.section_limit);
  v.duration(progress.limit);
  v.choice(progress.action, hang::Action::kFail);
  v.flag(progress.has_advanced);
  v.number(progress.waiting);
  v.duration(progress.waited);
  std::optional<std::pair<std::int64_t, Duration>> saved;
  if (progress.saved_step >= 0) saved = {progress.saved_step, progress.saved_age};
  v.extension(1, saved, [](auto& inner, auto& one) {
    inner.number(one.first);
    inner.duration(one.second);
  });
  if (saved) std::tie(progress.saved_step, progress.saved_age) = *saved;
  core::extend_value(v, 2, progress.saved_memory,
                     [](auto& inner, auto& use) { visit_memory(inner, use); });
}

template <typename Visitor>
void fields(Visitor& v, hang::RankFinished& finished) {
  v.number(finished.round);
  v.number(finished.rank);
  v.duration(finished.limit);
  v.duration(finished.age);
}

template <typename Visitor>
void fields(Visitor& v, hang::StackGroup& group) {
  v.list(group.ranks, hang::kRanksPerNode, [&](std::int32_t& rank) { v.number(rank); });
  v.number(group.oldest);
  v.choice(group.kind, hang::StackGroup::Kind::kStopped);
  v.text(group.label, hang::kLabelBytesMax);
  v.text(group.text, hang::kStackBytesMax);
}

template <typename Visitor>
void fields(Visitor& v, hang::CollectiveState& state) {
  v.text(state.ranks, hang::kRanksTextMax);
  v.text(state.group, hang::kCollectiveTextMax);
  v.text(state.description, hang::kCollectiveTextMax);
  v.text(state.members, hang::kRanksTextMax);
  v.number(state.last);
  v.number(state.open);
  v.text(state.operation, hang::kCollectiveTextMax);
  v.text(state.sizes, hang::kCollectiveTextMax);
  v.duration(state.waiting);
}

template <typename Visitor>
void fields(Visitor& v, hang::StacksWanted& wanted) {
  v.number(wanted.request);
  v.flag(wanted.measures_work);
}

template <typename Visitor>
void fields(Visitor& v, hang::NodeStacks& stacks) {
  v.number(stacks.request);
  v.name(stacks.host, kNodeTextBytesMax);
  v.list(stacks.groups, hang::kGroupsMax, [&](hang::StackGroup& group) { fields(v, group); });
  v.list(stacks.collectives, hang::kCollectivesMax,
         [&](hang::CollectiveState& state) { fields(v, state); });
  v.list(stacks.idle, hang::kRanksPerNode, [&](std::int32_t& rank) { v.number(rank); });
}

template <typename Visitor>
void fields(Visitor& v, hang::NodeSignatures& node) {
  v.number(node.round);
  v.number(node.sample);
  v.list(node.blocks, hang::kSignaturesMax, [&](hang::BlockSignature& block) {
    v.text(block.ranks, hang::kRanksTextMax);
    v.text(block.group, hang::kCollectiveTextMax);
    v.text(block.description, hang::kCollectiveTextMax);
    v.number(block.recorder);
    v.number(block.first);
    v.text(block.signature, hang::kSignatureBytes);
  });
}

template <typename Visitor>
void fields(Visitor& v, hang::Verdict& verdict) {
  v.number(verdict.round);
  v.text(verdict.text, hang::kScreenBytesMax);
  v.text(verdict.cause, kMessageBytesMax);
  v.number(verdict.suspect);
  v.choice(verdict.action, hang::Action::kFail);
  v.choice(verdict.kind, hang::Verdict::Kind::kNoted);
}

template <typename Visitor>
void fields(Visitor&, RequestStacks&) {}

template <typename Visitor>
void fields(Visitor& v, StacksReport& report) {
  v.text(report.text, hang::kScreenBytesMax);
}

}  // namespace elastic::session
