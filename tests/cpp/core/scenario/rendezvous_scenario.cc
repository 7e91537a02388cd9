// The rendezvous machine as a coordinator drives it. Invariants are checked after every command.

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <variant>

#include "core/base/text.h"
#include "core/rendezvous/rendezvous_events.h"
#include "core/rendezvous/rendezvous_harness.h"
#include "core/rendezvous/rendezvous_names.h"
#include "core/scenario/scenario.h"
#include "elastic/observer.h"

namespace elastic::scenario {
namespace {

using core::duration_text;
using test::Job;

std::string name_of_phase(rdzv::NodePhase phase) {
  return std::string(core::kNodeRowNames[1 + static_cast<std::size_t>(phase)]);  // 0: absent
}

std::string counter(const char* name, std::int64_t value, std::int64_t usual = 0) {
  return value == usual ? "" : std::string(", ") + name + " " + std::to_string(value);
}

struct RendezvousText {
  std::string operator()(const rdzv::Round& one) const {
    const RoundRecord& record = *one.record;
    const auto ranks = [&](int base, int of) {
      return std::to_string(base) + "-" + std::to_string(base + one.own.local_world_size - 1) +
             " of " + std::to_string(of);
    };
    std::string text = "Round " + std::to_string(record.round) + ", rank " +
                       std::to_string(one.own.group_rank) + " of " + std::to_string(record.nodes);
    if (record.world_size != record.nodes) {
      text += ", workers " + ranks(one.own.base_rank, record.world_size);
    }
    if (one.own.role_world_size != record.world_size) {
      text += ", in their role " + ranks(one.own.base_role_rank, one.own.role_world_size);
    }
    return text + ", master " + record.master_addr + ":" + std::to_string(record.master_port) +
           counter("restarts", record.restarts) + counter("changes", record.membership_changes) +
           counter("generation", record.generation, 1) +
           counter("coordinator on rank", record.coordinator_rank, -1);
  }
  std::string operator()(const rdzv::Restart& one) const {
    return "Restart of round " + std::to_string(one.round) + ", " + to_string(one.cause) + ": " +
           one.reason + "; grace " + duration_text(one.grace);
  }
  std::string operator()(const rdzv::Waiting& one) const {
    return "Waiting: " + core::with_remaining(one.message, one.remaining);
  }
  std::string operator()(const rdzv::Resumed& one) const {
    return "Resumed in round " + std::to_string(one.round);
  }
  std::string operator()(const rdzv::Evicted& one) const {
    return "Evicted, round " + std::to_string(one.round) + ": " + one.reason;
  }
  std::string operator()(const rdzv::Refused& one) const {
    return "Refused: " + std::string(one.error.message());
  }
  std::string operator()(const rdzv::TimedOut& one) const { return "TimedOut: " + one.message; }
  std::string operator()(const rdzv::Closed& one) const {
    const std::string& message = one.result->message;
    return "Closed: " + kind_of(*one.result) + (message.empty() ? "" : ": " + message);
  }
  static std::string kind_of(const JobResult& result) {
    static constexpr const char* kCauses[] = {"", ", worker", ", node lost", ", too few nodes",
                                              ", requested"};
    std::string text = result.outcome == JobOutcome::kSucceeded ? "succeeded"
                       : result.outcome == JobOutcome::kFailed  ? "failed"
                                                                : "closed";
    text += kCauses[static_cast<std::size_t>(result.cause)];
    text += counter("exit code", result.exit_code) + counter("rank", result.rank, -1);
    if (!result.node.empty()) text += ", node " + result.node;
    for (const std::string& name : result.lost) text += ", lost " + name;
    for (const std::string& name : result.finished) text += ", finished " + name;
    return text;
  }
  std::string operator()(const rdzv::RoundOver& one) const {
    return "RoundOver " + std::to_string(one.round);
  }
};

class RendezvousAdapter : public StoryAdapter<RendezvousAdapter> {
  friend StoryAdapter;
  static constexpr const char* kFirst = "job";

  void begin(Command& command) {
    JobSettings settings = test::nnodes(1, 1);
    change(&settings, command);
    const Status valid = settings.validate();
    if (!valid.ok()) throw Fault(std::string(valid.message()));
    job_ = std::make_unique<Job>(settings, command.get_or("start_hold", Duration::zero()));
    job_->on_action = [this](const core::RendezvousAction& action) { print(action); };
  }
  static void change(JobSettings* settings, Command& command) {
    command.get("min", &settings->min_nodes);
    if (!command.get("max", &settings->max_nodes)) {
      settings->max_nodes = std::max(settings->max_nodes, settings->min_nodes);
    }
    command.get("max_restarts", &settings->max_restarts);
    command.get("max_membership_changes", &settings->max_membership_changes);
    command.get("static_ranks", &settings->static_ranks);
    if (const auto policy = command.text("on_loss")) {
      settings->on_loss = *policy == "fail" ? LossPolicy::kFail : LossPolicy::kReplace;
    }
    command.get("join_timeout", &settings->join_timeout);
    command.get("last_call_timeout", &settings->last_call_timeout);
    command.get("settle", &settings->settle);
    command.get("shrink_delay", &settings->shrink_delay);
    command.get("node_timeout", &settings->node_timeout);
    command.get("reconnect_grace", &settings->reconnect_grace);
    command.get("store_grace", &settings->store_grace);
    command.get("restart_backoff", &settings->restart_backoff);
    for (const char* name : {"program", "version"}) {
      const auto value = command.text(name);
      if (!value) continue;
      std::erase_if(settings->extra, [&](const auto& pair) { return pair.first == name; });
      if (!value->empty()) settings->extra.emplace_back(name, *value);
    }
  }

  void print(const core::RendezvousAction& action) {
    const std::string to = job_->name_of(test::addressee(action));
    if (const auto* waiting = std::get_if<rdzv::Waiting>(&action)) {
      // The reason is repeated every ten seconds.
      if (std::exchange(last_waiting_[to], waiting->message) == waiting->message && is_running()) {
        return;
      }
    }
    print_time(job_->now());
    trace_->line(to, std::visit(RendezvousText{}, action));
  }

  // A node's data before it joins.
  void node(Command& command) {
    core::NodeInfo& info = job_->node(command.word());
    command.get("workers", &info.local_world_size);
    command.get("role", &info.role);
    command.get("topology", &info.topology);
    command.get("port", &info.store_port);
    command.get("static_rank", &info.static_rank);
    command.get("previous_rank", &info.previous_rank);
    command.get("highest_round", &info.highest_round);
    command.get("stop_grace", &info.stop_grace);
    command.get("failure_grace", &info.failure_grace);
    command.get("hosts_coordinator", &info.hosts_coordinator);
  }
  // Waits; the nodes that are connected send heartbeats, and timers are evaluated as they are due.
  void run_for(Command& command) {
    let_time_pass(job_->now(), [&] { job_->run(command.duration(), [this] { beat_all(); }); });
  }
  void beat_all() {
    for (const core::NodeStatus& node : job_->machine().nodes(job_->now())) {
      if (!node.is_suspect && !silent_.contains(node.name)) job_->beat(node.name);
    }
  }
  void silent(Command& command) {
    for (const std::string& name : command.words()) silent_.insert(name);
  }
  void pass(Command& command) { job_->pass(command.duration()); }
  void tick(Command& command) {
    job_->pass_and_tick(command.has_word() ? command.duration() : Duration::zero());
  }
  void gap(Command& command) {
    const Duration gap = command.duration();
    job_->pass(gap);
    job_->step(rdzv::ClockGap{gap});
    job_->tick();
  }

  void join(Command& command) {
    JobSettings settings = job_->settings();
    change(&settings, command);
    for (const std::string& name : command.words()) {
      silent_.erase(name);
      job_->step(rdzv::Join{job_->node(name), settings});
    }
  }
  // Their workers have ended, and they join the next round.
  void rejoin(Command& command) {
    const std::vector<std::string> names = command.words();
    for (const std::string& name : names) job_->gone(name);
    for (const std::string& name : names) job_->join(name);
  }
  void beat(Command& command) {
    for (const std::string& name : command.words()) job_->beat(name);
  }
  void gone(Command& command) {
    const std::uint64_t round = command.get_or("round", job_->round());
    for (const std::string& name : command.words()) job_->step(rdzv::Gone{job_->id(name), round});
  }
  void done(Command& command) {
    const std::uint64_t round = command.get_or("round", job_->round());
    for (const std::string& name : command.words()) job_->step(rdzv::Done{job_->id(name), round});
  }
  void fail(Command& command) {
    const std::string name = command.word();
    job_->fail(name, command.get_or("exit", 1), command.get_or("age", Duration::zero()),
               command.text("error", ""), command.get_or("round", job_->round()));
  }
  void leave(Command& command) {
    const bool is_planned = command.get_or("planned", false);
    const int exit_code = command.get_or("exit", 0);
    for (const std::string& name : command.words()) job_->leave(name, is_planned, exit_code);
  }
  void close(Command& command) {
    const std::string name = command.word();
    JobResult result;
    result.outcome = JobOutcome::kClosed;
    result.cause = JobCause::kRequested;
    result.message = command.text("message", "closed by the user");
    job_->step(rdzv::Close{job_->id(name), result});
  }
  void lose_session(Command& command) {
    const Duration least = command.get_or("least_grace", Duration::zero());
    for (const std::string& name : command.words()) {
      job_->step(rdzv::SessionLost{job_->id(name), least});
    }
  }
  void end_process(Command& command) {
    for (const std::string& name : command.words()) job_->end(name);
  }
  void resume(Command& command) {
    const std::string name = command.word();
    const std::string phase = command.word();
    silent_.erase(name);
    std::optional<rdzv::Resume> event;
    for (const auto one : {rdzv::NodePhase::kJoined, rdzv::NodePhase::kWorking,
                           rdzv::NodePhase::kStopped, rdzv::NodePhase::kDone}) {
      if (name_of_phase(one) == phase) event = job_->resume_of(name, one);
    }
    if (!event) throw Fault("unknown phase '" + phase + "'");
    if (int exit_code = 0; command.get("failure", &exit_code)) {
      const Instant at = job_->now() - command.get_or("age", Duration::zero());
      event->failure =
          FailureReport{0, 0, exit_code, "exited with code " + std::to_string(exit_code), at};
    }
    if (command.get_or("has_received_round", true) == false) {
      event->last.reset();
      event->node.highest_round = 0;
    } else if (event->last) {
      command.get("rank", &event->last->group_rank);
      command.get("nodes", &event->last->record.nodes);
      command.get("round", &event->last->record.round);
      command.get("generation", &event->last->record.generation);
      command.get("changes", &event->last->record.membership_changes);
    }
    job_->step(*event);
  }

  void hold_growth(Command&) { job_->step(rdzv::HoldGrowth{}); }
  void replace_coordinator(Command& command) {
    job_->restart_coordinator(command.get_or("start_hold", core::kStartHold));
  }
  void save_state(Command&) { saved_ = job_->machine().encode(); }
  // Another coordinator continues from the state that was saved last, or from the current one.
  void restore_coordinator(Command&) {
    const std::string state = saved_.value_or(job_->machine().encode());
    job_->restart_coordinator();
    const Status status = job_->machine().restore(state, job_->now());
    if (!status.ok()) throw Fault(std::string(status.message()));
  }
  void show(Command&) {
    const core::RendezvousMachine& machine = job_->machine();
    static constexpr const char* kPhases[] = {"forming", "running", "closed"};
    const std::string text = machine.describe(job_->now());
    const std::string phase = kPhases[static_cast<std::size_t>(machine.phase())];
    trace_->line((text.starts_with(phase) ? "" : phase + ": ") + text +
                 counter("generation", machine.record().generation, 1) +
                 (machine.result() != nullptr
                      ? " (" + RendezvousText::kind_of(*machine.result()) + ")"
                      : "") +
                 (machine.is_removable() ? ", removable" : "") +
                 (machine.takeover_limit() > Duration::zero()
                      ? ", taken over for " + duration_text(machine.takeover_limit())
                      : ""));
  }
  void show_nodes(Command&) {
    for (const core::NodeStatus& node : job_->machine().nodes(job_->now())) {
      trace_->line(node.name, name_of_phase(node.phase) + counter("rank", node.rank, -1) +
                                  (node.is_suspect ? ", suspect" : "") + ", silent for " +
                                  duration_text(node.silence));
    }
  }

  static const Handlers& commands() {
    static const Handlers kCommands = {
        {"node", &RendezvousAdapter::node},
        {"run", &RendezvousAdapter::run_for},
        {"silent", &RendezvousAdapter::silent},
        {"pass", &RendezvousAdapter::pass},
        {"tick", &RendezvousAdapter::tick},
        {"gap", &RendezvousAdapter::gap},
        {"join", &RendezvousAdapter::join},
        {"rejoin", &RendezvousAdapter::rejoin},
        {"beat", &RendezvousAdapter::beat},
        {"gone", &RendezvousAdapter::gone},
        {"done", &RendezvousAdapter::done},
        {"fail", &RendezvousAdapter::fail},
        {"leave", &RendezvousAdapter::leave},
        {"close", &RendezvousAdapter::close},
        {"lose-session", &RendezvousAdapter::lose_session},
        {"end-process", &RendezvousAdapter::end_process},
        {"resume", &RendezvousAdapter::resume},
        {"hold-growth", &RendezvousAdapter::hold_growth},
        {"replace-coordinator", &RendezvousAdapter::replace_coordinator},
        {"save-state", &RendezvousAdapter::save_state},
        {"restore-coordinator", &RendezvousAdapter::restore_coordinator},
        {"show", &RendezvousAdapter::show},
        {"nodes", &RendezvousAdapter::show_nodes},
    };
    return kCommands;
  }
  std::unique_ptr<Job> job_;
  std::set<std::string> silent_;
  std::map<std::string, std::string> last_waiting_;
  std::optional<std::string> saved_;
};

}  // namespace

std::unique_ptr<Adapter> make_rendezvous_adapter() { return std::make_unique<RendezvousAdapter>(); }

}  // namespace elastic::scenario
