// The functions of the values in elastic/rendezvous_types.h.

#include "elastic/rendezvous_types.h"

#include <cstdio>
#include <utility>

#include "core/base/text.h"
#include "core/rendezvous/rendezvous_fields.h"

namespace elastic {
namespace {

Status invalid_setting(std::string message) {
  return Status(StatusCode::kInvalidArgument, std::move(message));
}

}  // namespace

std::string to_string(const NodeId& id) {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(id.high),
                static_cast<unsigned long long>(id.low));
  return text;
}

const char* to_string(StopCause cause) {
  switch (cause) {
    case StopCause::kWorkerFailed: return "worker-failed";
    case StopCause::kHang: return "hang";
    case StopCause::kNodeLost: return "node-lost";
    case StopCause::kNodeLeft: return "node-left";
    case StopCause::kMembersChanged: return "members-changed";
    case StopCause::kPreempted: return "preempted";
    case StopCause::kDrained: return "drained";
    case StopCause::kEvicted: return "evicted";
    case StopCause::kCoordinatorLost: return "coordinator-lost";
    case StopCause::kJobEnded: break;
  }
  return "job-ended";
}

std::string StopReason::describe() const {
  std::string line = to_string(cause);
  if (rank >= 0) line += "; rank=" + std::to_string(rank);
  if (!node.empty()) line += "; node=" + node;
  if (rank >= 0) line += "; exit_code=" + std::to_string(exit_code);
  if (failure_class) line += std::string("; class=") + to_string(*failure_class);
  if (!text.empty()) line += "; reason=" + text;
  return core::to_printable(line, core::Lines::kOne, kStopReasonBytesMax);
}

Status JobSettings::validate() const {
  if (min_nodes < 1)
    return invalid_setting("min_nodes: must be at least 1, not " + std::to_string(min_nodes));
  if (max_nodes < min_nodes) {
    return invalid_setting("nnodes=" + core::nnodes_text(*this) +
                           ": the minimum is greater than the maximum");
  }
  if (max_nodes > kNodesMax) {
    return invalid_setting("max_nodes: must be at most " + std::to_string(kNodesMax) + ", not " +
                           std::to_string(max_nodes));
  }
  if (max_restarts < 0) return invalid_setting("max_restarts: must not be negative");
  if (max_membership_changes < -1)
    return invalid_setting("max_membership_changes: must be -1 or more");
  if (static_ranks && min_nodes != max_nodes) {
    return invalid_setting("static ranks need a fixed number of nodes, not nnodes=" +
                           core::nnodes_text(*this));
  }
  if (extra.size() > core::kExtraSettingsMax) return invalid_setting("settings: too many");
  for (const auto& [name, value] : extra) {
    if (name.size() + value.size() > kMessageBytesMax)
      return invalid_setting("settings: text is too long");
  }
  const std::pair<const char*, Duration> positive[] = {
      {"join_timeout", join_timeout}, {"node_timeout", node_timeout}, {"store_grace", store_grace}};
  for (const auto& [name, value] : positive) {
    if (value <= Duration::zero()) return invalid_setting(std::string(name) + ": must be positive");
  }
  const std::pair<const char*, Duration> others[] = {{"last_call_timeout", last_call_timeout},
                                                     {"settle", settle},
                                                     {"shrink_delay", shrink_delay},
                                                     {"reconnect_grace", reconnect_grace},
                                                     {"restart_backoff", restart_backoff}};
  for (const auto& [name, value] : others) {
    if (value < Duration::zero())
      return invalid_setting(std::string(name) + ": must not be negative");
  }
  return {};
}

namespace core {

std::string nnodes_text(const JobSettings& settings) {
  if (settings.min_nodes == settings.max_nodes) return std::to_string(settings.min_nodes);
  return std::to_string(settings.min_nodes) + ":" + std::to_string(settings.max_nodes);
}

}  // namespace core
}  // namespace elastic
