#pragma once

// An agent with two workers that exist only here: its machine is the one that production runs, and
// what it sends to the rendezvous is up to the derived class. For members of a hostile coordinator
// (support/hostile_member.h, host/membership/hostile_session_test.cc).

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/agent/agent_machine.h"
#include "core/rendezvous/rendezvous_events.h"
#include "core/session/session_wire.h"

namespace elastic::test {

using namespace std::chrono_literals;

class ModelledAgent {
 public:
  ModelledAgent(bool is_in_place, bool is_prepared)
      : options_(options(is_in_place, is_prepared)), agent_(options_) {}
  virtual ~ModelledAgent() = default;

 protected:
  static constexpr NodeId kSelf{2, 2};
  static constexpr int kWorkers = 2;

  static core::AgentMachineOptions options(bool is_in_place, bool is_prepared) {
    core::AgentMachineOptions options;
    options.host_name = "node2";
    options.policy.node.id = kSelf;
    options.policy.node.local_world_size = kWorkers;
    options.policy.settings.max_nodes = 4;
    options.policy.settings.store_grace = 10min;
    if (is_in_place) options.policy.agent.inplace_grace = 5s;
    if (is_in_place && is_prepared) options.policy.agent.inplace_prepare = 60s;
    return options;
  }

  // Whether the message may end the part of this node in the job.
  bool is_decision(const session::ServerMessage& message) const {
    if (const auto* refused = std::get_if<rdzv::Refused>(&message)) {
      const StatusCode code = refused->error.code();
      const bool may_pass = code == StatusCode::kResourceExhausted ||
                            code == StatusCode::kUnavailable || code == StatusCode::kPeerViolation;
      return !may_pass || agent_.state() != AgentState::kHealthy;
    }
    // No coordinator could count on from these.
    constexpr std::uint64_t kLast = core::kRoundMax / 2;
    if (const auto* round = std::get_if<rdzv::Round>(&message)) {
      return round->record->round > kLast ||
             (round->own.local_world_size != kWorkers && agent_.state() == AgentState::kInit);
    }
    if (const auto* restart = std::get_if<rdzv::Restart>(&message)) return restart->round > kLast;
    if (const auto* evicted = std::get_if<rdzv::Evicted>(&message)) return evicted->round > kLast;
    if (const auto* timings = std::get_if<session::Timings>(&message)) {
      const JobSettings& job = timings->settings;
      return std::min(job.store_grace, job.join_timeout) < 3min;  // a job may have that
    }
    const auto* const reply = std::get_if<session::HeartbeatReply>(&message);
    return std::holds_alternative<rdzv::Closed>(message) ||
           std::holds_alternative<rdzv::TimedOut>(message) ||
           std::holds_alternative<drain::Order>(message) ||
           std::holds_alternative<hang::Verdict>(message) || (reply != nullptr && reply->alone);
  }

  void expect(bool is_true, const char* what) const {
    if (is_true) return;
    for (const std::string& line : trace_) std::fprintf(stderr, "%s\n", line.c_str());
    std::fprintf(stderr, "broken: %s\n", what);
    std::abort();
  }
  void trace(const std::string& what) {
    constexpr std::size_t kLines = 200;
    trace_.push_back(std::to_string((now() - Instant(1000s)).count()) +
                     " ns: " + what.substr(0, 500));
    if (trace_.size() > kLines) trace_.pop_front();
  }

  // What production would do next; the reply is given to agent_step(), later.
  void later(core::AgentInput input) { inputs_.push_back(std::move(input)); }
  bool take_input() {
    if (inputs_.empty()) return false;
    const core::AgentInput input = std::move(inputs_.front());
    inputs_.pop_front();
    agent_step(input);
    return true;
  }

  void agent_step(const core::AgentInput& input) {
    std::vector<core::AgentAction> actions;
    agent_.step(input, now(), &actions);
    expect(actions.size() < 100, "few actions");
    for (const core::AgentAction& action : actions) {
      std::visit([this](const auto& one) { act(one); }, action);
    }
  }

  virtual void submit(const core::NodeStatement& statement) = 0;
  virtual void introduce(const core::NodeInfo& node) = 0;
  virtual void report(const core::NodeReport& report) = 0;
  virtual void end(Duration limit) = 0;  // Flushed follows
  virtual Instant now() const = 0;

  const core::AgentMachineOptions options_;
  core::AgentMachine agent_;
  bool is_finished_ = false;

 private:
  // ---- As host/agent/agent_runner.cc does.

  void act(const core::Report& reported) { trace(reported.event.message); }
  void act(const core::Send& send) { submit(send.statement); }
  void act(const core::PrepareGroup& group) {
    introduce(group.node);
    later(core::agent_event::FilesOpened{});
  }
  void act(const core::StartGroup& group) {
    expect(group.round->workers.size() == kWorkers, "it has these workers");
    later(core::agent_event::FilesOpened{});
  }
  void act(const core::ContinueGroup& group) {
    expect(group.round->workers.size() == kWorkers, "it has these workers");
  }
  void act(const core::agent_action::StartWorkers&) {
    is_running_.assign(kWorkers, true);
    for (int rank = 0; rank < kWorkers; ++rank) {
      later(core::WorkerStarted{rank, 100 + rank, now()});
      if (!options_.policy.agent.inplace_grace) continue;
      later(core::WorkerCapable{rank});
      if (options_.policy.agent.inplace_prepare) later(core::WorkerLeft{rank});
    }
  }
  void act(const core::agent_action::CancelStart&) { later(core::agent_event::StartCancelled{}); }
  void act(const core::CutGroup&) {
    for (int rank = 0; rank < kWorkers; ++rank) later(core::WorkerLeft{rank});
  }
  void act(const core::agent_action::StopWorkers& stop) {
    for (int rank = 0; rank < kWorkers; ++rank) end_worker(rank, stop.how.signal, true);
  }
  void act(const core::agent_action::KillWorker& kill) {
    end_worker(kill.local_rank, SIGKILL, false);
  }
  void act(const core::agent_action::AwaitTemplate&) { later(core::agent_event::TemplateReady{}); }
  void act(const core::agent_action::OpenStore&) {
    later(core::agent_event::StoreOpened{std::uint16_t{29500}});
  }
  void act(const core::agent_action::CollectStacks&) {
    later(core::agent_event::StacksCollected{});
  }
  void act(const core::agent_action::Observe& observed) {
    std::visit([this](const auto& one) { report(one); }, observed.message);
  }
  void act(const core::agent_action::RequestDrain& request) { report(request.notice); }
  void act(const core::agent_action::SetStopStep& set) {
    using Kind = drain::Order::Kind;
    if (set.request.kind == Kind::kWithdraw || set.request.kind == Kind::kCommit) return;
    const auto kind =
        set.request.kind == Kind::kAsk ? drain::Reply::Kind::kSteps : drain::Reply::Kind::kAccepted;
    later(drain::StopStepEvent{kind, set.request.proposal, {0, 1}, 10, 9});
  }
  void act(const core::Finish& finish) {
    trace("finishes: " + finish.result.message);
    is_finished_ = true;
    later(core::agent_event::ResultFixed{});
  }
  void act(const core::agent_action::Flush& flush) { end(flush.limit); }
  template <typename Other>
  void act(const Other&) {}

  void end_worker(int rank, int signal, bool is_stopped) {
    if (is_running_.empty() || !is_running_[static_cast<std::size_t>(rank)]) return;
    is_running_[static_cast<std::size_t>(rank)] = false;
    WorkerExit exit;
    exit.kind = ExitKind::kSignaled;
    exit.signal = signal;
    exit.stopped_by_us = is_stopped;
    exit.at = now();
    later(core::WorkerExited{rank, 100 + rank, agent_.explain(rank, exit)});
    if (std::find(is_running_.begin(), is_running_.end(), true) != is_running_.end()) return;
    is_running_.clear();
    later(core::agent_event::ProcessesEnded{});
    later(core::agent_event::FailuresExamined{});
  }

  std::vector<bool> is_running_;  // by local rank; empty: no worker
  std::deque<core::AgentInput> inputs_;
  std::deque<std::string> trace_;  // the last lines
};

}  // namespace elastic::test
