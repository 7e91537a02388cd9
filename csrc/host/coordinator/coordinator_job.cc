#include "host/coordinator/coordinator_job.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <type_traits>
#include <utility>

#include "core/base/check.h"
#include "core/base/text.h"
#include "core/base/timings.h"
#include "core/rendezvous/rendezvous_events.h"
#include "core/session/coordinator_loss.h"
#include "os/loop/clock.h"
#include "os/loop/event_loop.h"
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

std::string outcome_text(const JobResult& result) {
  std::string text = result.outcome == JobOutcome::kSucceeded ? "it succeeded"
                     : result.outcome == JobOutcome::kFailed  ? "it failed"
                                                              : "it was closed";
  return result.message.empty() ? text : text + ": " + result.message;
}

// Joins of many nodes are passed to the succession machine together.
constexpr Duration kNodesDelay = std::chrono::milliseconds(5);
// The time between two visits of all nodes is at least this, multiplied by the number of nodes: a
// burst of changes costs the same share of the loop's time in a job of any size.
constexpr Duration kIntervalPerNode = std::chrono::microseconds(100);

Status not_its_own() {
  return Status(StatusCode::kPeerViolation, "a session may send messages of its own node only");
}

bool is_loopback(const std::string& address) {
  const auto parsed = os::parse_address(address);
  return parsed && parsed->is_loopback();
}

// The name begins with the address: addr_pid_localid.
void replace_address(core::NodeInfo* node, const std::string& address) {
  if (node->name.starts_with(node->address + "_")) {
    node->name = address + node->name.substr(node->address.size());
  }
  node->address = address;
}

// How many secrets of nodes that have left are kept.
constexpr std::size_t kStaleSecretsMax = 256;

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
      nodes_timer_(context->loop, [this] { feed_nodes(); }),
      proposal_timer_(context->loop, [this] { propose(); }),
      end_proofs_(context->loop, [this](const NodeId& node) {
        if (job_ != nullptr) step(rdzv::ProcessEnded{node});
      }) {}

CoordinatorJob::~CoordinatorJob() { ELASTIC_DEBUG_CHECK(!is_ticking_ && !is_stepping_); }

Status CoordinatorJob::load(const core::StoredJob& stored) {
  if (Status fault = stored.settings.validate(); !fault.ok()) return fault;
  const Instant now = context_.loop->now();
  auto job = make_job(stored.settings, core::kStartHold);
  if (Status fault = job->restore(stored.state, now); !fault.ok()) return fault;
  for (const core::StoredSecret& one : stored.secrets) credentials_[one.node].secret = one.secret;
  job_ = std::move(job);
  job_->gate().restored(*rendezvous(), core::RecordKeeper::kFile);
  feed_timings();
  logged_round_ = rendezvous()->record().round;
  is_result_logged_ = is_over();
  step(rdzv::Tick{});
  if (context_.log) log("continues from its stored state: " + rendezvous()->describe(now));
  return {};
}

core::StoredJob CoordinatorJob::stored() const {
  const core::RendezvousMachine& machine = *rendezvous();
  core::StoredJob stored{.id = id_, .settings = machine.settings(), .state = machine.encode()};
  for (const core::NodeStatus& status : machine.nodes(context_.loop->now())) {
    const auto found = credentials_.find(status.id);
    if (found != credentials_.end()) stored.secrets.push_back({status.id, found->second.secret});
  }
  return stored;
}

Status CoordinatorJob::on_message(SessionPeer* peer, session::ClientMessage& message) {
  return std::visit([&](auto& one) { return on(peer, one); }, message);
}

Status CoordinatorJob::on(SessionPeer*, session::ClientHello&) {
  return Status(StatusCode::kPeerViolation, "a second hello in one session");
}

Status CoordinatorJob::on(SessionPeer* peer, session::Heartbeat& beat) {
  // A reply acknowledges all earlier messages, so the reply to a node whose leave is not yet in
  // force has to wait.
  if (job_ != nullptr && !job_->gate().may_acknowledge(peer->node)) {
    peer->unanswered_beat = beat.sent;
    return {};
  }
  peer->send(heartbeat_reply(beat.sent));
  if (job_ == nullptr || !peer->has_joined) return {};
  actions_.clear();
  job_->step(rdzv::Heartbeat{peer->node}, context_.loop->now(), &actions_);
  if (!actions_.empty()) after_step();
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
  if (auto result = context_.ended.result_for(id_, peer->node, context_.loop->now())) {
    peer->send(rdzv::Closed{peer->node, std::move(result)});
    return {};
  }
  Status fault = correct_address(peer, &entry.node);
  if (fault.ok() && job_ == nullptr) fault = entry.settings.validate();
  if (!fault.ok()) {
    execute(rdzv::Refused{peer->node, std::move(fault)});
    return {};
  }
  if (job_ == nullptr) {
    const Instant now = context_.loop->now();
    // Another coordinator of the id may announce itself; a store that keeps the record has one.
    const Instant held_until = std::max(context_.began + core::kStartHold, start_hold_until_);
    const Duration hold =
        is_kept_ ? Duration::zero() : std::max(held_until - now, Duration::zero());
    job_ = make_job(entry.settings, hold);
    feed_timings();
    if (is_kept_) {
      begin_record();
    } else if (context_.store) {
      job_->gate().keep_at(core::RecordKeeper::kFile);
    }
    pass_early_findings();
  }
  if (must_wait_for_resumes(entry)) return {};
  note_voter(*peer, entry.node.address, entry.node.topology);
  peer->name = entry.node.name;
  if (!std::exchange(peer->has_joined, true) && context_.log) {
    const bool is_resume = std::is_same_v<Entry, rdzv::Resume>;
    log(peer->name + " at " + peer->remote().text() + (is_resume ? " resumes" : " joins"));
  }
  peer->loopback_join.reset();
  if (is_loopback(entry.node.address)) {
    peer->loopback_join = std::make_unique<rdzv::Join>(rdzv::Join{entry.node, entry.settings});
  }
  peer->set_user_timeout(core::unacknowledged_limit(rendezvous()->settings().node_timeout));
  peer->least_grace = peer->round_trip() * core::kRoundTripsToResume;
  step(entry);
  send_timings(peer);
  admit_early_joins();
  return {};
}

// A job's timings are known when its first node, or that of its next generation, has joined.
void CoordinatorJob::send_timings(SessionPeer* peer) {
  if (job_ == nullptr || peer->timings_of == rendezvous()->record().generation) return;
  peer->timings_of = rendezvous()->record().generation;
  peer->send(session::Timings{rendezvous()->settings()});
}

Status CoordinatorJob::on(SessionPeer* peer, rdzv::Leave& leave) {
  leave.node = peer->node;
  early_joins_.forget(peer->node);
  peer->has_joined = false;
  peer->loopback_join.reset();
  if (job_ == nullptr) return {};
  if (context_.log && !is_over()) log(peer->name + " leaves: " + leave.reason);
  step(leave);
  // It waits until another voter has taken its place: after the proposal that contains the leave.
  if (feed_ && job_ != nullptr && !job_->gate().may_acknowledge(peer->node)) {
    nodes_timer_.arm(context_.loop->now() + Duration(2));
  }
  return {};
}

Status CoordinatorJob::on(SessionPeer* peer, rdzv::Close& close) {
  close.node = peer->node;
  if (job_ != nullptr && !peer->has_joined) {
    const std::uint64_t round = rendezvous()->record().round;
    peer->send(
        rdzv::Evicted{peer->node, round, "only a node that has joined the job can close it"});
  } else if (job_ != nullptr) {
    step(close);
  } else {  // no node has joined, so there is no job to close
    peer->send(rdzv::Closed{peer->node, std::make_shared<const JobResult>(close.result)});
  }
  return {};
}

Status CoordinatorJob::on(SessionPeer* peer, hang::NodeProgress& progress) {
  if (job_ != nullptr) step(core::job_event::Progressed{peer->node, progress});
  return {};
}

Status CoordinatorJob::on(SessionPeer* peer, hang::NodeStacks& stacks) {
  if (job_ != nullptr) step(core::hang_event::StacksReceived{peer->node, std::move(stacks)});
  return {};
}

Status CoordinatorJob::on(SessionPeer* peer, hang::NodeSignatures& signatures) {
  if (job_ != nullptr) {
    step(core::hang_event::SignaturesReceived{peer->node, std::move(signatures)});
  }
  return {};
}

Status CoordinatorJob::on(SessionPeer* peer, hang::RankFinished& finished) {
  if (job_ != nullptr && peer->has_joined) step(core::hang_event::Finished{finished});
  return {};
}

Status CoordinatorJob::on(SessionPeer* peer, drain::Notice& notice) {
  if (job_ != nullptr && peer->has_joined) step(core::job_event::Noticed{peer->node, notice});
  return {};
}

Status CoordinatorJob::on(SessionPeer* peer, drain::Reply& reply) {
  if (job_ != nullptr) step(core::job_event::StopReplied{peer->node, reply});
  return {};
}

Status CoordinatorJob::on(SessionPeer* peer, snapshot::CopyReport& report) {
  if (job_ != nullptr && peer->has_joined) {
    step(core::job_event::Copied{peer->node, std::move(report)});
  }
  return {};
}

template <typename Message>
void CoordinatorJob::send_to_members(const Message& message) {
  const auto frame = SessionPeer::shared_frame(message);
  for (const auto& [id, peer] : sessions_) {
    if (peer->has_joined) peer->send_shared(frame);
  }
}

template <typename Report>
Status CoordinatorJob::on(SessionPeer* peer, Report& report) {
  report.node = peer->node;
  if (job_ != nullptr) {
    step(report);
  } else {
    execute(rdzv::Evicted{peer->node, 0, "no node of the job is known here"});
  }
  return {};
}

Status CoordinatorJob::correct_address(SessionPeer* peer, core::NodeInfo* node) const {
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
  if (job_ == nullptr) return;
  // Only for waiting nodes: a Join of any other node would request a new round.
  for (const core::NodeStatus& status : rendezvous()->nodes(context_.loop->now())) {
    SessionPeer* const peer = session_of(status.id);
    if (status.phase != rdzv::NodePhase::kJoined || peer == nullptr) continue;
    const auto join = std::move(peer->loopback_join);
    if (join == nullptr) continue;
    replace_address(&join->node, published_address_);
    peer->name = join->node.name;
    step(*join);
  }
}

void CoordinatorJob::on_stall(const os::Stall& stall) {
  const rdzv::ClockGap gap{.gap = stall.away, .least = stall.late};
  if (job_ != nullptr && rendezvous()->is_stall(gap)) step(gap);  // most are short: spare the step
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
  if (job_ != nullptr) step(rdzv::Tick{});
  is_ticking_ = false;
}

// REQUIRES: job_ is not null
void CoordinatorJob::step(const core::JobEvent& event) {
  if (job_->needs_neighbours(event)) {
    job_->set_neighbours(context_.describe_neighbours(*this));
  }
  actions_.clear();
  job_->step(event, context_.loop->now(), &actions_);
  after_step();
}

void CoordinatorJob::after_step() {
  execute_all();
  propose_later();
  arm();
  if (job_->take_changed()) mark_changed();
}

void CoordinatorJob::execute_all() {
  ELASTIC_DEBUG_CHECK(!is_stepping_);
  is_stepping_ = true;
  for (const core::JobAction& action : actions_) {
    std::visit([this](const auto& one) { execute(one); }, action);
  }
  is_stepping_ = false;
}

void CoordinatorJob::arm() {
  const auto deadline = job_->next_deadline();
  if (deadline) {
    timer_.arm(*deadline);
  } else {
    timer_.disarm();
  }
}

void CoordinatorJob::execute(const core::RendezvousAction& action) {
  std::visit(
      [&](const auto& one) {
        using Action = std::decay_t<decltype(one)>;
        SessionPeer* const peer = session_of(one.to);
        log_action(one, peer);
        if constexpr (std::is_same_v<Action, rdzv::Round>) prepare_round(one);
        if constexpr (std::is_same_v<Action, rdzv::Evicted>) {
          if (peer == nullptr) end_proofs_.forget(one.to);
        }
        if constexpr (std::is_same_v<Action, rdzv::Closed>) send_to_connected(one);
        if (peer == nullptr) return;
        if (core::is_of_a_round(action) && !peer->has_joined) return;
        if (core::removes_node(action)) {
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

void CoordinatorJob::execute(const core::hang_action::Publish& action) {
  log(action.verdict.text);
  send_to_members(action.verdict);
}

void CoordinatorJob::execute(const core::hang_action::Reply& action) {
  observers_.reply(action.observer, action.text);
}

void CoordinatorJob::execute(const core::drain_action::Send& action) {
  if (SessionPeer* const peer = session_of(action.to)) peer->send(action.order);
}

void CoordinatorJob::execute(const core::job_action::OrderCopy& action) {
  if (SessionPeer* const peer = session_of(action.to)) peer->send(action.order);
}

void CoordinatorJob::execute(const core::drain_action::Announce& action) {
  log(action.text);
  announce({action.text});
}

void CoordinatorJob::announce(const drain::News& news) { send_to_members(news); }

// A node that has not joined yet, since its workers are started before, has nothing to join. With a
// job of an earlier coordinator it may belong to the next one.
void CoordinatorJob::send_to_connected(const rdzv::Closed& closed) {
  if (closed.result.get() != rendezvous()->result()) return;
  if (std::exchange(sent_result_, closed.result) == closed.result) return;
  if (rendezvous()->takeover_limit() > Duration::zero()) return;
  for (const auto& [id, peer] : sessions_) {
    if (peer->name.empty()) peer->send(rdzv::Closed{id, closed.result});
  }
}

// The node of rank 0 admits only members of the round to the workers' store.
void CoordinatorJob::send_store_clients(SessionPeer* peer) const {
  session::StoreClients clients{.round = rendezvous()->record().round, .addresses = {}};
  const auto flush = [&] {
    if (clients.addresses.empty()) return;
    peer->send(clients);
    clients.addresses.clear();
  };
  for (const core::RoundMember& member : rendezvous()->members()) {
    if (os::parse_address(member.address)) clients.addresses.push_back(member.address);
    const SessionPeer* const one = session_of(member.id);
    if (one != nullptr) clients.addresses.push_back(one->remote().host());
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
    log("round " + std::to_string(shown_round(record.round)) +
        " is complete: " + core::count_text(record.nodes, "node") + ", world size " +
        std::to_string(record.world_size) + ", master " + record.master_addr + " port " +
        std::to_string(record.master_port));
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
  if (job_ == nullptr) return;
  if (!is_over()) is_result_logged_ = false;  // for the next generation
  send_counts();
  // A closed job answers with its result while any session of it is open.
  // What a store keeps is continued by the next job of the id.
  if (is_kept_ || !rendezvous()->is_removable() || (is_over() && !sessions_.empty())) return;
  // The lineage has begun, and nodes whose sessions are open belong to it.
  if (is_recorded() && !sessions_.empty()) return;
  if (sessions_.empty()) observers_.end("the job has ended: its last node has left");
  if (is_over()) {
    const core::RendezvousMachine& ended = *rendezvous();
    context_.ended.add(id_, std::make_shared<const JobResult>(*ended.result()), ended.lost_nodes(),
                       context_.loop->now());
  }
  keep_hosts();
  end_job();
  // The machine of succession serves the nodes that join next, or ends with this object.
  voter_ports_.clear();
  known_nodes_.clear();
  if (feed_) feed_(succession::Nodes{});
  timer_.disarm();
  counts_ = {};
  logged_round_ = logged_end_ = 0;
}

Duration CoordinatorJob::interval() const {
  return kIntervalPerNode * static_cast<Duration::rep>(sessions_.size());
}

void CoordinatorJob::send_counts() {
  if (job_ == nullptr || counts_timer_.armed()) return;
  const session::Counts counts{rendezvous()->waiting_nodes(), rendezvous()->spare_nodes()};
  if (counts == counts_) return;
  counts_ = counts;
  const auto frame = SessionPeer::shared_frame(counts);
  for (const auto& [id, peer] : sessions_) peer->send_shared(frame);
  counts_timer_.arm(context_.loop->now() + interval());
}

void CoordinatorJob::log(const std::string& message) const {
  if (context_.log) context_.log("job " + id_ + ": " + message);
}

// ---- The beginning and the end of a node's session, and what is known of a node beyond it.

Status CoordinatorJob::admit(const session::ClientHello& hello) {
  const auto [found, is_new] = credentials_.try_emplace(hello.node);
  Credentials& known = found->second;
  if (!is_new && known.secret != hello.secret) {
    return Status(StatusCode::kFailedPrecondition,
                  "the hello for " + name_of(hello.node) +
                      " has the wrong secret: it is from another process");
  }
  if (!is_new && hello.attempt <= known.attempt) {
    return Status(StatusCode::kAborted,
                  "a later session of " + name_of(hello.node) + " has already begun");
  }
  known = {hello.secret, hello.attempt};
  // Rarely: it visits all nodes.
  const std::size_t needed = std::max(sessions_.size(), secrets_kept_);
  if (credentials_.size() > 2 * needed + kStaleSecretsMax) forget_secrets(hello.node);
  return {};
}

// Removes what is known of nodes that have no session and are not expected to resume. The session
// of the node that is being admitted begins after this.
void CoordinatorJob::forget_secrets(const NodeId& admitted) {
  std::map<NodeId, Credentials> kept;
  const auto keep = [&](const NodeId& id) {
    if (const auto found = credentials_.find(id); found != credentials_.end()) kept.insert(*found);
  };
  keep(admitted);
  for (const auto& [id, peer] : sessions_) keep(id);
  if (job_ != nullptr) {
    for (const core::NodeStatus& status : rendezvous()->nodes(context_.loop->now()))
      keep(status.id);
  }
  credentials_ = std::move(kept);
  secrets_kept_ = credentials_.size();
}

void CoordinatorJob::add(SessionPeer* peer) {
  SessionPeer*& current = sessions_[peer->node];
  if (current != nullptr) {
    current->job = nullptr;  // not a lost session: the node has a newer one
    peer->name = current->name;
    current->close();
    forget_request(peer->node);
  }
  current = peer;
  peer->job = this;
  end_proofs_.session_began(peer->node, peer->remote(), peer->liveness_port);
  if (!peer->is_from_this_host()) publish_address(*peer);
  if (counts_ != session::Counts{}) peer->send(counts_);
  if (observers_.watches_workers()) peer->send(session::WatchWorkers{true});
  // Without voters no node names a successor, so the nodes need no lineage.
  const bool has_voters = incumbent_ && !incumbent_->voters.empty();
  if (has_voters && peer->succession) peer->send(session::Incumbent{*incumbent_, false});
}

void CoordinatorJob::remove(SessionPeer* peer) {
  peer->job = nullptr;
  sessions_.erase(peer->node);
  forget_request(peer->node);
  early_joins_.forget(peer->node);
  if (job_ != nullptr) {
    if (peer->has_joined && context_.log && !is_over()) {
      log("the session of " + peer->name + " was closed");
    }
    step(rdzv::SessionLost{peer->node, peer->least_grace});
  }
  if (peer->has_joined && !is_over()) {
    const Duration grace = rendezvous()->settings().reconnect_grace;
    end_proofs_.session_closed(peer->node, std::max(grace, peer->least_grace));
  } else {
    end_proofs_.forget(peer->node);
  }
  mark_changed();
}

SessionPeer* CoordinatorJob::session_of(const NodeId& node) const {
  const auto found = sessions_.find(node);
  return found == sessions_.end() ? nullptr : found->second;
}

std::string CoordinatorJob::name_of(const NodeId& node) const {
  const SessionPeer* const peer = session_of(node);
  if (peer != nullptr && !peer->name.empty()) return peer->name;
  std::string name = job_ == nullptr ? "" : rendezvous()->name_of(node);
  return name.empty() ? "node " + to_string(node) : name;
}

// What observers see of a job: the part of CoordinatorJob that answers them.

JobObservers::Job CoordinatorJob::observed_job() {
  return {
      .source = {.facts = [this] { return observed_facts(); },
                 .nodes =
                     [this] {
                       if (job_ == nullptr) return std::vector<ObservedNode>();
                       return core::describe_nodes(*rendezvous(), context_.loop->now());
                     },
                 .watch_workers =
                     [this](bool is_on) {
                       for (const auto& [id, node] : sessions_) {
                         node->send(session::WatchWorkers{is_on});
                       }
                     }},
      .request_stacks =
          [this](std::uint64_t number) {
            if (job_ == nullptr) return observers_.reply(number, hang::kNoRound);
            step(core::hang_event::Requested{number});
          },
      .request_drain =
          [this](const session::RequestDrain& request, std::uint64_t number) {
            if (job_ == nullptr) {
              return observers_.reply(core::drain_action::Inform{number, false, hang::kNoRound});
            }
            step(core::job_event::DrainRequested{number, request.notice, request.node});
          },
      .request_host = [this](const session::RequestHost& request,
                             std::uint64_t number) { request_host(request, number); }};
}

Status CoordinatorJob::on(SessionPeer* peer, session::Workers& workers) {
  if (!observers_.watches_workers()) {
    peer->send(session::WatchWorkers{false});  // requested by an earlier coordinator
  } else {
    observers_.on_report(peer->node, std::move(workers.report));
  }
  return {};
}

static Status of_an_observer() {
  return {StatusCode::kPeerViolation, "a node may send no messages of an observer"};
}

Status CoordinatorJob::on(SessionPeer*, session::ObserverReady&) { return of_an_observer(); }
Status CoordinatorJob::on(SessionPeer*, session::RequestStacks&) { return of_an_observer(); }
Status CoordinatorJob::on(SessionPeer*, session::RequestDrain&) { return of_an_observer(); }
Status CoordinatorJob::on(SessionPeer*, session::RequestHost&) { return of_an_observer(); }

ObservedJob CoordinatorJob::observed_facts() {
  const Instant now = context_.loop->now();
  ObservedJob job = core::describe_job(job_.get(), now);
  job.wall_time = os::wall_time(now);
  job.id = id_;
  job.coordinator = context_.incarnation;
  job.incumbent =
      incumbent_
          ? succession::describe(*incumbent_)
          : CoordinatorInfo{.address = context_.address, .lineage = {}, .term = 1, .voters = {}};
  if (job_ == nullptr) return job;
  job.term = std::max(job.record.term, term_);
  job.incumbent->term = job.term;
  return job;
}

}  // namespace elastic::host
