#include "host/membership/local_membership.h"

#include <sys/epoll.h>

#include <chrono>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/check.h"
#include "os/base/process.h"
#include "os/loop/clock.h"
#include "os/loop/event_loop.h"

// Theory of operation. A statement of the node is an event of the machine; the machine's answers
// are queued and delivered in the loop's next iteration, in order, so the agent is never called
// from inside its own call.
//
// The node is in this process and sends no heartbeats: one is made before each Tick, so that the
// only node is never lost. The machine's timers run only while the node waits for a round, which a
// restart may delay (restart_backoff): an agent whose workers run sleeps.

namespace elastic::host {
namespace {

constexpr std::size_t kPeersMax = 64;  // the others are closed at once
constexpr std::size_t kPendingPeersMax = 16;
constexpr std::size_t kObserverBytesMax = 4 << 20;
constexpr Duration kHelloTimeout = std::chrono::seconds(5);

JobSettings for_one_node(JobSettings settings) {
  settings.min_nodes = settings.max_nodes = 1;
  settings.static_ranks = false;
  return settings;
}

}  // namespace

// ---- The observers.

Result<std::unique_ptr<LocalObservers>> LocalObservers::open(os::EventLoop* loop,
                                                             const std::string& path,
                                                             std::string job_id,
                                                             JobObservers* observers) {
  auto listener = os::LocalListener::open(path);
  if (!listener.ok()) return listener.status();
  std::unique_ptr<LocalObservers> self(
      new LocalObservers(loop, *std::move(listener), std::move(job_id), observers));
  auto watch = loop->watch(self->listener_.fd(), EPOLLIN, self.get());
  if (!watch.ok()) return watch.status();
  self->watch_ = *std::move(watch);
  return self;
}

LocalObservers::LocalObservers(os::EventLoop* loop, os::LocalListener listener, std::string job_id,
                               JobObservers* observers)
    : loop_(*loop),
      job_id_(std::move(job_id)),
      observers_(*observers),
      incarnation_(os::random_seed()),
      listener_(std::move(listener)),
      pending_(kPendingPeersMax),
      pause_(loop, [this] { watch_.modify(EPOLLIN); }) {}

LocalObservers::~LocalObservers() {
  if (sessions_ != nullptr) sessions_->streams.abandon();
  for (const auto& peer : peers_) {
    if (peer->observed != nullptr) peer->observed->remove(peer.get());
  }
}

void LocalObservers::on_ready(std::uint32_t) {
  os::UniqueFd connection;
  switch (listener_.accept(&connection)) {
    case os::Listener::AcceptStatus::kAccepted: return adopt(std::move(connection));
    case os::Listener::AcceptStatus::kExhausted:
      watch_.modify(0);
      return pause_.arm_after(kAcceptPause);
    case os::Listener::AcceptStatus::kEmpty:
    case os::Listener::AcceptStatus::kGone: return;
  }
}

void LocalObservers::adopt(os::UniqueFd connection) {
  if (peers_.size() >= kPeersMax) return;
  if (sessions_ == nullptr) {
    sessions_ = std::make_unique<SessionContext>(&loop_, kHelloTimeout, kObserverBytesMax,
                                                 2 * kObserverBytesMax);
    sessions_->on_message = [this](SessionPeer* peer, session::ClientMessage& message) {
      return on_message(peer, message);
    };
    sessions_->on_closed = [this](SessionPeer* peer) { remove(peer); };
    sessions_->pending = &pending_;
  }
  auto peer = SessionPeer::create(sessions_.get(), {.fd = std::move(connection)});
  if (!peer.ok()) return;
  (*peer)->index = peers_.size();
  peers_.push_back(*std::move(peer));
}

Status LocalObservers::on_message(SessionPeer* peer, const session::ClientMessage& message) {
  if (peer->observed != nullptr) return peer->observed->on_message(peer, message);
  if (const auto* hello = std::get_if<session::ClientHello>(&message)) return greet(peer, *hello);
  return {StatusCode::kPeerViolation, kSessionFrames.no_greeting};
}

Status LocalObservers::greet(SessionPeer* peer, const session::ClientHello& hello) {
  if (!hello.observer) {
    return {StatusCode::kFailedPrecondition, "the job has one node, and admits no further one"};
  }
  if (!hello.job_id.empty() && hello.job_id != job_id_) {
    return no_such_job(hello.job_id, {job_id_});
  }
  peer->peer_version = hello.version;
  peer->is_observer = true;
  peer->greeted();
  peer->send(session::ServerHello{.incarnation = incarnation_, .time = loop_.read_clock()});
  observers_.add(peer, *hello.observer);
  return {};
}

void LocalObservers::remove(SessionPeer* peer) {
  if (peer->observed != nullptr) peer->observed->remove(peer);
  const std::size_t index = peer->index;
  std::swap(peers_[index], peers_.back());
  peers_[index]->index = index;
  peers_.pop_back();
}

// ---- The job.

LocalMembership::LocalMembership(os::EventLoop* loop, Options options, Sink sink)
    : loop_(loop),
      id_(std::move(options.job_id)),
      sink_(std::move(sink)),
      job_(id_, for_one_node(std::move(options.settings)), loop->now(), Duration::zero()),
      observers_(loop, observed_job()),
      delivery_(loop, [this] { deliver(); }),
      tick_(loop, [this] { tick(); }) {
  if (!options.observer_socket.empty()) listen(options.observer_socket);
  receive(MembershipReady{std::move(options.address)});
}

LocalMembership::~LocalMembership() {
  ELASTIC_DEBUG_CHECK(!is_delivering_);
  observers_.end("the job has ended");
  sessions_.reset();
}

JobObservers::Job LocalMembership::observed_job() {
  return {
      .source = {.facts = [this] { return facts(); },
                 .nodes =
                     [this] {
                       auto nodes = core::describe_nodes(job_.rendezvous(), loop_->now());
                       for (ObservedNode& node : nodes) node.silence = Duration::zero();
                       return nodes;
                     },
                 .watch_workers = [this](bool is_on) { receive(MembershipWatch{is_on}); }},
      .request_stacks = [this](std::uint64_t number) { step(core::hang_event::Requested{number}); },
      .request_drain =
          [this](const session::RequestDrain& request, std::uint64_t number) {
            step(core::job_event::DrainRequested{number, request.notice, request.node});
          },
      .request_host =
          [this](const session::RequestHost& request, std::uint64_t number) {
            step(core::job_event::HostRequested{number, request.host, request.reason,
                                                request.is_readmission});
          }};
}

ObservedJob LocalMembership::facts() {
  const Instant now = loop_->now();
  ObservedJob job = core::describe_job(&job_, now);
  job.wall_time = os::wall_time(now);
  job.id = id_;
  job.coordinator = sessions_->incarnation();
  job.incumbent = CoordinatorInfo{
      .address = "unix:" + sessions_->path(), .lineage = {}, .term = 1, .voters = {}};
  return job;
}

// Without the socket the job runs all the same.
void LocalMembership::listen(const std::string& path) {
  auto sessions = LocalObservers::open(loop_, path, id_, &observers_);
  if (sessions.ok()) {
    sessions_ = *std::move(sessions);
  } else {
    receive(MembershipCoordinatorLog{"elastic-launch status cannot show the job: " +
                                     std::string(sessions.status().message())});
  }
}

void LocalMembership::send(const core::NodeStatement& statement) {
  core::RendezvousEvent event =
      std::visit([](const auto& one) { return core::RendezvousEvent(one); }, statement);
  if (auto* join = std::get_if<rdzv::Join>(&event)) {
    join->settings = job_.rendezvous().settings();
    node_ = join->node.id;
    is_waiting_ = true;
  }
  step(event);
}

void LocalMembership::send_workers(const WorkerReport& report) {
  if (observers_.watches_workers()) observers_.on_report(node_, report);
}

void LocalMembership::report(const core::NodeReport& report) {
  struct ToEvent {
    NodeId node;

    core::JobEvent operator()(const hang::NodeProgress& progress) const {
      return core::job_event::Progressed{node, progress};
    }
    core::JobEvent operator()(const hang::NodeStacks& stacks) const {
      return core::hang_event::StacksReceived{node, stacks};
    }
    core::JobEvent operator()(const hang::RankFinished& finished) const {
      return core::hang_event::Finished{finished};
    }
    core::JobEvent operator()(const drain::Reply& reply) const {
      return core::job_event::StopReplied{node, reply};
    }
    core::JobEvent operator()(const gate::Finding& finding) const {
      return core::job_event::Found{node, finding};
    }
    core::JobEvent operator()(const snapshot::CopyReport& report) const {
      return core::job_event::Copied{node, report};
    }
    core::JobEvent operator()(const gate::ProbeReport& report) const {
      return core::job_event::Probed{node, report};
    }
    core::JobEvent operator()(const drain::Notice& notice) const {
      return core::job_event::Noticed{node, notice};
    }
    core::JobEvent operator()(const hang::NodeSignatures& signatures) const {
      return core::hang_event::SignaturesReceived{node, signatures};
    }
  };
  step(std::visit(ToEvent{node_}, report));
}

void LocalMembership::tick() {
  if (!is_waiting_) return step(core::job_event::WatchTick{});
  step(rdzv::Heartbeat{node_});
  if (is_waiting_) step(rdzv::Tick{});
}

void LocalMembership::step(const core::JobEvent& event) {
  std::vector<core::JobAction> actions;
  job_.step(event, loop_->now(), &actions);
  const bool is_outer = actions_.run(std::move(actions), [this](core::JobAction& action) {
    std::visit([this](auto& one) { execute(one); }, action);
  });
  if (!is_outer) return;
  if (job_.take_changed()) observers_.job_changed();
  const auto deadline = is_waiting_ ? job_.next_deadline() : job_.next_watch_deadline();
  if (deadline) {
    tick_.arm(*deadline);
  } else {
    tick_.disarm();
  }
}

void LocalMembership::execute(core::RendezvousAction& action) {
  std::visit(
      [this](auto& one) {
        using Action = std::decay_t<decltype(one)>;
        constexpr bool is_answer =
            std::is_same_v<Action, rdzv::Round> || std::is_same_v<Action, rdzv::Closed>;
        if (is_answer) is_waiting_ = false;
        // There is no session to resume, and the agent knows its round.
        if constexpr (std::is_constructible_v<MembershipEvent, Action>) receive(std::move(one));
      },
      action);
}

void LocalMembership::execute(gate::HostAction& action) {
  receive(MembershipCoordinatorLog{gate::describe(action)});
}

void LocalMembership::execute(core::hang_action::Reply& action) {
  observers_.reply(action.observer, std::move(action.text));
}

void LocalMembership::receive(MembershipEvent event) {
  received_.push_back(std::move(event));
  delivery_.arm(loop_->now());
}

void LocalMembership::deliver() {
  is_delivering_ = true;
  // Events that are added while these are delivered wait for the next iteration.
  for (std::size_t left = received_.size(); left > 0; --left) {
    const MembershipEvent event = std::move(received_.front());
    received_.pop_front();
    sink_(event);
  }
  is_delivering_ = false;
  if (received_.empty() && drained_) std::exchange(drained_, {})();
}

void LocalMembership::drain(Duration /*limit*/, std::function<void()> done) {
  observers_.end("the job has ended");
  drained_ = std::move(done);
  delivery_.arm(loop_->now());
}

}  // namespace elastic::host
