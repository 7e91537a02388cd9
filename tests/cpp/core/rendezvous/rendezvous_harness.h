#pragma once

// A job in a test: nodes by their names, time that the test advances, and invariants that are
// checked at every step. Functions return the actions of that step alone.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/rendezvous/rendezvous_machine.h"
#include "sim/rendezvous_checker.h"

namespace elastic::test {

using namespace std::chrono_literals;  // NOLINT: every test uses durations

inline JobSettings nnodes(int min_nodes, int max_nodes) {
  JobSettings settings;
  settings.min_nodes = min_nodes;
  settings.max_nodes = max_nodes;
  settings.join_timeout = 600s;
  settings.last_call_timeout = 30s;
  settings.settle = 2s;
  settings.node_timeout = 5s;
  settings.reconnect_grace = 50ms;
  settings.store_grace = 60s;
  settings.restart_backoff = 0s;
  return settings;
}

inline JobSettings with(JobSettings settings, const std::function<void(JobSettings&)>& change) {
  change(settings);
  return settings;
}

// The actions of one step.
class Sent {
 public:
  explicit Sent(std::vector<core::RendezvousAction> actions) : actions_(std::move(actions)) {}

  // The last action of this kind to the node; null if there is none.
  template <typename Action>
  const Action* to(const NodeId& id) const {
    const Action* found = nullptr;
    for (const core::RendezvousAction& action : actions_) {
      const auto* one = std::get_if<Action>(&action);
      if (one != nullptr && one->to == id) found = one;
    }
    return found;
  }
  bool nothing() const { return actions_.empty(); }

 private:
  std::vector<core::RendezvousAction> actions_;
};

class Job {
 public:
  explicit Job(JobSettings settings, Duration start_hold = 0s)
      : settings_(std::move(settings)),
        checker_(settings_),
        machine_(settings_, now_, start_hold) {}
  ~Job() {
    for (const std::string& violation : checker_.violations()) ADD_FAILURE() << violation;
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // The node of this name, created with defaults. Modify it before it joins.
  core::NodeInfo& node(const std::string& name) {
    auto [found, is_new] = nodes_.try_emplace(name);
    core::NodeInfo& info = found->second;
    if (is_new) {
      info.id = {0x1000, nodes_.size()};
      info.name = name;
      info.address = "10.0.0." + std::to_string(nodes_.size());
      info.store_port = static_cast<std::uint16_t>(40'000 + nodes_.size());
      info.stop_grace = info.failure_grace = 30s;
    }
    return info;
  }
  NodeId id(const std::string& name) { return node(name).id; }
  std::string name_of(const NodeId& id) const {
    for (const auto& [name, info] : nodes_) {
      if (info.id == id) return name;
    }
    return "?";
  }
  std::function<void(const core::RendezvousAction&)> on_action;  // if set, called for each in turn

  Sent step(const core::RendezvousEvent& event) {
    std::vector<core::RendezvousAction> actions;
    checker_.step(&machine_, event, now_, &actions);
    for (const core::RendezvousAction& action : actions) {
      if (on_action) on_action(action);
      const auto* round = std::get_if<rdzv::Round>(&action);
      const auto* restart = std::get_if<rdzv::Restart>(&action);
      const auto* evicted = std::get_if<rdzv::Evicted>(&action);
      if (round != nullptr) shares_[round->to] = *round;
      for (auto& [name, info] : nodes_) {  // the node has received it before its next message
        std::uint64_t& record_activity = info.highest_round;
        if (round != nullptr && round->to == info.id) record_activity = round->record->round;
        if (evicted != nullptr && evicted->to == info.id)
          record_activity = std::max(record_activity, evicted->round);
        if (restart != nullptr && restart->to == info.id)
          record_activity = std::max(record_activity, restart->round);
      }
    }
    return Sent(std::move(actions));
  }

  Sent join(const std::string& name) { return step(rdzv::Join{node(name), settings_}); }
  // Joins all nodes; returns the actions of the last join.
  Sent join_all(const std::vector<std::string>& names) {
    for (std::size_t i = 0; i + 1 < names.size(); ++i) join(names[i]);
    return join(names.back());
  }
  Sent beat(const std::string& name) { return step(rdzv::Heartbeat{id(name)}); }
  Sent gone(const std::string& name) { return step(rdzv::Gone{id(name), round()}); }
  Sent done(const std::string& name) { return step(rdzv::Done{id(name), round()}); }
  Sent leave(const std::string& name, bool is_planned = false, int exit_code = 0) {
    return step(rdzv::Leave{id(name), "SIGTERM", exit_code, is_planned});
  }
  Sent cut(const std::string& name) { return step(rdzv::SessionLost{id(name)}); }
  Sent end(const std::string& name) { return step(rdzv::ProcessEnded{id(name)}); }
  Sent fail(const std::string& name, int exit_code = 1, Duration age = 0s,
            const std::string& error = "", std::optional<std::uint64_t> round_number = {},
            std::optional<FailureAdvice> advice = {}) {
    FailureReport failure;
    if (shares_.contains(id(name))) failure.rank = share(name).own.base_rank;
    failure.exit_code = exit_code;
    failure.message = "exited with code " + std::to_string(exit_code);
    failure.at = now_ - age;
    failure.advice = std::move(advice);
    if (!error.empty()) {
      failure.evidence = FailureEvidence{};
      failure.evidence->error = error;
    }
    return step(rdzv::Failed{id(name), round_number.value_or(round()), failure});
  }
  // Reports that the workers have ended, and joins again.
  Sent rejoin(const std::string& name) {
    gone(name);
    return join(name);
  }
  rdzv::Resume resume_of(const std::string& name, rdzv::NodePhase phase) {
    rdzv::Resume event{node(name), settings_, phase, std::nullopt, std::nullopt};
    if (shares_.contains(id(name))) {
      const rdzv::Round& held = shares_[id(name)];
      event.last = core::HeldRound{*held.record, held.own.group_rank, held.cause};
    }
    return event;
  }
  Sent resume(const std::string& name, rdzv::NodePhase phase) {
    return step(resume_of(name, phase));
  }

  Sent tick() { return step(rdzv::Tick{}); }
  // Advances the time without a tick.
  void pass(Duration wait) { now_ += wait; }
  Sent pass_and_tick(Duration wait) {
    now_ += wait;
    return tick();
  }
  // Advances the time like an event loop, with a tick at every deadline; `beat_all` is called each
  // second.
  void run(Duration wait, const std::function<void()>& beat_all) {
    const Instant end = now_ + wait;
    Instant next_beat = now_;
    while (now_ < end) {
      if (now_ >= next_beat) {
        beat_all();
        next_beat = now_ + 1s;
      }
      now_ =
          std::min({end, std::max(machine_.next_deadline().value_or(end), now_ + 1ns), next_beat});
      tick();
    }
  }
  // Replaces the machine by one without state.
  void restart_coordinator(Duration start_hold = core::kStartHold) {
    machine_ = core::RendezvousMachine(settings_, now_, start_hold);
    checker_.machine_restarted();
  }

  std::uint64_t round() const { return machine_.record().round; }
  const rdzv::Round& share(const std::string& name) { return shares_[id(name)]; }
  template <typename Action>
  const Action* action_to(const Sent& sent, const std::string& name) {
    return sent.to<Action>(id(name));
  }
  std::string describe() const { return machine_.describe(now_); }
  bool is_running() const { return machine_.phase() == RendezvousPhase::kRunning; }
  bool is_closed() const { return machine_.phase() == RendezvousPhase::kClosed; }
  const JobResult& result() const { return *machine_.result(); }
  core::RendezvousMachine& machine() { return machine_; }
  const JobSettings& settings() const { return settings_; }
  Instant now() const { return now_; }

 private:
  Instant now_ = Instant(1000s);
  JobSettings settings_;
  RendezvousChecker checker_;
  core::RendezvousMachine machine_;
  std::map<std::string, core::NodeInfo> nodes_;
  std::map<NodeId, rdzv::Round> shares_;
};

}  // namespace elastic::test
