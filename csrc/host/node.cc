#include "host/node.h"

#include <unistd.h>

#include <utility>

#include "core/log_lines.h"
#include "core/rank_assign.h"
#include "core/worker_env.h"

// Theory of operation. Everything that happens becomes a PolicyEvent, and the actions that come
// back are carried out in order before the next event is looked at: an action may cause an event at
// once (a round of one node is ready as soon as its store is open), which then waits for its turn.

namespace elastic::host {
namespace {

// A store outlives its round's workers, so that whoever else reads it is not cut off in
// mid-sentence.
constexpr Duration kStoreAfterlife = std::chrono::seconds(1);

const std::string kNullDevice = "/dev/null";

// A round that cannot be formed: the launcher's exit code, and why.
core::RoundFailed failed_round(int exit_code, const Status& status) {
  return {.exit_code = exit_code, .message = std::string(status.message())};
}

}  // namespace

Result<std::unique_ptr<Node>> Node::start(os::EventLoop* loop, const AgentOptions& options,
                                          Sink sink) {
  std::unique_ptr<Node> node(new Node(loop, options, std::move(sink)));
  auto supervisor = Supervisor::create(
      loop, options.guardian,
      [raw = node.get()](const WorkerEvent& event) { raw->on_worker_event(event); });
  if (!supervisor.ok()) return supervisor.status();
  node->supervisor_ = *std::move(supervisor);
  std::vector<core::PolicyAction> actions;
  node->policy_.begin(&actions);
  for (core::PolicyAction& action : actions) node->execute(std::move(action));
  return node;
}

Node::Node(os::EventLoop* loop, const AgentOptions& options, Sink sink)
    : loop_(loop),
      options_(options),
      sink_(std::move(sink)),
      policy_({.max_restarts = options.max_restarts, .stop_grace = options.stop_grace}),
      retirement_(loop, [this] { close_retired_stores(); }),
      ending_(loop, [this] { let_go(); }) {}

Node::~Node() = default;

void Node::request_stop(int signal) { feed(core::StopRequested{signal}); }

void Node::on_worker_event(const WorkerEvent& event) {
  switch (event.kind) {
    case WorkerEvent::Kind::kStarted:
      feed(core::WorkerStarted{event.local_rank, event.pid, event.at});
      break;
    case WorkerEvent::Kind::kExited:
      feed(core::WorkerExited{event.local_rank, event.pid, event.exit});
      break;
    case WorkerEvent::Kind::kGroupGone:
      if (tee_) tee_->end_round();
      feed(core::GroupGone{});
      break;
    // Ten seconds after SIGKILL: nothing on this node can end it, and it may hold a device.
    case WorkerEvent::Kind::kStuck:
    case WorkerEvent::Kind::kGuardianLost: feed(core::SupervisionLost{event.message}); break;
  }
}

void Node::feed(const core::PolicyEvent& event) {
  std::vector<core::PolicyAction> decided;
  policy_.step(event, loop_->now(), &decided);
  for (core::PolicyAction& action : decided) actions_.push_back(std::move(action));
  if (is_executing_) return;
  is_executing_ = true;
  while (!actions_.empty()) {
    core::PolicyAction action = std::move(actions_.front());
    actions_.pop_front();
    execute(std::move(action));
  }
  is_executing_ = false;
}

void Node::execute(core::PolicyAction action) {
  if (const auto* join_action = std::get_if<core::Join>(&action)) {
    join(*join_action);
  } else if (const auto* start = std::get_if<core::StartGroup>(&action)) {
    start_group(*start->round);
  } else if (const auto* stop = std::get_if<core::StopGroup>(&action)) {
    supervisor_->stop(stop->signal, stop->grace, options_.stop_scope);
  } else if (auto* told = std::get_if<core::Report>(&action)) {
    report(std::move(told->event));
  } else {
    finish(std::move(std::get<core::Finish>(action).result));
  }
}

void Node::join(const core::Join& action) {
  if (const Status status = open_store(); !status.ok()) {
    feed(failed_round(kExitCannotServe, status));
    return;
  }
  const int local_world_size = static_cast<int>(options_.workers.size());
  const auto nodes = core::assign_ranks({{local_world_size, options_.role}});
  auto round = std::make_shared<RoundInfo>();
  round->round = action.round;
  round->restart_count = action.restart_count;
  round->master_addr = options_.local_addr;
  round->master_port = store_->port();
  round->workers = core::worker_assignments(nodes.front(), local_world_size);
  round_ = std::move(round);
  if (const Status status = prepare_files(); !status.ok()) {
    feed(failed_round(kExitCannotLog, status));
    return;
  }
  feed(core::RoundReady{round_});
}

Status Node::open_store() {
  if (store_ && options_.master_port != 0) {
    store_->reset();
    return {};
  }
  retire_store();
  Result<std::unique_ptr<StoreService>> store = StoreService::open(
      loop_,
      {.host = options_.local_addr, .port = options_.master_port, .limits = options_.store_limits});
  if (!store.ok()) return store.status();
  store_ = *std::move(store);
  return {};
}

Status Node::prepare_files() {
  if (!run_files_) {
    Result<RunFiles> files = RunFiles::create(options_.log_dir, options_.run_id);
    if (!files.ok()) return files.status();
    run_files_.emplace(*std::move(files));
  }
  Result<AttemptFiles> attempt = run_files_->next_attempt(options_.workers);
  if (!attempt.ok()) return attempt.status();
  attempt_ = *std::move(attempt);
  for (const WorkerAssignment& worker : round_->workers) {
    const auto index = static_cast<std::size_t>(worker.local_rank);
    const WorkerTemplate& options = options_.workers[index];
    const WorkerFiles& files = attempt_.workers[index];
    Status status;
    if (options.stdout_target == StreamTarget::kTee) {
      status = show(files.stdout_path, STDOUT_FILENO, worker);
    }
    if (status.ok() && options.stderr_target == StreamTarget::kTee) {
      status = show(files.stderr_path, STDERR_FILENO, worker);
    }
    if (!status.ok()) return status;
  }
  return {};
}

Status Node::show(const std::string& path, int console, const WorkerAssignment& worker) {
  if (!tee_) {
    Result<std::unique_ptr<Tee>> tee = Tee::create(loop_);
    if (!tee.ok()) return tee.status();
    tee_ = *std::move(tee);
  }
  return tee_->follow(
      path, console,
      core::expand_prefix(options_.line_prefix, options_.role, worker.rank, worker.local_rank));
}

void Node::retire_store() {
  if (!store_) return;
  const Instant close_at = add_saturating(loop_->now(), kStoreAfterlife);
  retired_stores_.push_back({close_at, std::move(store_)});
  if (!retirement_.armed()) retirement_.arm(close_at);
}

void Node::close_retired_stores() {
  while (!retired_stores_.empty() && retired_stores_.front().close_at <= loop_->now()) {
    retired_stores_.pop_front();
  }
  if (!retired_stores_.empty()) retirement_.arm(retired_stores_.front().close_at);
}

void Node::start_group(const RoundInfo& round) {
  std::vector<WorkerCommand> commands;
  commands.reserve(options_.workers.size());
  for (std::size_t local_rank = 0; local_rank < options_.workers.size(); ++local_rank) {
    commands.push_back(command_of(round, local_rank));
  }
  const Status status = supervisor_->start(std::move(commands));
  if (!status.ok()) feed(core::SupervisionLost{std::string(status.message())});
}

WorkerCommand Node::command_of(const RoundInfo& round, std::size_t local_rank) const {
  const WorkerTemplate& worker = options_.workers[local_rank];
  const WorkerFiles& files = attempt_.workers[local_rank];
  const auto path_of = [](StreamTarget target, const std::string& file) {
    return target == StreamTarget::kDiscard ? kNullDevice : file;
  };
  const core::JobConstants job{
      .run_id = options_.run_id, .role = options_.role, .max_restarts = options_.max_restarts};
  const std::vector<std::string> ranks =
      core::rank_variables(job, round, static_cast<int>(local_rank), files.error_file);
  return {.argv = worker.argv,
          .env = core::merge_environment({&options_.env, &ranks, &worker.env}),
          .cwd = options_.cwd,
          .stdout_path = path_of(worker.stdout_target, files.stdout_path),
          .stderr_path = path_of(worker.stderr_target, files.stderr_path)};
}

void Node::report(AgentEvent event) {
  event.round = round_;
  if (event.kind == AgentEvent::Kind::kRoundStarting) event.log_dir = attempt_.directory;
  sink_(std::move(event));
}

void Node::finish(AgentResult result) {
  for (WorkerFailure& failure : result.failures) {
    const WorkerFiles& files = attempt_.workers[static_cast<std::size_t>(failure.local_rank)];
    failure.error_file = files.error_file;
    failure.stdout_path = files.stdout_path;
    failure.stderr_path = files.stderr_path;
  }
  result_ = std::move(result);
  // In the loop's next turn: we may be inside a callback of what is let go.
  ending_.arm(loop_->now());
}

void Node::let_go() {
  // Closing the link makes a guardian that still lives kill whatever runs.
  if (result_.state == AgentState::kUnknown) supervisor_.reset();
  retired_stores_.clear();
  store_.reset();
  if (!tee_) {
    tell_finished();
    return;
  }
  tee_->end_round();
  tee_->finish([this] {
    tee_.reset();
    tell_finished();
  });
}

void Node::tell_finished() {
  AgentEvent event;
  event.kind = AgentEvent::Kind::kFinished;
  event.state = result_.state;
  event.at = loop_->now();
  event.message = result_.message;
  report(std::move(event));
}

}  // namespace elastic::host
