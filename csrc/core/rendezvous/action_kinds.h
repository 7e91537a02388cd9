#pragma once

// What those distinguish that send an action of a Rendezvous, or receive it. Pure.

#include <variant>

#include "elastic/rendezvous.h"

namespace elastic::core {

inline NodeId addressee(const RendezvousAction& action) {
  return std::visit([](const auto& one) { return one.to; }, action);
}

// It would cross what the node is about to report in a new session, and follows that.
inline bool is_of_a_round(const RendezvousAction& action) {
  return std::holds_alternative<rdzv::Round>(action) ||
         std::holds_alternative<rdzv::Restart>(action);
}

// It is not a node of the job any more; until it joins again its heartbeats are ignored.
inline bool removes_node(const RendezvousAction& action) {
  return std::holds_alternative<rdzv::Evicted>(action) ||
         std::holds_alternative<rdzv::Refused>(action) ||
         std::holds_alternative<rdzv::TimedOut>(action);
}

// A round ends because a member is gone.
inline bool is_departure(rdzv::RestartCause cause) {
  return cause == rdzv::RestartCause::kMemberLost || cause == rdzv::RestartCause::kMemberLeft;
}

}  // namespace elastic::core
