#pragma once

// For tests of the session machine: one node's job and statements, and actions as text.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "core/base/text.h"
#include "core/session/session_machine.h"

namespace elastic::core::session_machine_test {

using M = SessionMachine;

inline constexpr NodeId kNode{1, 2};

inline JobSettings settings() {
  using namespace std::chrono_literals;
  JobSettings job;
  job.min_nodes = 2;
  job.max_nodes = 4;
  job.node_timeout = 8s;
  job.store_grace = 60s;
  job.join_timeout = 600s;
  return job;
}

inline rdzv::Join join(std::uint64_t highest_round = 0) {
  rdzv::Join join;
  join.node.id = kNode;
  join.node.name = "10.0.0.7_1_0";
  join.node.highest_round = highest_round;
  join.settings = settings();
  return join;
}

inline rdzv::Round round(std::uint64_t number, int rank = 1) {
  RoundRecord record;
  record.round = number;
  record.nodes = 2;
  return {kNode,
          std::make_shared<const RoundRecord>(record),
          {.group_rank = rank, .local_world_size = 1}};
}

inline FailureReport failure_at(Instant at) {
  FailureReport failure;
  failure.exit_code = 3;
  failure.at = at;
  return failure;
}

inline const char* text_of(rdzv::NodePhase phase) {
  switch (phase) {
    case rdzv::NodePhase::kJoined: return "joined";
    case rdzv::NodePhase::kWorking: return "working";
    case rdzv::NodePhase::kStopped: return "stopped";
    case rdzv::NodePhase::kDone: return "done";
  }
  return "?";
}

inline std::string text_of(const RendezvousEvent& event) {
  if (const auto* join = std::get_if<rdzv::Join>(&event)) {
    return "join after " + std::to_string(join->node.highest_round);
  }
  if (const auto* resume = std::get_if<rdzv::Resume>(&event)) {
    return std::string("resume ") + text_of(resume->phase) +
           (resume->last ? " in " + std::to_string(resume->last->record.round) : "") +
           (resume->failure ? " with a failure" : "");
  }
  if (const auto* failed = std::get_if<rdzv::Failed>(&event)) {
    return "failed in " + std::to_string(failed->round);
  }
  if (const auto* gone = std::get_if<rdzv::Gone>(&event)) {
    return "gone of " + std::to_string(gone->round);
  }
  if (const auto* done = std::get_if<rdzv::Done>(&event)) {
    return "done in " + std::to_string(done->round);
  }
  if (std::holds_alternative<rdzv::Leave>(event)) return "leave";
  if (std::holds_alternative<rdzv::Close>(event)) return "close";
  return "?";
}

inline const char* text_of(const NodeReport& report) {
  constexpr const char* kNames[] = {"progress", "stacks",  "finished",  "reply",
                                    "notice",   "finding", "signatures"};
  return kNames[report.index()];
}

inline std::string text_of(const RendezvousAction& action) {
  if (const auto* round = std::get_if<rdzv::Round>(&action)) {
    return "round " + std::to_string(round->record->round);
  }
  if (const auto* restart = std::get_if<rdzv::Restart>(&action)) {
    return "restart " + std::to_string(restart->round);
  }
  if (std::holds_alternative<rdzv::Waiting>(action)) return "waiting";
  if (std::holds_alternative<rdzv::Evicted>(action)) return "evicted";
  if (std::holds_alternative<rdzv::Refused>(action)) return "refused";
  if (std::holds_alternative<rdzv::TimedOut>(action)) return "timed out";
  if (std::holds_alternative<rdzv::Closed>(action)) return "closed";
  if (std::holds_alternative<rdzv::RoundOver>(action)) return "round over";
  return "?";
}

inline std::string text_of(const M::Action& action, Instant now) {
  if (const auto* connect = std::get_if<M::Connect>(&action)) {
    return connect->address.empty() ? "connect" : "connect to " + connect->address;
  }
  if (const auto* disconnect = std::get_if<M::Disconnect>(&action)) {
    return disconnect->is_loss ? "disconnect (lost)" : "disconnect";
  }
  if (std::holds_alternative<M::CancelAttempt>(action)) return "cancel attempt";
  if (std::holds_alternative<M::SendHello>(action)) return "hello";
  if (std::holds_alternative<M::SendHeartbeat>(action)) return "heartbeat";
  if (const auto* sent = std::get_if<M::SendReport>(&action)) return text_of(sent->report);
  if (const auto* sent = std::get_if<M::Send>(&action)) return text_of(sent->event);
  if (const auto* delivered = std::get_if<M::Deliver>(&action))
    return "deliver: " + text_of(delivered->action);
  if (const auto* log = std::get_if<M::Log>(&action)) {
    std::optional<Duration> remaining;
    if (log->deadline) remaining = *log->deadline - now;
    return "log: " + core::with_remaining(log->message, remaining);
  }
  if (const auto* ending = std::get_if<M::EndCoordinator>(&action)) {
    return "end the coordinator within " + core::duration_text(ending->limit) +
           (ending->gave_up ? ", which gave up: " : ": ") + ending->reason;
  }
  if (std::holds_alternative<M::ReleaseRecord>(action)) return "release the record";
  if (std::holds_alternative<M::Ended>(action)) return "ended";
  if (const auto* lost = std::get_if<M::Lost>(&action)) {
    return "lost " + std::to_string(lost->exit_code) + ": " + lost->message;
  }
  if (std::holds_alternative<M::CoordinatorActive>(action)) return "active";
  if (std::holds_alternative<M::CoordinatorFound>(action)) return "found";
  if (std::holds_alternative<M::CoordinatorNamed>(action)) return "named";
  if (const auto* directed = std::get_if<M::Directed>(&action)) {
    return directed->was_coordinator ? "directed by the coordinator" : "directed";
  }
  if (std::holds_alternative<M::Dissolved>(action)) return "dissolved";
  if (std::holds_alternative<M::PortsWanted>(action)) return "ports wanted";
  if (std::holds_alternative<M::JobTimings>(action)) return "timings";
  if (std::holds_alternative<M::JobCounts>(action)) return "counts";
  return "inform";
}

}  // namespace elastic::core::session_machine_test
