#pragma once

// The fields of the session's messages about snapshots, as in session_fields.h.

#include <cstddef>
#include <cstdint>

#include "core/base/fields.h"
#include "core/base/held_state.h"
#include "core/rendezvous/rendezvous_fields.h"

namespace elastic::session {

inline constexpr std::size_t kSavedStepsMax = 16;
inline constexpr std::size_t kBuddiesMax = 16;

// Of a node, or as an observer sees it.
template <typename Visitor, typename Memory>
void visit_memory(Visitor& v, Memory& memory) {
  for (auto* bytes : {&memory.own, &memory.copies, &memory.needed, &memory.limit}) {
    v.number(*bytes);
  }
}

template <typename Visitor>
void fields(Visitor& v, snapshot::CopyReport& report) {
  v.number(report.round);
  v.number(report.group_rank);
  v.name(report.address, core::kHeldAddressMax);
  v.name(report.host, kNodeTextBytesMax);
  v.name(report.domain, kNodeTextBytesMax);
  for (auto* steps : {&report.own, &report.copied}) {
    v.list(*steps, kSavedStepsMax, [&](snapshot::SavedStep& step) { visit(v, step); });
  }
  visit(v, report.target);
  const auto count = [](auto& inner, std::int32_t& value) { inner.number(value); };
  core::extend_value(v, 1, report.buddies, count, 1);
  v.check(report.buddies >= 1);
}

template <typename Visitor>
void visit_buddy(Visitor& v, snapshot::Buddy& buddy) {
  v.name(buddy.address, core::kHeldAddressMax);
  v.name(buddy.node, kNodeTextBytesMax);
}

template <typename Visitor>
void fields(Visitor& v, snapshot::CopyOrder& order) {
  v.number(order.round);
  visit(v, order.step);
  visit(v, order.base);
  visit_buddy(v, order.buddy);
  const auto number = [](auto& inner, std::int64_t& value) { inner.number(value); };
  core::extend_value(v, 1, order.hold, number, std::int64_t{-1});
  core::extend_value(v, 2, order.more, [](auto& inner, auto& more) {
    inner.list(more, kBuddiesMax, [&](snapshot::Buddy& one) { visit_buddy(inner, one); });
  });
}

}  // namespace elastic::session
