#pragma once

// For tests of the agent's policy: short functions for events, and actions as text.

#include <gtest/gtest.h>

#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/agent/agent_policy.h"
#include "support/instant.h"

namespace elastic::core::agent_policy_test {

using support::at;

inline WorkerExit exited(int code, int second = 1) {
  WorkerExit exit;
  exit.kind = ExitKind::kExited;
  exit.code = code;
  exit.at = at(second);
  return exit;
}

inline WorkerExit killed(int signal, int second = 1) {
  WorkerExit exit;
  exit.kind = ExitKind::kSignaled;
  exit.signal = signal;
  exit.at = at(second);
  return exit;
}

inline WorkerExit not_started(int error, const char* stage = "exec", int second = 1) {
  WorkerExit exit;
  exit.kind = ExitKind::kNotStarted;
  exit.stage = stage;
  exit.error = error;
  exit.path = "/no/such";
  exit.at = at(second);
  return exit;
}

inline WorkerExit stopped(WorkerExit exit) {
  exit.stopped_by_us = true;
  return exit;
}

// A policy of two workers on node n, with its actions so far as short texts.
class Fixture {
 public:
  static constexpr int kNoRestartCode = 97;
  static constexpr int kBadNodeCode = 90;

  explicit Fixture(int max_restarts = 0, std::optional<Duration> barrier = std::nullopt,
                   std::optional<Duration> inplace_grace = std::nullopt,
                   std::optional<Duration> inplace_prepare = std::nullopt)
      : policy_(options_of(max_restarts, barrier, inplace_grace, inplace_prepare)) {}

  Fixture& feed(const PolicyEvent& event) {
    std::vector<PolicyAction> actions;
    policy_.step(event, now_, &actions);
    for (PolicyAction& action : actions) record(std::move(action));
    return *this;
  }
  Fixture& found() { return feed(RendezvousReady{"n", "10.0.0.1"}); }
  // Round `round`, of `nodes` nodes of two workers each; this one has node rank `rank`.
  Fixture& round(std::uint64_t round, int restarts = 0, int nodes = 1, int rank = 0) {
    auto record = std::make_shared<RoundRecord>();
    record->round = round;
    record->nodes = nodes;
    record->world_size = 2 * nodes;
    record->restarts = restarts;
    NodeAssignment own;
    own.group_rank = rank;
    own.local_world_size = 2;
    own.base_rank = own.base_role_rank = 2 * rank;
    own.role_world_size = 2 * nodes;
    return feed(rdzv::Round{kSelf, std::move(record), own});
  }
  Fixture& started(int local_rank) {
    return feed(WorkerStarted{local_rank, 1000 + local_rank, {}});
  }
  Fixture& running(int nodes = 1) { return found().round(1, 0, nodes).started(0).started(1); }
  Fixture& capable(int local_rank) { return feed(WorkerCapable{local_rank}); }
  Fixture& left(int local_rank) { return feed(WorkerLeft{local_rank}); }
  Fixture& exit(int local_rank, const WorkerExit& exit) {
    return feed(WorkerExited{local_rank, 1000 + local_rank, exit});
  }
  // More is known about a worker, which reported its error at `second`.
  Fixture& evidence(int local_rank, const WorkerExit& exit, int second, std::string error = "",
                    std::string fingerprint = "") {
    FailureFacts facts;
    facts.reported_at = at(second);
    facts.evidence.error = std::move(error);
    facts.fingerprint = std::move(fingerprint);
    return feed(FailureFound{local_rank, 1000 + local_rank, exit, std::move(facts)});
  }
  // Both workers end after the stop, and no process is left.
  Fixture& end_by_us() {
    return exit(0, stopped(killed(SIGTERM))).exit(1, stopped(killed(SIGTERM))).gone();
  }
  Fixture& done() { return running().exit(0, exited(0)).exit(1, exited(0)).gone(); }
  Fixture& gone() { return feed(GroupGone{}); }
  Fixture& restart(std::uint64_t round, const std::string& reason = "m was lost") {
    return feed(rdzv::Restart{kSelf, round, rdzv::RestartCause::kMemberLost, reason,
                              std::chrono::seconds(5)});
  }
  Fixture& evicted(std::uint64_t round) {
    return feed(rdzv::Evicted{kSelf, round, "no sign of life"});
  }
  Fixture& closed(const JobResult& result) {
    return feed(rdzv::Closed{kSelf, std::make_shared<const JobResult>(result)});
  }
  Fixture& succeeded() { return closed({}); }
  Fixture& failed(int rank, const std::string& node = "n", int exit_code = 3) {
    JobResult result;
    result.outcome = JobOutcome::kFailed;
    result.cause = JobCause::kWorker;
    result.exit_code = exit_code;
    result.rank = rank;
    result.node = node;
    result.message = "rank " + std::to_string(rank) + " on " + node + " failed";
    return closed(result);
  }
  Fixture& stop(int signal = SIGTERM) { return feed(StopRequested{signal}); }
  Fixture& lost() { return feed(SupervisionLost{"the guardian died"}); }
  // Advances the time to the policy's deadline.
  Fixture& wait() {
    EXPECT_TRUE(policy_.next_deadline());
    now_ = policy_.next_deadline().value_or(now_);
    return feed(PolicyTick{});
  }

  // The actions since the last call, as text.
  std::vector<std::string> words() { return std::exchange(words_, {}); }
  Fixture& quiet() {
    words_.clear();
    return *this;
  }
  AgentState state() const { return policy_.state(); }
  const AgentResult& result() const { return result_; }
  const std::string& message() const { return message_; }
  const AgentPolicy& policy() const { return policy_; }
  const NodeStatement& sent() const { return sent_; }

 private:
  static constexpr NodeId kSelf{1, 2};

  static AgentPolicyOptions options_of(int max_restarts, std::optional<Duration> barrier,
                                       std::optional<Duration> inplace_grace,
                                       std::optional<Duration> inplace_prepare) {
    AgentPolicyOptions options;
    options.node.id = kSelf;
    options.node.local_world_size = 2;
    options.node.stop_grace = std::chrono::seconds(30);
    options.node.failure_grace = std::chrono::seconds(10);
    options.settings.max_restarts = max_restarts;
    options.exit_barrier_timeout = barrier;
    options.inplace_grace = inplace_grace;
    options.inplace_prepare = inplace_prepare;
    options.node.stop_grace += inplace_grace.value_or(Duration::zero());
    options.node.failure_grace += inplace_grace.value_or(Duration::zero());
    options.no_restart_codes = {kNoRestartCode};
    options.bad_node_codes = {kBadNodeCode};
    return options;
  }
  void record(PolicyAction action) {
    if (auto* send = std::get_if<Send>(&action)) {
      words_.push_back(word_of(send->statement));
      sent_ = std::move(send->statement);
    } else if (std::holds_alternative<StartGroup>(action)) {
      words_.emplace_back("start");
    } else if (std::holds_alternative<PrepareGroup>(action)) {
      words_.emplace_back("prepare");
    } else if (const auto* cut = std::get_if<CutGroup>(&action)) {
      words_.push_back("cut " + std::to_string(cut->round));
    } else if (const auto* next = std::get_if<ContinueGroup>(&action)) {
      words_.push_back("continue " + std::to_string(next->round->round));
    } else if (const auto* stop = std::get_if<StopGroup>(&action)) {
      words_.push_back("stop " + std::to_string(stop->signal) + " " +
                       std::to_string(to_seconds(stop->grace)).substr(0, 2));
    } else if (const auto* report = std::get_if<Report>(&action)) {
      words_.push_back("report " + kind_name(report->event.kind));
      message_ = report->event.message;
    } else {
      result_ = std::get<Finish>(action).result;
      words_.push_back("finish " + std::to_string(result_.exit_code));
    }
  }
  static std::string word_of(const NodeStatement& statement) {
    struct Reader {
      std::string operator()(const rdzv::Join& one) const {
        return "join " + std::to_string(one.node.highest_round);
      }
      std::string operator()(const rdzv::Failed& one) const {
        return "failed " + std::to_string(one.round);
      }
      std::string operator()(const rdzv::Gone& one) const {
        return "gone " + std::to_string(one.round);
      }
      std::string operator()(const rdzv::Done& one) const {
        return "done " + std::to_string(one.round);
      }
      std::string operator()(const rdzv::Leave&) const { return "leave"; }
      std::string operator()(const rdzv::Close& one) const {
        return "close " + std::to_string(one.result.exit_code);
      }
    };
    return std::visit(Reader{}, statement);
  }
  static std::string kind_name(AgentEvent::Kind kind) {
    switch (kind) {
      case AgentEvent::Kind::kProgress: return "note";
      case AgentEvent::Kind::kCoordinatorLog: return "coordinator log";
      case AgentEvent::Kind::kNotice: return "notice";
      case AgentEvent::Kind::kHang: return "hang";
      case AgentEvent::Kind::kStraggling: return "straggling";
      case AgentEvent::Kind::kFirstStep: return "first step";
      case AgentEvent::Kind::kDrain: return "drain";
      case AgentEvent::Kind::kCoordinatorMoved: return "coordinator moved";
      case AgentEvent::Kind::kRoundStarting: return "round";
      case AgentEvent::Kind::kWorkerStarted: return "started";
      case AgentEvent::Kind::kWorkersRunning: return "running";
      case AgentEvent::Kind::kWorkerExited: return "exited";
      case AgentEvent::Kind::kStopping: return "stopping";
      case AgentEvent::Kind::kRestarting: return "restarting";
      case AgentEvent::Kind::kFinished: return "finished";
    }
    return "?";
  }

  AgentPolicy policy_;
  Instant now_ = at(100);
  std::vector<std::string> words_;
  std::string message_;
  NodeStatement sent_;
  AgentResult result_;
};

}  // namespace elastic::core::agent_policy_test
