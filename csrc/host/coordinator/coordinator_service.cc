#include "host/coordinator/coordinator_service.h"

#include <utility>

#include "core/base/join_address.h"
#include "core/base/text.h"
#include "core/session/job_room.h"
#include "host/base/service_thread.h"
#include "os/base/process.h"
#include "os/loop/event_loop.h"
#include "os/net/address.h"

// Theory of operation. The store's service owns the listening socket and serves every connection
// until it begins a session; then the connection is moved here (session_peer.cc). The hello names
// the job, which handles all further messages of the session (coordinator_job.cc). One timer runs
// at the end of each iteration: jobs report what has changed, then sessions send or are removed.

namespace elastic::host {
namespace {

// Approximate memory of a session without its buffers, its node in the job included.
constexpr std::size_t kSessionBytes = 2048;
// How many protocol faults are logged in an interval.
constexpr std::size_t kFaultsLogged = 20;
constexpr Duration kFaultInterval = std::chrono::seconds(10);
constexpr std::size_t kObserversMax = 64;
// A coordinator of more jobs is shared by jobs that do not know of each other.
constexpr std::size_t kNeighboursMax = 4;
constexpr std::size_t kJobIdShown = 64;

// The lines of a coordinator's log about clients that it refuses.
constexpr const char* kSessionRefused = "a session was refused: ";
constexpr const char* kStoreRefused =
    "a request to the store was refused: no session with a token was opened from this address";

// At which other hosts reach a server that is bound to this address: host:port; "": unknown.
std::string reachable_address(const std::string& host, std::uint16_t port) {
  const bool is_everywhere = host == "0.0.0.0" || host == "::";
  const std::string reached = is_everywhere ? os::primary_address() : host;
  return reached.empty() ? "" : core::join_address(reached, port);
}

}  // namespace

Result<std::unique_ptr<CoordinatorService>> CoordinatorService::open(
    os::EventLoop* loop, const CoordinatorOptions& options, CoordinatorHost host) {
  auto tokens = open_tokens(options.token, options.log);
  if (!tokens.ok()) return tokens.status();
  auto store = StoreService::open(
      loop, {.host = options.host, .port = options.port, .limits = options.store_limits});
  if (!store.ok()) return store.status();
  std::unique_ptr<CoordinatorService> self(new CoordinatorService(
      loop, options, std::move(host), *std::move(store), *std::move(tokens)));
  if (Status loaded = self->load(); !loaded.ok()) return loaded;
  return self;
}

CoordinatorService::CoordinatorService(os::EventLoop* loop, const CoordinatorOptions& options,
                                       CoordinatorHost host, std::unique_ptr<StoreService> store,
                                       std::shared_ptr<Tokens> tokens)
    : loop_(*loop),
      options_(options),
      host_job_(std::move(host.job)),
      host_feed_(std::move(host.feed)),
      store_(std::move(store)),
      incarnation_(os::random_seed()),
      sessions_(loop, options.limits.hello_timeout, options.limits.session_output_bytes_max,
                options.limits.buffered_bytes_max, [this] { process_pending(); }),
      pending_(
          pending_per_address(options.store_limits),
          tokens == nullptr ? PendingConnections::kNoLimit : handshakes_max(options.store_limits)),
      refusals_(options.log),
      succession_(make_succession(host.is_standby, tokens)),
      memory_return_(loop),
      stall_watch_(loop, [this](const os::Stall& stall) { on_stall(stall); }),
      processing_timer_(loop, [this] { process_pending(); }),
      drain_timer_(loop, [this] {
        if (is_handing_over_) {
          end_jobs();
        } else {
          finish_drain();
        }
      }) {
  context_.loop = loop;
  context_.record_bytes_max = host.record_bytes_max;
  context_.port = store_->port();
  context_.address = reachable_address(store_->host(), store_->port());
  context_.began = loop->now();
  context_.incarnation = incarnation_;
  context_.log = options_.log;
  context_.reset_store = [this] { store_->reset(); };
  context_.process_received = [this] { sessions_.streams.process_received(); };
  context_.describe_neighbours = [this](const auto& job) { return describe_neighbours(job); };
  context_.on_changed = [this](CoordinatorJob* job) { mark_changed(job); };
  context_.on_exclude = options.on_exclude;
  sessions_.on_fault = [this](SessionPeer* peer, const Status& why, bool is_ignored) {
    const std::string text(why.message());
    log_fault(is_ignored ? "a message of " + peer->remote().text() + " is ignored: " + text
                         : "a session of " + peer->remote().text() + " is closed: " + text);
  };
  sessions_.on_message = [this](SessionPeer* peer, session::ClientMessage& message) {
    return on_message(peer, message);
  };
  sessions_.pending = &pending_;
  sessions_.on_closed = [this](SessionPeer* peer) { remove(peer); };
  sessions_.on_secured = [this](SessionPeer* peer) {
    if (peer->role() != PeerRole::kNode) return;  // an observer reads the job's state only
    peer->opens_store = true;
    fence_.session_begun(peer->remote().host());
  };
  sessions_.on_refusal = [this](SessionPeer* peer, std::string_view why) {
    sessions_rejected_.add(1);
    refusals_.report(peer->remote().host(), kSessionRefused + std::string(why), loop_.now());
  };
  sessions_.tokens = std::move(tokens);
  context_.needs_token = sessions_.tokens != nullptr;
  if (context_.needs_token) {
    store_->fence([this](const auto& remote,
                         const auto& local) { return fence_.allows(remote, local, loop_.now()); },
                  [this](const std::string& address) {
                    refusals_.report(address, kStoreRefused, loop_.now());
                  });
  }
  store_->accept_sessions([this](auto one) { adopt(std::move(one)); }, context_.needs_token);
}

CoordinatorService::~CoordinatorService() {
  if (!jobs_.empty()) store_jobs();
}

std::size_t CoordinatorService::bytes_held() const {
  return sessions_.budget.used() + peers_.size() * kSessionBytes;
}

void CoordinatorService::adopt(os::DetachedStream connection) {
  sessions_total_.add(1);
  if (peers_.size() >= options_.limits.sessions_max) {
    sessions_rejected_.add(1);
    return;
  }
  auto peer = SessionPeer::create(&sessions_, std::move(connection));
  if (!peer.ok()) {
    sessions_rejected_.add(1);
    return;
  }
  (*peer)->index = peers_.size();
  peers_.push_back(*std::move(peer));
  num_sessions_.set(peers_.size());
}

Status CoordinatorService::on_message(SessionPeer* peer, session::ClientMessage& message) {
  Status status;
  if (peer->job != nullptr) {
    status = peer->job->on_message(peer, message);
  } else if (peer->observed != nullptr) {
    status = peer->observed->on_message(peer, message);
  } else if (const auto* hello = std::get_if<session::ClientHello>(&message)) {
    status = greet(peer, *hello);
  } else {
    status = Status(StatusCode::kPeerViolation, kSessionFrames.no_greeting);
  }
  if (!status.ok()) {
    sessions_rejected_.add(1);
    log_fault("a session of " + peer->remote().text() +
              " is closed: " + std::string(status.message()));
  }
  return status;
}

// Limited, because a faulty client may reconnect at once and without end.
void CoordinatorService::log_fault(const std::string& message) {
  if (!options_.log) return;
  if (loop_.now() >= faults_end_) {
    if (faults_ > kFaultsLogged) {
      options_.log(std::to_string(faults_ - kFaultsLogged) + " more sessions were closed");
    }
    faults_ = 0;
    faults_end_ = loop_.now() + kFaultInterval;
  }
  if (++faults_ <= kFaultsLogged) options_.log(message);
}

Status CoordinatorService::greet_observer(SessionPeer* peer, const session::ClientHello& hello) {
  if (num_observers_ >= kObserversMax) {
    return Status(StatusCode::kResourceExhausted,
                  "the coordinator has " + std::to_string(num_observers_) +
                      " observers, which is its limit: close one of them");
  }
  CoordinatorJob* const job = find_observed_job(hello.job_id);
  if (const Placement placed = place_observer(hello, job); placed.elsewhere) {
    direct(peer, *placed.elsewhere);
    return {};
  }
  if (job == nullptr) {
    std::vector<std::string> ids;
    for (const auto& [id, unused] : jobs_) ids.push_back(id);
    return no_such_job(hello.job_id, ids);
  }
  peer->peer_version = hello.version;
  peer->is_observer = true;
  ++num_observers_;
  peer->greeted();
  peer->send(session::ServerHello{.incarnation = incarnation_, .time = loop_.read_clock()});
  job->observers().add(peer, *hello.observer);
  return {};
}

// An empty id selects the only job.
CoordinatorJob* CoordinatorService::find_observed_job(const std::string& id) {
  if (id.empty()) return jobs_.size() == 1 ? jobs_.begin()->second.get() : nullptr;
  return find_job(id);
}

Status CoordinatorService::greet(SessionPeer* peer, const session::ClientHello& hello) {
  if (!peer->may_name(hello.job_id)) {
    return Status(StatusCode::kPeerViolation,
                  "the token of the session is for another job than " + hello.job_id);
  }
  if (hello.observer) return greet_observer(peer, hello);
  if (peer->role() != PeerRole::kNode) {
    return Status(StatusCode::kFailedPrecondition,
                  "this node has an observer's token, which only reads: use the token of the job");
  }
  if (hello.job_id.empty()) {
    return Status(StatusCode::kInvalidArgument, "the hello of a session names no job");
  }
  if (hello.announced) return greet_coordinator(peer, hello);
  return greet_node(peer, hello);
}

Status CoordinatorService::greet_node(SessionPeer* peer, const session::ClientHello& hello) {
  peer->peer_version = hello.version;
  peer->node = hello.node;
  const Placement placed = place_node(hello);
  if (placed.elsewhere) {
    direct(peer, *placed.elsewhere);
    return {};
  }
  CoordinatorJob* job = find_job(hello.job_id);
  if (job == nullptr) {
    auto begun = begin_job(hello.job_id, peer->remote().host(), placed.hold);
    if (!begun.ok()) return begun.status();
    job = *begun;
  }
  if (Status fault = job->check_endpoints(hello); !fault.ok()) return fault;
  if (Status fault = job->admit(hello); !fault.ok()) return fault;
  job->note_endpoints(hello);
  job->note_witness(hello);
  peer->succession = hello.succession;
  peer->liveness_port = hello.liveness_port.value_or(0);
  peer->opens_ports = (hello.capabilities & session::kOpensPorts) != 0;
  peer->greeted();
  session::ServerHello reply{
      .term = job->term(), .incarnation = incarnation_, .time = loop_.read_clock()};
  if (!host_job_.empty() && hello.job_id != host_job_) reply.host_job = host_job_;
  peer->send(reply);
  job->add(peer);
  return {};
}

CoordinatorJob* CoordinatorService::find_job(std::string_view id) const {
  const auto found = jobs_.find(id);
  return found == jobs_.end() ? nullptr : found->second.get();
}

Result<CoordinatorJob*> CoordinatorService::begin_job(const std::string& id,
                                                      const std::string& beginner, Duration hold) {
  std::vector<core::JobHere> jobs;
  for (const auto& [other, job] : jobs_) {
    const bool is_idle = job->rendezvous() == nullptr && other != host_job_;
    jobs.push_back({other, job->beginner(), job->serial, is_idle});
  }
  const auto idle = core::make_room(jobs, options_.limits.jobs_max, beginner, context_.needs_token);
  if (!idle.ok()) return idle.status();
  if (!idle->empty()) remove_idle_job(*idle);
  auto& job = jobs_[id];
  job = std::make_unique<CoordinatorJob>(&context_, id, begin_succession(id), beginner);
  job->serial = ++jobs_begun_;
  job->hold_start(add_saturating(loop_.now(), hold));
  num_jobs_.set(jobs_.size());
  return job.get();
}

void CoordinatorService::remove_idle_job(const std::string& id) {
  const char* const why = "the coordinator has too many jobs, and no node has joined this one";
  jobs_.at(id)->reject(Status(StatusCode::kResourceExhausted, why));
  remove_job(id, why);
  end_succession(id);
}

// A node with a mistyped id waits for others while the nodes of the intended job wait for it. With
// tokens the jobs have nothing to do with each other.
std::string CoordinatorService::describe_neighbours(const CoordinatorJob& of) const {
  if (context_.needs_token || jobs_.size() > kNeighboursMax) return "";
  std::string text;
  int waiting = 0;
  for (const auto& [id, job] : jobs_) {
    const core::RendezvousMachine* const machine = job->rendezvous();
    if (job.get() == &of || machine == nullptr) continue;
    const int nodes = machine->joined_nodes();
    if (machine->phase() != RendezvousPhase::kForming || nodes == 0) continue;
    waiting += nodes;
    text += (text.empty() ? "" : ", ") + std::to_string(nodes) +
            (nodes == 1 ? " node of job " : " nodes of job ") +
            core::to_printable(id, core::Lines::kOne, kJobIdShown);
  }
  if (waiting == 0) return "";
  return text + (waiting == 1 ? " waits" : " wait") +
         " here, too (is --rdzv-id the same on every node?)";
}

void CoordinatorService::on_stall(const os::Stall& stall) {
  for (const auto& [id, job] : jobs_) job->on_stall(stall);
}

void CoordinatorService::mark_changed(CoordinatorJob* job) {
  has_changes_.push_back(job);
  processing_timer_.arm(loop_.now());
}

void CoordinatorService::process_pending() {
  publish_job_changes();
  sessions_.streams.process_pending();
  if (on_drained_ && !is_handing_over_ && !has_nodes()) finish_drain_without_nodes();
}

void CoordinatorService::publish_job_changes() {
  if (has_changes_.empty()) return;
  for (CoordinatorJob* job : std::exchange(has_changes_, {})) {
    job->publish_changes();
    if (!job->is_removable()) continue;
    const std::string id = job->id();
    remove_job(id, "the job has ended: its last node has left");
    end_succession(id);
  }
  store_jobs_later();
}

void CoordinatorService::remove(SessionPeer* peer) {
  memory_return_.update(bytes_held());
  if (peer->job != nullptr) peer->job->remove(peer);
  if (peer->observed != nullptr) peer->observed->remove(peer);
  if (peer->is_observer) --num_observers_;
  if (peer->opens_store) fence_.session_ended(peer->remote().host(), loop_.now());
  const std::size_t index = peer->index;
  std::swap(peers_[index], peers_.back());
  peers_[index]->index = index;
  peers_.pop_back();
  memory_return_.update(bytes_held());
  num_sessions_.set(peers_.size());
}

CoordinatorStats CoordinatorService::stats() const {
  return {.sessions = num_sessions_.get(),
          .sessions_total = sessions_total_.get(),
          .sessions_rejected = sessions_rejected_.get(),
          .jobs = num_jobs_.get()};
}

std::string CoordinatorService::describe() const {
  std::string text;
  for (const auto& [id, job] : jobs_) {
    text += "job " + id + ": " +
            (job->rendezvous() == nullptr ? "no node has joined"
                                          : job->rendezvous()->describe(loop_.now())) +
            "\n";
  }
  return text;
}

}  // namespace elastic::host

namespace elastic {

class Coordinator::Impl {
 public:
  std::unique_ptr<host::ServiceThread<host::CoordinatorService>> service;
};

Coordinator::Coordinator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Coordinator::~Coordinator() = default;

Result<std::unique_ptr<Coordinator>> Coordinator::start(const CoordinatorOptions& options) {
  auto service = host::ServiceThread<host::CoordinatorService>::start("elastic-coord", options);
  if (!service.ok()) return service.status();
  return std::unique_ptr<Coordinator>(
      new Coordinator(std::make_unique<Impl>(Impl{*std::move(service)})));
}

std::uint16_t Coordinator::port() const { return impl_->service->port(); }
const std::string& Coordinator::host() const { return impl_->service->host(); }
CoordinatorStats Coordinator::stats() const { return impl_->service->stats(); }
std::string Coordinator::describe() const {
  return impl_->service->query(
      [](const host::CoordinatorService& service) { return service.describe(); });
}
void Coordinator::close(Duration drain) { impl_->service->close(drain); }

}  // namespace elastic
