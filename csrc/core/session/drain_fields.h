#pragma once

// As session_fields.h, which includes it: what nodes, coordinators and observers send each other
// about an agreed step.

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/fields.h"
#include "core/rendezvous/rendezvous_fields.h"
#include "core/session/session_wire.h"

namespace elastic::session {

template <typename Visitor>
void visit_notice(Visitor& v, drain::Notice& notice) {
  v.duration(notice.left);
  v.text(notice.reason, kMessageBytesMax);
}

// Behind all other fields of the message.
template <typename Visitor>
void visit_departure(Visitor& v, drain::Notice& notice) {
  v.extension(1, notice.departure, [](auto& inner, drain::Departure& departure) {
    inner.list(departure.nodes, drain::kLeavingMax, [&](NodeId& node) { visit(inner, node); });
    inner.flag(departure.stops_job);
  });
}

template <typename Visitor>
void fields(Visitor& v, drain::Notice& notice) {
  visit_notice(v, notice);
  visit_departure(v, notice);
}

template <typename Visitor>
void fields(Visitor& v, drain::Order& order) {
  v.choice(order.kind, drain::Order::Kind::kRelease);
  v.number(order.round);
  v.number(order.proposal);
  v.number(order.step);
  visit_notice(v, order.notice);
  visit_departure(v, order.notice);
}

template <typename Visitor>
void fields(Visitor& v, drain::Reply& reply) {
  v.choice(reply.kind, drain::Reply::Kind::kWaiting);
  v.number(reply.round);
  v.number(reply.proposal);
  v.number(reply.reporting);
  v.number(reply.newest);
  v.number(reply.oldest);
  v.number(reply.num_silent);
  v.list(reply.silent, drain::kSilentRanksMax, [&](std::int32_t& rank) { v.number(rank); });
  v.number(reply.held);
  v.flag(reply.is_committed);
  v.number(reply.stopped);
  v.number(reply.first_stop);
  v.number(reply.last_stop);
  extend_flag(v, 1, reply.can_continue);
}

template <typename Visitor>
void fields(Visitor& v, drain::News& news) {
  v.text(news.text, kMessageBytesMax);
  using About = drain::News::About;
  auto about = news.about == About::kDrain ? std::nullopt : std::optional(news.about);
  v.extension(1, about, [](auto& inner, About& one) { inner.choice(one, About::kReadmission); });
  news.about = about.value_or(About::kDrain);
}

template <typename Visitor>
void fields(Visitor& v, RequestDrain& request) {
  visit_notice(v, request.notice);
  v.extension(core::kRequiredExtension, request.node,
              [](auto& inner, std::string& node) { inner.name(node, kNodeTextBytesMax); });
}

template <typename Visitor>
void fields(Visitor& v, DrainReport& report) {
  v.flag(report.is_agreed);
  v.text(report.text, 2 * kMessageBytesMax);
}

}  // namespace elastic::session
