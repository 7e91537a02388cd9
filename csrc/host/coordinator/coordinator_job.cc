#include "host/coordinator/coordinator_job.h"

#include <algorithm>
#include <chrono>
#include <type_traits>
#include <utility>

#include "core/base/check.h"
#include "host/base/connection_limits.h"
#include "os/net/address.h"

// Theory of operation. Each message of a session is one step of the machine, made when it is read.
// The actions are queued on the sessions that they concern, and sent when all sockets of the
// iteration have been read. Only Tick evaluates silence and closed sessions, and a Tick waits until
// all data that had arrived by then was read: a node whose heartbeat is in the kernel's buffers is
// not lost because other sessions were served first.
//
// A loop that was stopped reports for how long before it reads anything (on_stall).
//
// Addresses. A node sends the local address of its connection. If that is loopback, the node is on
// the coordinator's host, and the address is valid while all nodes are there. The local address of
// the first session from another host is one at which other hosts reach this one, and replaces
// loopback.

namespace elastic::host {
namespace {

std::string nodes_text(int nodes) {
  return std::to_string(nodes) + (nodes == 1 ? " node" : " nodes");
}

std::string outcome_text(const JobResult& result) {
  std::string text = result.outcome == JobOutcome::kSucceeded ? "it succeeded"
                     : result.outcome == JobOutcome::kFailed  ? "it failed"
                                                              : "it was closed";
  return result.message.empty() ? text : text + ": " + result.message;
}

// Joins of many nodes are passed to the succession machine together.
constexpr Duration kNodesDelay = std::chrono::milliseconds(5);
// What visits every node is done at most so often for each of them, so that a burst of changes
// costs a share of the loop's time that does not grow with the number of nodes.
constexpr Duration kIntervalPerNode = std::chrono::microseconds(100);

Status not_its_own() {
  return Status(StatusCode::kPeerViolation, "a session may send messages of its own node only");
}

bool is_loopback(const std::string& address) {
  const auto parsed = os::parse_address(address);
  return parsed && parsed->is_loopback();
}

// The name begins with the address: addr_pid_localid.
void replace_address(NodeInfo* node, const std::string& address) {
  if (node->name.starts_with(node->address + "_")) {
    node->name = address + node->name.substr(node->address.size());
  }
  node->address = address;
}

}  // namespace

CoordinatorJob::CoordinatorJob(CoordinatorContext* context, std::string id, SuccessionFeed feed,
                               std::string beginner)
    : context_(*context),
      id_(std::move(id)),
      beginner_(std::move(beginner)),
      timer_(context->loop, [this] { tick(); }),
      counts_timer_(context->loop, [this] { send_counts(); }),
      feed_(std::move(feed)),
      resumes_timer_(context->loop, [this] { end_wait_for_resumes(); }),
      gate_(std::in_place, id_),
      nodes_timer_(context->loop, [this] { feed_nodes(); }),
      proposal_timer_(context->loop, [this] { propose(); }),
      end_proofs_(context->loop,
                  [this](const NodeId& node) {
                    if (machine_ != nullptr && !is_offered()) step(rdzv::ProcessEnded{node});
                  }),
      hangs_(context->loop,
             {.ask = [this](const auto& wanted) { send_to_members(wanted); },
              .publish = [this](const auto& verdict) { send_to_members(verdict); },
              .reply = [this](std::uint64_t asked,
                              std::string text) { observers_.reply(asked, std::move(text)); },
              .log = [this](std::string_view line) { log(std::string(line)); },
              .close = [this](const auto& result) { close_with(result); },
              .changed =
                  [this] {
                    const auto hang = hangs_.hang();
                    history_.hangs(hang ? std::optional(hang->progressed) : std::nullopt,
                                   context_.loop->now());
                    mark_changed();
                  }}),
      drain_(context->loop, drain_sink()),
      closing_timer_(context->loop, [this] { close_now(); }),
      growth_timer_(context->loop, [this] {
        if (machine_ != nullptr) hold_growth();
      }) {}

CoordinatorJob::~CoordinatorJob() { ELASTIC_DEBUG_CHECK(!is_ticking_ && !is_stepping_); }

Status CoordinatorJob::load(const core::StoredJob& stored) {
  if (Status fault = stored.settings.validate(); !fault.ok()) return fault;
  const Instant now = context_.loop->now();
  auto machine = std::make_unique<Rendezvous>(stored.settings, now);
  if (Status fault = machine->restore(stored.state, now); !fault.ok()) return fault;
  for (const core::StoredSecret& one : stored.secrets) credentials_[one.node].secret = one.secret;
  machine_ = std::move(machine);
  note_names();
  feed_timings();
  logged_round_ = machine_->record().round;
  is_result_logged_ = machine_->phase() == RendezvousPhase::kClosed;
  step(rdzv::Tick{});
  if (context_.log) log("continues from its stored state: " + machine_->describe(now));
  return {};
}

core::StoredJob CoordinatorJob::stored() const {
  core::StoredJob stored{.id = id_, .settings = machine_->settings(), .state = machine_->encode()};
  for (const NodeStatus& status : machine_->nodes(context_.loop->now())) {
    const auto found = credentials_.find(status.id);
    if (found != credentials_.end()) stored.secrets.push_back({status.id, found->second.secret});
  }
  return stored;
}

Status CoordinatorJob::on_message(SessionPeer* peer, session::ClientMessage& message) {
  if (is_offered()) return on_message_while_offered(peer, message);
  return std::visit([&](auto& one) { return on(peer, one); }, message);
}

Status CoordinatorJob::on(SessionPeer*, session::ClientHello&) {
  return Status(StatusCode::kPeerViolation, "a second hello in one session");
}

Status CoordinatorJob::on(SessionPeer* peer, session::Heartbeat& beat) {
  // A reply acknowledges all earlier messages, so that of a node whose leave is not yet in force
  // has to wait.
  if (!gate_->may_acknowledge(peer->node)) {
    peer->unanswered_beat = beat.sent;
    return {};
  }
  peer->send(heartbeat_reply(beat.sent));
  if (machine_ == nullptr || !peer->has_joined) return {};
  actions_.clear();
  const RendezvousEvent event = rdzv::Heartbeat{peer->node};
  machine_->step(event, context_.loop->now(), &actions_);
  gate(&event);
  execute_all();
  return {};
}

Status CoordinatorJob::on(SessionPeer* peer, session::FetchMembers& request) {
  session::Members page;
  page.first = std::max(request.first, 0);
  if (machine_ != nullptr) {
    const std::vector<RoundMember>& members = machine_->members();
    page.round = machine_->record().round;
    page.total = static_cast<std::int32_t>(members.size());
    const std::size_t begin = std::min(static_cast<std::size_t>(page.first), members.size());
    const std::size_t end = std::min(begin + session::kMembersPerPage, members.size());
    page.members.assign(members.begin() + static_cast<std::ptrdiff_t>(begin),
                        members.begin() + static_cast<std::ptrdiff_t>(end));
  }
  peer->send(page);
  return {};
}

Status CoordinatorJob::on(SessionPeer* peer, rdzv::Join& join) { return enter(peer, join); }
Status CoordinatorJob::on(SessionPeer* peer, rdzv::Resume& resume) {
  if (!is_of_another_job(*peer, resume)) return enter(peer, resume);
  execute(rdzv::Evicted{peer->node, resume.last->record.round,
                        "it resumes a round of another job of the same id"});
  return {};
}

// Join and Resume: the first message of a session that describes its node.
template <typename Entry>
Status CoordinatorJob::enter(SessionPeer* peer, Entry& entry) {
  if (entry.node.id != peer->node) return not_its_own();
  Status fault = correct_address(peer, &entry.node);
  if (fault.ok() && machine_ == nullptr) fault = entry.settings.validate();
  if (!fault.ok()) {
    execute(rdzv::Refused{peer->node, std::move(fault)});
    return {};
  }
  if (machine_ == nullptr) {
    const Instant now = context_.loop->now();
    // Another coordinator of the id may announce itself; a store that keeps the record has one.
    const Duration hold =
        is_kept_ ? Duration::zero() : std::max(context_.began + kStartHold - now, Duration::zero());
    machine_ = std::make_unique<Rendezvous>(entry.settings, now, hold);
    feed_timings();
    if (is_kept_) turn_on_gate();
  }
  if (must_wait_for_resumes(entry)) return {};
  note_voter(*peer, entry.node);
  peer->name = names_[peer->node] = entry.node.name;
  if (!std::exchange(peer->has_joined, true) && context_.log) {
    const bool is_resume = std::is_same_v<Entry, rdzv::Resume>;
    log(peer->name + " at " + peer->remote().text() + (is_resume ? " resumes" : " joins"));
  }
  peer->loopback_join.reset();
  if (is_loopback(entry.node.address)) {
    peer->loopback_join = std::make_unique<rdzv::Join>(rdzv::Join{entry.node, entry.settings});
  }
  // Longer than the silence after which the node is lost, so that no connection breaks before that.
  peer->set_user_timeout(machine_->settings().node_timeout * 2);
  peer->least_grace = peer->round_trip() * kRoundTripsToResume;
  step(entry);
  if constexpr (std::is_same_v<Entry, rdzv::Resume>) note_done_member(entry);
  send_timings(peer);
  admit_early_joins();
  return {};
}

// A job's timings are known when its first node, or that of its next generation, has joined.
void CoordinatorJob::send_timings(SessionPeer* peer) {
  if (machine_ == nullptr || peer->timings_of == machine_->record().generation) return;
  peer->timings_of = machine_->record().generation;
  peer->send(session::Timings{machine_->settings()});
}

Status CoordinatorJob::on(SessionPeer* peer, rdzv::Leave& leave) {
  leave.node = peer->node;
  early_joins_.erase(peer->node);
  peer->has_joined = false;
  peer->loopback_join.reset();
  if (machine_ == nullptr) return {};
  hangs_.feed(core::hang_event::Left{peer->node});
  drain_.feed(core::drain_event::Left{peer->node});
  if (context_.log && !is_over()) log(peer->name + " leaves: " + leave.reason);
  step(leave);
  return {};
}

Status CoordinatorJob::on(SessionPeer* peer, rdzv::Close& close) {
  close.node = peer->node;
  if (machine_ != nullptr && !peer->has_joined) {
    const std::uint64_t round = machine_->record().round;
    peer->send(
        rdzv::Evicted{peer->node, round, "only a node that has joined the job can close it"});
  } else if (machine_ != nullptr) {
    step(close);
  } else {  // no node has joined, so there is no job to close
    peer->send(rdzv::Closed{peer->node, std::make_shared<const JobResult>(close.result)});
  }
  return {};
}

Status CoordinatorJob::on(SessionPeer* peer, hang::NodeProgress& progress) {
  const bool has_steps = progress.reporting > 0;
  if (has_steps && history_.progressed(progress.round, context_.loop->now())) mark_changed();
  hangs_.feed(core::hang_event::Progressed{peer->node, progress});
  drain_.feed(core::drain_event::Progressed{peer->node, progress});
  return {};
}

Status CoordinatorJob::on(SessionPeer* peer, hang::NodeStacks& stacks) {
  hangs_.feed(core::hang_event::StacksReceived{peer->node, stacks});
  return {};
}

Status CoordinatorJob::on(SessionPeer* peer, hang::RankFinished& finished) {
  if (peer->has_joined) hangs_.feed(core::hang_event::Finished{finished});
  return {};
}

// The coordinator itself ends the job.
void CoordinatorJob::close_with(const JobResult& result) {
  closing_ = result;
  // At once: a node that sends next that its workers are done makes the job succeed.
  if (!is_stepping_) return close_now();
  closing_timer_.arm(context_.loop->now());
}

void CoordinatorJob::close_now() {
  if (machine_ == nullptr || is_over()) return;
  for (const auto& [id, peer] : sessions_) {
    if (!peer->has_joined) continue;
    return step(rdzv::Close{id, std::move(closing_)});
  }
}

template <typename Message>
void CoordinatorJob::send_to_members(const Message& message) {
  const auto frame = SessionPeer::shared_frame(message);
  for (const auto& [id, peer] : sessions_) {
    if (peer->has_joined) peer->send_shared(frame);
  }
}

template <typename Action>
void CoordinatorJob::judge_progress_after(const Action& action) {
  if constexpr (std::is_same_v<Action, rdzv::Round>) {
    hangs_.feed(core::hang_event::Began{action.to, action.record->round, name_of(action.to)});
    const std::uint32_t before = std::exchange(drained_generation_, action.record->generation);
    if (before != 0 && before != action.record->generation) drain_.reset();
    drain_.feed(core::drain_event::Began{action.to,
                                         action.record->round,
                                         action.record->nodes,
                                         name_of(action.to),
                                         {},
                                         machine_->settings().min_nodes});
  } else if constexpr (std::is_same_v<Action, rdzv::Resumed>) {
    // A coordinator that continues from a stored state learns of the round's nodes here.
    if (machine_->phase() == RendezvousPhase::kRunning) {
      hangs_.feed(core::hang_event::Began{action.to, action.round, name_of(action.to),
                                          machine_->takeover_limit()});
      drain_.feed(core::drain_event::Began{action.to, action.round, machine_->members_left(),
                                           name_of(action.to), machine_->takeover_limit(),
                                           machine_->settings().min_nodes});
    }
  } else if constexpr (std::is_same_v<Action, rdzv::Restart> ||
                       std::is_same_v<Action, rdzv::Closed>) {
    hangs_.feed(core::hang_event::Ended{});
    if constexpr (std::is_same_v<Action, rdzv::Closed>) {
      drain_.feed(core::drain_event::Over{});
    } else {
      drain_.feed(core::drain_event::Ended{});
    }
  } else if constexpr (std::is_same_v<Action, rdzv::Evicted>) {
    hangs_.feed(core::hang_event::Left{action.to});
    const auto nodes = machine_ ? std::optional(machine_->members_left()) : std::nullopt;
    drain_.feed(core::drain_event::Left{action.to, nodes});
  }
}

template <typename Report>
Status CoordinatorJob::on(SessionPeer* peer, Report& report) {
  report.node = peer->node;
  if constexpr (std::is_same_v<Report, rdzv::Failed>) {
    history_.worker_failed(peer->name, report);
  } else {
    history_.workers_ended(report.round, context_.loop->now());
  }
  if (machine_ != nullptr) {
    step(report);
  } else {
    execute(rdzv::Evicted{peer->node, 0, "no node of the job is known here"});
  }
  return {};
}

Status CoordinatorJob::correct_address(SessionPeer* peer, NodeInfo* node) const {
  if (node->address.empty()) node->address = peer->remote().host();
  const auto parsed = os::parse_address(node->address);
  if (!parsed) return {};  // a name, which other nodes resolve
  replace_address(node, parsed->host());
  if (!parsed->is_loopback()) return {};
  if (!peer->is_from_this_host()) {
    return Status(StatusCode::kInvalidArgument, "join: " + node->address +
                                                    " is valid on its own host only, and " +
                                                    node->name + " is at " + peer->remote().host() +
                                                    ": set one of its addresses with --local-addr");
  }
  if (!published_address_.empty()) replace_address(node, published_address_);
  return {};
}

void CoordinatorJob::publish_address(const SessionPeer& remote) {
  if (!published_address_.empty() || remote.local().is_loopback()) return;
  published_address_ = remote.local().host();
  correct_joins();
}

void CoordinatorJob::correct_joins() {
  if (machine_ == nullptr) return;
  // Only for waiting nodes: a Join of any other node would request a new round.
  for (const NodeStatus& status : machine_->nodes(context_.loop->now())) {
    const auto found = sessions_.find(status.id);
    if (status.phase != rdzv::NodePhase::kJoined || found == sessions_.end()) continue;
    const auto join = std::move(found->second->loopback_join);
    if (join == nullptr) continue;
    replace_address(&join->node, published_address_);
    found->second->name = names_[status.id] = join->node.name;
    step(*join);
  }
}

void CoordinatorJob::on_stall(const os::EventLoop::Stall& stall) {
  if (machine_ != nullptr && stall.late > machine_->settings().node_timeout / 4) {
    step(rdzv::ClockGap{stall.away});
    hangs_.feed(core::hang_event::ClockGap{stall.away});
  }
}

void CoordinatorJob::tick() {
  // Ready sockets are served in turns, so after this many iterations each has been read.
  const int turns_max = 2 + static_cast<int>(sessions_.size() / 64);
  if (!context_.loop->is_caught_up() && deferred_ticks_ < turns_max) {
    ++deferred_ticks_;
    timer_.arm(context_.loop->now());
    return;
  }
  deferred_ticks_ = 0;
  is_ticking_ = true;
  context_.process_received();  // may end this job
  if (machine_ != nullptr) step(rdzv::Tick{});
  is_ticking_ = false;
}

void CoordinatorJob::step(const RendezvousEvent& event) {
  if (is_offered()) return;
  actions_.clear();
  if (machine_->phase() == RendezvousPhase::kForming) {
    machine_->set_neighbours(context_.describe_neighbours(*this));
  }
  machine_->step(event, context_.loop->now(), &actions_);
  gate(std::holds_alternative<rdzv::Tick>(event) ? nullptr : &event);
  execute_all();
  propose_later();
  arm();
  // A Tick without actions changes nothing that nodes or the state file need.
  const bool is_time = std::holds_alternative<rdzv::Tick>(event);
  if (!is_time || !actions_.empty() || machine_->is_removable()) mark_changed();
}

void CoordinatorJob::execute_all() {
  is_stepping_ = true;
  for (const RendezvousAction& action : actions_) execute(action);
  is_stepping_ = false;
}

void CoordinatorJob::arm() {
  const auto deadline = machine_->next_deadline();
  if (deadline) {
    timer_.arm(*deadline);
  } else {
    timer_.disarm();
  }
}

void CoordinatorJob::execute(const RendezvousAction& action) {
  std::visit(
      [&](const auto& one) {
        using Action = std::decay_t<decltype(one)>;
        const auto found = sessions_.find(one.to);
        SessionPeer* const peer = found == sessions_.end() ? nullptr : found->second;
        log_action(one, peer);
        if constexpr (std::is_same_v<Action, rdzv::Restart>) {
          history_.round_ends(one, context_.loop->now());
        }
        judge_progress_after(one);
        if constexpr (std::is_same_v<Action, rdzv::Round>) prepare_round(one);
        if constexpr (std::is_same_v<Action, rdzv::Evicted>) {
          if (peer == nullptr) end_proofs_.forget(one.to);
        }
        if (peer == nullptr) return;
        // It is not a node of the job any more; until it joins again its heartbeats are ignored.
        if constexpr (std::is_same_v<Action, rdzv::Refused> ||
                      std::is_same_v<Action, rdzv::TimedOut> ||
                      std::is_same_v<Action, rdzv::Evicted>) {
          peer->has_joined = false;
          peer->loopback_join.reset();
        }
        if constexpr (std::is_same_v<Action, rdzv::Round>) {
          if (context_.needs_token && one.own.group_rank == 0) send_store_clients(peer);
        }
        peer->send(one);
      },
      action);
}

// The node of rank 0 admits only members of the round to the workers' store.
void CoordinatorJob::send_store_clients(SessionPeer* peer) const {
  session::StoreClients clients{.round = machine_->record().round, .addresses = {}};
  const auto flush = [&] {
    if (clients.addresses.empty()) return;
    peer->send(clients);
    clients.addresses.clear();
  };
  for (const RoundMember& member : machine_->members()) {
    const auto found = sessions_.find(member.id);
    if (os::parse_address(member.address)) clients.addresses.push_back(member.address);
    if (found != sessions_.end()) clients.addresses.push_back(found->second->remote().host());
    if (clients.addresses.size() >= session::kStoreClientsMax - 1) flush();
  }
  flush();
}

// If the workers' store is at the coordinator's own port, it is emptied before each round.
void CoordinatorJob::prepare_round(const rdzv::Round& round) {
  const RoundRecord& record = *round.record;
  if (record.round <= logged_round_) return;
  logged_round_ = record.round;
  if (record.coordinator_rank == 0 && record.master_port == context_.port) context_.reset_store();
}

// Logs events of the job once, and events of single nodes.
template <typename Action>
void CoordinatorJob::log_action(const Action& action, const SessionPeer* peer) {
  if (!context_.log) return;
  if constexpr (std::is_same_v<Action, rdzv::Round>) {
    if (action.record->round <= logged_round_) return;
    const RoundRecord& record = *action.record;
    log("round " + std::to_string(shown_round(record.round)) + " is complete: " +
        nodes_text(record.nodes) + ", world size " + std::to_string(record.world_size) +
        ", master " + record.master_addr + " port " + std::to_string(record.master_port));
  } else if constexpr (std::is_same_v<Action, rdzv::Restart>) {
    if (std::exchange(logged_end_, action.round) == action.round) return;
    log("round " + std::to_string(shown_round(action.round)) + " ends: " + action.reason);
  } else if constexpr (std::is_same_v<Action, rdzv::Closed>) {
    if (std::exchange(is_result_logged_, true)) return;
    log("the job is closed: " + outcome_text(*action.result));
  } else if constexpr (std::is_same_v<Action, rdzv::Evicted>) {
    // Nodes may leave a closed job at any time.
    if (is_result_logged_ || (peer != nullptr && !peer->has_joined)) return;
    log(name_of(action.to) + " is lost: " + action.reason);
  } else if constexpr (std::is_same_v<Action, rdzv::Refused>) {
    log(name_of(action.to) + " is refused: " + std::string(action.error.message()));
  } else if constexpr (std::is_same_v<Action, rdzv::TimedOut>) {
    log(name_of(action.to) + " gives up: " + action.message);
  }
}

void CoordinatorJob::mark_changed() {
  if (!std::exchange(has_changes_, true)) context_.on_changed(this);
}

void CoordinatorJob::publish_changes() {
  has_changes_ = false;
  observers_.job_changed();
  if (feed_ && !nodes_timer_.armed()) {
    nodes_timer_.arm(context_.loop->now() + std::max(kNodesDelay, interval()));
  }
  if (machine_ != nullptr) {
    history_.update(machine_->phase(), machine_->record(), context_.loop->now());
    if (!is_over()) is_result_logged_ = false;  // for the next generation
    send_counts();
    // A closed job answers with its result while any session of it is open.
    // What a store keeps is continued by the next job of the id.
    if (!is_kept_ && machine_->is_removable() && (!is_over() || sessions_.empty())) {
      if (sessions_.empty()) observers_.end("the job has ended: its last node has left");
      machine_.reset();
      feed_ = nullptr;  // its lineage has ended with it
      gate_.emplace(id_);
      timer_.disarm();
      counts_ = {};
      history_ = {};
      names_.clear();
      drain_.reset();
      logged_round_ = logged_end_ = 0;
    }
  }
}

Duration CoordinatorJob::interval() const {
  return kIntervalPerNode * static_cast<Duration::rep>(sessions_.size());
}

void CoordinatorJob::send_counts() {
  if (machine_ == nullptr || counts_timer_.armed()) return;
  const session::Counts counts{machine_->waiting_nodes(), machine_->spare_nodes()};
  if (counts == counts_) return;
  counts_ = counts;
  const auto frame = SessionPeer::shared_frame(counts);
  for (const auto& [id, peer] : sessions_) peer->send_shared(frame);
  counts_timer_.arm(context_.loop->now() + interval());
}

void CoordinatorJob::log(const std::string& message) const {
  if (context_.log) context_.log("job " + id_ + ": " + message);
}

}  // namespace elastic::host
