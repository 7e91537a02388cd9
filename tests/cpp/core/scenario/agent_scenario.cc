// The policy of the agent of node n with two workers. Its state is printed when it changes.

#include <cerrno>
#include <csignal>
#include <map>
#include <memory>
#include <variant>

#include "core/agent/agent_policy.h"
#include "core/base/text.h"
#include "core/scenario/scenario.h"

namespace elastic::scenario {
namespace {

using core::AgentPolicy;
using core::WorkerExited;

constexpr NodeId kAgentId{1, 2};

std::string seconds_text(Instant at) { return core::duration_text(at - Instant{}); }

struct StatementText {
  std::string operator()(const rdzv::Join& one) const {
    return "Join as " + one.node.name + " at " + one.node.address + " with " +
           std::to_string(one.node.local_world_size) + " workers, highest round " +
           std::to_string(one.node.highest_round) +
           (one.node.previous_rank < 0 ? ""
                                       : ", last rank " + std::to_string(one.node.previous_rank));
  }
  std::string operator()(const rdzv::Failed& one) const {
    const FailureReport& failure = one.failure;
    return "Failed in round " + std::to_string(one.round) + ": rank " +
           std::to_string(failure.rank) + " (local rank " + std::to_string(failure.local_rank) +
           ") at " + seconds_text(failure.at) + ", exit code " + std::to_string(failure.exit_code) +
           ": " + failure.message +
           (failure.evidence && !failure.evidence->error.empty()
                ? " [" + failure.evidence->error + "]"
                : "");
  }
  std::string operator()(const rdzv::Gone& one) const {
    return "Gone from round " + std::to_string(one.round);
  }
  std::string operator()(const rdzv::Done& one) const {
    return "Done in round " + std::to_string(one.round);
  }
  std::string operator()(const rdzv::Leave& one) const {
    const std::string code =
        one.exit_code == 0 ? "" : " with exit code " + std::to_string(one.exit_code);
    return "Leave" + code + ": " + one.reason;
  }
  std::string operator()(const rdzv::Close& one) const {
    return "Close, exit code " + std::to_string(one.result.exit_code) + ": " + one.result.message;
  }
};

const char* name_of_kind(AgentEvent::Kind kind) {
  switch (kind) {
    case AgentEvent::Kind::kProgress: return "progress";
    case AgentEvent::Kind::kNotice: return "notice";
    case AgentEvent::Kind::kWorkerStarted: return "started";
    case AgentEvent::Kind::kWorkersRunning: return "running";
    case AgentEvent::Kind::kWorkerExited: return "exited";
    case AgentEvent::Kind::kStopping: return "stopping";
    case AgentEvent::Kind::kRestarting: return "restarting";
    default: return "another event";  // of the owner of the policy
  }
}

struct PolicyText {
  std::string operator()(const core::Send& one) const {
    return "send " + std::visit(StatementText{}, one.statement);
  }
  std::string operator()(const core::StartGroup& one) const {
    return "start the workers of round " + std::to_string(one.round->round);
  }
  std::string operator()(const core::PrepareGroup&) const { return "start the workers, who wait"; }
  std::string operator()(const core::CutGroup& one) const {
    return "cut round " + std::to_string(one.round);
  }
  std::string operator()(const core::ContinueGroup& one) const {
    return "continue the workers in round " + std::to_string(one.round->round);
  }
  std::string operator()(const core::StopGroup& one) const {
    return "stop the workers by " + core::signal_text(one.signal) + ", grace " +
           core::duration_text(one.grace);
  }
  std::string operator()(const core::Report& one) const {
    const AgentEvent& event = one.event;
    return std::string("report ") + name_of_kind(event.kind) +
           (event.local_rank < 0 ? "" : " local rank " + std::to_string(event.local_rank)) +
           (event.kind == AgentEvent::Kind::kWorkerExited ? ": " + event.exit.describe() : "") +
           (event.message.empty() ? "" : ": " + event.message);
  }
  std::string operator()(const core::Finish& one) const {
    const AgentResult& result = one.result;
    std::string text = std::string("finish ") + to_string(result.state) + " with " +
                       std::to_string(result.exit_code);
    for (const WorkerFailure& failure : result.failures) {
      text +=
          ", failure of rank " + std::to_string(failure.rank) + " at " + seconds_text(failure.at);
    }
    if (!result.job) text += ", no job result";
    return result.message.empty() ? text : text + ": " + result.message;
  }
  std::string operator()(const core::CorrectResult& one) const {
    return "correct the result to " + std::to_string(one.exit_code) + ": " + one.message;
  }
};

class AgentAdapter : public StoryAdapter<AgentAdapter> {
  friend StoryAdapter;
  static constexpr const char* kFirst = "agent";

  void begin(Command& command) {
    core::AgentPolicyOptions options;
    options.node.id = kAgentId;
    options.node.local_world_size = 2;
    options.node.stop_grace = std::chrono::seconds(30);
    options.node.failure_grace = std::chrono::seconds(10);
    command.get("max_restarts", &options.settings.max_restarts);
    const auto optional = [&](const char* key) -> std::optional<Duration> {
      Duration value{};
      return command.get(key, &value) ? std::optional(value) : std::nullopt;
    };
    options.agent.exit_barrier_timeout = optional("exit_barrier_timeout");
    options.agent.inplace_grace = optional("inplace_grace");
    options.agent.inplace_prepare = optional("inplace_prepare");
    options.node.stop_grace += options.agent.inplace_grace.value_or(Duration::zero());
    options.node.failure_grace += options.agent.inplace_grace.value_or(Duration::zero());
    options.agent.no_restart_codes = {97};
    options.agent.bad_node_codes = {90};
    policy_ = std::make_unique<AgentPolicy>(options);
    state_ = policy_->state();
  }
  void feed(const core::PolicyEvent& event) {
    std::vector<core::PolicyAction> actions;
    policy_->step(event, now_, &actions);
    for (const core::PolicyAction& action : actions) {
      trace_->line(std::visit(PolicyText{}, action));
    }
    if (std::exchange(state_, policy_->state()) != policy_->state()) {
      trace_->line(to_string(policy_->state()));
    }
  }

  void ready(Command&) { feed(core::RendezvousReady{"n", "10.0.0.1"}); }
  // Of `nodes` nodes with two workers each.
  void round(Command& command) {
    auto record = std::make_shared<RoundRecord>();
    record->round = command.has_word() ? command.number<std::uint64_t>() : 1;
    record->nodes = command.get_or("nodes", 1);
    record->world_size = 2 * record->nodes;
    command.get("restarts", &record->restarts);
    NodeAssignment own;
    command.get("rank", &own.group_rank);
    own.local_world_size = 2;
    own.base_rank = own.base_role_rank = 2 * own.group_rank;
    own.role_world_size = record->world_size;
    feed(rdzv::Round{kAgentId, std::move(record), own});
  }
  static std::vector<int> local_ranks(Command& command) {
    std::vector<int> ranks;
    while (command.has_word()) ranks.push_back(command.number<int>());
    return ranks;
  }
  void started(Command& command) {
    for (const int rank : local_ranks(command)) feed(core::WorkerStarted{rank, 1000 + rank, {}});
  }
  // Joins, and is in round 1 with running workers.
  void running(Command& command) {
    ready(command);
    round(command);
    for (const int rank : {0, 1}) feed(core::WorkerStarted{rank, 1000 + rank, {}});
  }
  void capable(Command& command) {
    for (const int rank : local_ranks(command)) feed(core::WorkerCapable{rank});
  }
  void left_round(Command& command) {
    for (const int rank : local_ranks(command)) feed(core::WorkerLeft{rank});
  }
  static WorkerExit exit_of(Command& command) {
    static const std::map<std::string, int> kErrors = {
        {"ENOENT", ENOENT}, {"EACCES", EACCES}, {"ENOEXEC", ENOEXEC}, {"EAGAIN", EAGAIN}};
    WorkerExit exit;
    exit.at = Instant{std::chrono::seconds(command.get_or("at", 1))};
    if (command.get("code", &exit.code)) exit.kind = ExitKind::kExited;
    if (const auto signal = command.text("signal")) {
      exit.kind = ExitKind::kSignaled;
      exit.signal = signal_of(*signal);
    }
    if (const auto error = command.text("error")) {
      if (!kErrors.contains(*error)) throw Fault("unknown error '" + *error + "'");
      exit.kind = ExitKind::kNotStarted;
      exit.error = kErrors.at(*error);
      exit.stage = command.text("stage", "exec");
      exit.path = "/no/such";
    }
    command.get("stop_step", &exit.stop_step);
    command.get("stopped", &exit.stopped_by_us);
    return exit;
  }
  static int signal_of(const std::string& name) {  // SIGTERM
    for (int signal = 1; signal < 32; ++signal) {
      if (core::signal_text(signal).ends_with("(" + name + ")")) return signal;
    }
    throw Fault("unknown signal '" + name + "'");
  }
  // A worker that ends so, without its rank.
  static WorkerExited exited_of(Command& command) {
    WorkerExited exited{.exit = exit_of(command)};
    if (int second = 0; command.get("reported", &second)) {
      exited.reported_at = Instant{std::chrono::seconds(second)};
    }
    command.get("raised", &exited.evidence.error);
    command.get("fingerprint", &exited.fingerprint);
    if (command.text("class", "") == "user_input") {
      exited.evidence.failure_class = FailureClass::kUserInput;
    }
    return exited;
  }
  // exit LOCAL_RANK...: each ends so.
  void exit(Command& command) {
    WorkerExited exited = exited_of(command);
    for (const int rank : local_ranks(command)) {
      exited.local_rank = rank;
      exited.pid = 1000 + rank;
      feed(exited);
    }
  }
  // More is known about a worker that has failed, or fails.
  void evidence(Command& command) {
    core::FailureFound found{exited_of(command)};
    for (const int rank : local_ranks(command)) {
      found.worker.local_rank = rank;
      found.worker.pid = 1000 + rank;
      feed(found);
    }
  }
  void group_gone(Command&) { feed(core::GroupGone{}); }
  void restart(Command& command) {
    feed(rdzv::Restart{kAgentId, command.number<std::uint64_t>(), rdzv::RestartCause::kMemberLost,
                       command.text("reason", "m was lost"),
                       command.get_or<Duration>("grace", std::chrono::seconds(5))});
  }
  void evicted(Command& command) {
    feed(rdzv::Evicted{kAgentId, command.number<std::uint64_t>(), "no sign of life"});
  }
  void closed(Command& command) {
    static const std::map<std::string, JobCause> kCauses = {{"worker", JobCause::kWorker},
                                                            {"node_lost", JobCause::kNodeLost},
                                                            {"too_few", JobCause::kTooFewNodes},
                                                            {"requested", JobCause::kRequested}};
    JobResult result;
    if (command.has_word()) {
      const std::string cause = command.word();
      if (!kCauses.contains(cause)) throw Fault("unknown cause '" + cause + "'");
      result.cause = kCauses.at(cause);
      result.outcome =
          result.cause == JobCause::kRequested ? JobOutcome::kClosed : JobOutcome::kFailed;
    }
    command.get("exit", &result.exit_code);
    command.get("rank", &result.rank);
    command.get("node", &result.node);
    const bool is_namesake = command.get_or("namesake", false);
    if (result.node == "n") result.node_id = is_namesake ? NodeId{3, 4} : kAgentId;
    command.get("message", &result.message);
    if (const auto lost = command.text("lost")) result.lost = {*lost};
    feed(rdzv::Closed{kAgentId, std::make_shared<const JobResult>(result)});
  }
  void refused(Command& command) {
    feed(rdzv::Refused{kAgentId, {StatusCode::kFailedPrecondition, command.word()}});
  }
  void timed_out(Command& command) { feed(rdzv::TimedOut{kAgentId, command.word()}); }
  void progress(Command& command) { feed(core::Progress{command.word()}); }
  void stop(Command& command) { feed(core::StopRequested{signal_of(command.word())}); }
  void guardian_lost(Command&) { feed(core::SupervisionLost{"the guardian died"}); }
  void rendezvous_lost(Command& command) {
    feed(core::RendezvousLost{kExitCoordinatorLost, command.word()});
  }
  void local_fault(Command& command) {
    const int exit_code = command.number<int>();
    feed(core::LocalFault{exit_code, command.word()});
  }
  void leave_at_step(Command& command) { feed(core::LeaveAtStep{command.number<std::int64_t>()}); }
  // Until the policy's deadline.
  void wait(Command&) {
    const auto deadline = policy_->next_deadline();
    if (!deadline) throw Fault("the policy has no deadline");
    trace_->line("after " + core::duration_text(*deadline - now_));
    now_ = *deadline;
    feed(core::PolicyTick{});
  }
  void show(Command&) {
    const auto deadline = policy_->next_deadline();
    trace_->line(
        std::string(to_string(policy_->state())) +
        (deadline ? ", deadline in " + core::duration_text(*deadline - now_) : ", no deadline"));
  }

  static const Handlers& commands() {
    static const Handlers kCommands = {
        {"ready", &AgentAdapter::ready},
        {"round", &AgentAdapter::round},
        {"started", &AgentAdapter::started},
        {"running", &AgentAdapter::running},
        {"capable", &AgentAdapter::capable},
        {"left-round", &AgentAdapter::left_round},
        {"exit", &AgentAdapter::exit},
        {"evidence", &AgentAdapter::evidence},
        {"group-gone", &AgentAdapter::group_gone},
        {"restart", &AgentAdapter::restart},
        {"evicted", &AgentAdapter::evicted},
        {"closed", &AgentAdapter::closed},
        {"refused", &AgentAdapter::refused},
        {"timed-out", &AgentAdapter::timed_out},
        {"progress", &AgentAdapter::progress},
        {"stop", &AgentAdapter::stop},
        {"guardian-lost", &AgentAdapter::guardian_lost},
        {"rendezvous-lost", &AgentAdapter::rendezvous_lost},
        {"local-fault", &AgentAdapter::local_fault},
        {"leave-at-step", &AgentAdapter::leave_at_step},
        {"wait", &AgentAdapter::wait},
        {"show", &AgentAdapter::show},
    };
    return kCommands;
  }

  std::unique_ptr<AgentPolicy> policy_;
  AgentState state_ = AgentState::kInit;
};

}  // namespace

std::unique_ptr<Adapter> make_agent_adapter() { return std::make_unique<AgentAdapter>(); }

}  // namespace elastic::scenario
