#include "host/coordinator/coordinator_service.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "core/session/coordinator_state.h"
#include "host/auth/stranger_log.h"
#include "host/base/memory_return.h"
#include "host/coordinator/coordinator_job.h"
#include "host/coordinator/coordinator_tokens.h"
#include "host/coordinator/job_voters.h"
#include "host/coordinator/session_peer.h"
#include "host/coordinator/state_file.h"
#include "host/store/store_peer.h"
#include "host/store/store_service.h"
#include "os/file/file.h"
#include "os/loop/clock.h"
#include "os/loop/random_seed.h"

// Theory of operation. The store's service owns the listening socket and serves every connection
// until it begins a session; then the connection is moved here (session_peer.cc). The hello names
// the job, which handles all further messages of the session (coordinator_job.cc). One timer runs
// at the end of each iteration: jobs report what has changed, then sessions send or are removed.
//
// A separate thread writes the state file, at most every kStateDelay.

namespace elastic::host {
namespace {

// Approximate memory of a session without its buffers, its node in the job included.
constexpr std::size_t kSessionBytes = 2048;
// How many protocol faults are logged in an interval.
constexpr std::size_t kFaultsLogged = 20;
constexpr Duration kFaultInterval = std::chrono::seconds(10);
// How long another node has to take over the jobs of a coordinator that ends.
constexpr Duration kHandOverTimeout = std::chrono::seconds(1);
// How long clients have to read why the coordinator ends, and to close.
constexpr Duration kAnnouncementTimeout = std::chrono::milliseconds(500);
constexpr std::size_t kObserversMax = 64;
constexpr Duration kStateDelay = std::chrono::milliseconds(100);
// The state of the largest possible job; a larger file is not a state file.
constexpr std::size_t kStateBytesMax = std::size_t{1} << 30;

}  // namespace

class CoordinatorService::Impl {
 public:
  Impl(os::EventLoop* loop, const CoordinatorOptions& options, CoordinatorHost host,
       std::unique_ptr<StoreService> store, std::shared_ptr<TokenSource> tokens)
      : loop_(*loop),
        options_(options),
        host_job_(std::move(host.job)),
        host_feed_(std::move(host.feed)),
        is_standby_(host.is_standby),
        store_(std::move(store)),
        incarnation_(os::random_seed()),
        sessions_(loop, options.limits.hello_timeout, options.limits.session_output_bytes_max,
                  options.limits.buffered_bytes_max, [this] { process_pending(); }),
        pending_(pending_per_address(options.store_limits)),
        strangers_(options.log),
        voters_(loop, options.voters, tokens, options.log,
                [this](const std::string& job, const succession::Action& action) {
                  on_succession(job, action);
                }),
        memory_return_(loop),
        stall_watch_(loop, [this](const os::EventLoop::Stall& stall) { on_stall(stall); }),
        processing_timer_(loop, [this] { process_pending(); }),
        state_timer_(loop, [this] { store_state(); }),
        drain_timer_(loop, [this] {
          if (is_handing_over_) {
            end_jobs();
          } else {
            finish_drain();
          }
        }) {
    context_.loop = loop;
    context_.port = store_->port();
    context_.began = loop->now();
    context_.incarnation = incarnation_;
    context_.log = options_.log;
    context_.reset_store = [this] { store_->reset(); };
    context_.process_received = [this] { sessions_.streams.process_pending(); };
    context_.on_changed = [this](CoordinatorJob* job) { mark_changed(job); };
    sessions_.on_message = [this](SessionPeer* peer, session::ClientMessage& message) {
      return on_message(peer, message);
    };
    sessions_.pending = &pending_;
    sessions_.on_closed = [this](SessionPeer* peer) { remove(peer); };
    sessions_.on_secured = [this](SessionPeer* peer) { fence_->allow(peer->remote().host()); };
    sessions_.on_stranger = [this](SessionPeer* peer, const std::string& why) {
      sessions_rejected_.add(1);
      strangers_.report(peer->remote().host(), kSessionRefused + why, loop_.now());
    };
    sessions_.tokens = std::move(tokens);
    context_.needs_token = sessions_.tokens != nullptr;
    if (context_.needs_token) {
      store_->fence(fence_, [this](const std::string& address) {
        strangers_.report(address, kStoreRefused, loop_.now());
      });
    }
    store_->accept_sessions([this](auto one) { adopt(std::move(one)); }, context_.needs_token);
  }

  ~Impl() {
    if (state_file_ != nullptr && !jobs_.empty()) store_state();
  }

  Status load();
  const StoreService& store() const { return *store_; }
  CoordinatorStats stats() const;
  std::string describe() const;
  void drain(Duration limit, const CoordinatorEnd& end, std::function<void()> done);
  Status succeed(const succession::StartCoordinator& start, const NodeId& self);
  void on_succession(const std::string& job_id, const succession::Action& action);
  void direct_to(const std::string& address) { moved_[host_job_].address = address; }
  void on_host_succession(const succession::Action& action) { on_succession(host_job_, action); }

 private:
  void adopt(os::DetachedStream connection);
  Status on_message(SessionPeer* peer, session::ClientMessage& message);
  Status greet(SessionPeer* peer, const session::ClientHello& hello);
  Status greet_observer(SessionPeer* peer, const session::ClientHello& hello);
  CoordinatorJob* find_observed_job(const std::string& id);
  bool has_nodes() const { return peers_.size() > num_observers_; }
  void log_fault(const std::string& message);
  CoordinatorJob* find_or_add_job(const std::string& id);
  SuccessionFeed feed_of(const std::string& id);
  void direct(SessionPeer* peer, const succession::Incumbent& incumbent);
  void stop_job(const std::string& id, const succession::StopCoordinator& stop);
  bool hand_over();
  void end_jobs();
  void on_stall(const os::EventLoop::Stall& stall);
  void mark_changed(CoordinatorJob* job);
  void process_pending();
  void publish_job_changes();
  void remove(SessionPeer* peer);
  std::string encode() const;
  void store_state();
  bool all_jobs_are_over() const;
  std::size_t bytes_held() const { return sessions_.budget.used() + peers_.size() * kSessionBytes; }
  void finish_drain();

  os::EventLoop& loop_;
  const CoordinatorOptions options_;
  const std::string host_job_;  // the job whose agent runs this; "": a separate program
  const SuccessionFeed host_feed_;
  const bool is_standby_;
  const std::unique_ptr<StoreService> store_;
  const std::uint64_t incarnation_;
  CoordinatorContext context_;
  SessionContext sessions_;
  PendingConnections pending_;
  StrangerLog strangers_;
  const std::shared_ptr<AddressFence> fence_ = std::make_shared<AddressFence>();
  std::map<std::string, std::unique_ptr<CoordinatorJob>, std::less<>> jobs_;
  // Jobs that this process coordinated: their nodes are directed to the successor.
  std::map<std::string, succession::Incumbent, std::less<>> moved_;
  JobVoters voters_;
  std::vector<std::unique_ptr<SessionPeer>> peers_;
  std::size_t num_observers_ = 0;  // of peers_
  std::vector<CoordinatorJob*> has_changes_;
  Counter num_sessions_, sessions_total_, sessions_rejected_, num_jobs_;

  std::string stored_;  // the last state that was given to the file
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<StateFile> state_file_;  // null: no state is kept

  MemoryReturn memory_return_;
  std::size_t faults_ = 0;  // in the interval that ends then
  Instant faults_end_;
  Duration drain_limit_{};
  CoordinatorEnd end_;                // of the drain
  bool is_handing_over_ = false;      // before the drain's other steps
  std::function<void()> on_drained_;  // set while draining
  os::EventLoop::StallWatch stall_watch_;
  os::EventLoop::Timer processing_timer_;
  os::EventLoop::Timer state_timer_;
  os::EventLoop::Timer drain_timer_;
};

Status CoordinatorService::Impl::load() {
  const std::string& path = options_.state_file;
  if (path.empty()) return {};
  auto bytes = os::read_file(path, kStateBytesMax);
  if (!bytes.ok()) return state_file_error(bytes.status(), path);
  if (*bytes) {
    auto stored = core::decode_jobs(**bytes);
    if (!stored.ok()) return state_file_error(stored.status(), path);
    for (const core::StoredJob& one : *stored) {
      auto& job = jobs_[one.id];
      job = std::make_unique<CoordinatorJob>(&context_, one.id);
      if (Status fault = job->load(one); !fault.ok()) {
        return state_file_error(fault, path);
      }
    }
    num_jobs_.set(jobs_.size());
  }
  // A file that cannot be written is reported at the start.
  stored_ = encode();
  if (Status written = os::replace_file(path, stored_); !written.ok()) {
    return state_file_error(written, path);
  }
  auto file = StateFile::open(
      path, [this, loop = &loop_, alive = std::weak_ptr<bool>(alive_)](const Status& error) {
        loop->post([this, alive, error] {
          if (alive.lock() && options_.log) options_.log(error.message());
        });
      });
  if (!file.ok()) return file.status();
  state_file_ = *std::move(file);
  return {};
}

void CoordinatorService::Impl::adopt(os::DetachedStream connection) {
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

Status CoordinatorService::Impl::on_message(SessionPeer* peer, session::ClientMessage& message) {
  Status status;
  if (peer->job != nullptr) {
    status = peer->job->on_message(peer, message);
  } else if (peer->observed != nullptr) {
    status = peer->observed->on_observer_message(peer, message);
  } else if (const auto* hello = std::get_if<session::ClientHello>(&message)) {
    status = greet(peer, *hello);
  } else {
    status = Status(StatusCode::kPeerViolation, "the first message of a session must be a hello");
  }
  if (!status.ok()) {
    sessions_rejected_.add(1);
    log_fault("a session of " + peer->remote().text() +
              " is closed: " + std::string(status.message()));
  }
  return status;
}

// Limited, because a faulty client may reconnect at once and without end.
void CoordinatorService::Impl::log_fault(const std::string& message) {
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

Status CoordinatorService::Impl::greet_observer(SessionPeer* peer,
                                                const session::ClientHello& hello) {
  if (num_observers_ >= kObserversMax) {
    return Status(StatusCode::kResourceExhausted,
                  "the coordinator has " + std::to_string(num_observers_) +
                      " observers, which is its limit: close one of them");
  }
  CoordinatorJob* const job = find_observed_job(hello.job_id);
  const auto moved = hello.job_id.empty() && jobs_.empty() && moved_.size() == 1
                         ? moved_.begin()
                         : moved_.find(hello.job_id);
  if (job == nullptr && moved != moved_.end() && !moved->second.address.empty()) {
    direct(peer, moved->second);
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
  peer->accept();
  peer->send(session::ServerHello{.incarnation = incarnation_, .time = os::monotonic_now()});
  job->add_observer(peer, *hello.observer);
  return {};
}

// An empty id selects the only job.
CoordinatorJob* CoordinatorService::Impl::find_observed_job(const std::string& id) {
  if (id.empty()) return jobs_.size() == 1 ? jobs_.begin()->second.get() : nullptr;
  const auto found = jobs_.find(id);
  return found == jobs_.end() ? nullptr : found->second.get();
}

Status CoordinatorService::Impl::greet(SessionPeer* peer, const session::ClientHello& hello) {
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
  peer->peer_version = hello.version;
  peer->node = hello.node;
  if (const auto moved = moved_.find(hello.job_id); moved != moved_.end()) {
    direct(peer, moved->second);
    return {};
  }
  const auto found = jobs_.find(hello.job_id);
  const bool is_replicated = hello.succession && hello.succession->is_replicated;
  if (found != jobs_.end()) found->second->note_term(hello);
  const bool is_of_lineage = found != jobs_.end() && found->second->is_of_this_lineage(hello);
  if (is_replicated ? !is_of_lineage : is_standby_ && found == jobs_.end()) {
    direct(peer, {});  // only the voters of its lineage name a coordinator
    return {};
  }
  CoordinatorJob* const job = find_or_add_job(hello.job_id);
  if (job == nullptr) {
    return Status(
        StatusCode::kResourceExhausted,
        "the coordinator has " + std::to_string(jobs_.size()) + " jobs, which is its limit");
  }
  if (Status fault = job->admit(hello); !fault.ok()) return fault;
  peer->succession = hello.succession;
  peer->accept();
  session::ServerHello reply{
      .term = job->term(), .incarnation = incarnation_, .time = os::monotonic_now()};
  if (!host_job_.empty() && hello.job_id != host_job_) reply.host_job = host_job_;
  peer->send(reply);
  job->add(peer);
  return {};
}

CoordinatorJob* CoordinatorService::Impl::find_or_add_job(const std::string& id) {
  const auto found = jobs_.find(id);
  if (found != jobs_.end()) return found->second.get();
  if (jobs_.size() >= options_.limits.jobs_max) return nullptr;
  auto& job = jobs_[id];
  job = std::make_unique<CoordinatorJob>(&context_, id, feed_of(id));
  num_jobs_.set(jobs_.size());
  return job.get();
}

// This process does not coordinate the job: the client tries the incumbent's address, or, if that
// is not known, goes on with its search.
void CoordinatorService::Impl::direct(SessionPeer* peer, const succession::Incumbent& incumbent) {
  peer->accept();
  peer->end(session::Incumbent{incumbent, true});
}

// ---- Succession.

// The machine of the host's own job runs in the agent; a job of other agents has one here.
SuccessionFeed CoordinatorService::Impl::feed_of(const std::string& id) {
  if (id == host_job_) return host_feed_;
  return state_file_ == nullptr ? voters_.open(id, store_->host(), store_->port())
                                : SuccessionFeed();
}

Status CoordinatorService::Impl::succeed(const succession::StartCoordinator& start,
                                         const NodeId& self) {
  moved_.erase(host_job_);
  auto& job = jobs_[host_job_];
  job = std::make_unique<CoordinatorJob>(&context_, host_job_, host_feed_);
  num_jobs_.set(jobs_.size());
  Status status = job->succeed(start, self);
  if (!status.ok()) {
    jobs_.erase(host_job_);
    num_jobs_.set(jobs_.size());
  }
  return status;
}

void CoordinatorService::Impl::on_succession(const std::string& job_id,
                                             const succession::Action& action) {
  if (const auto* follow = std::get_if<succession::Follow>(&action)) {
    if (const auto moved = moved_.find(job_id); moved != moved_.end()) {
      moved->second = follow->incumbent;
    }
    return;
  }
  const auto found = jobs_.find(job_id);
  if (found == jobs_.end()) return;
  CoordinatorJob& job = *found->second;
  if (std::holds_alternative<succession::TurnOn>(action)) {
    job.turn_on_gate();
  } else if (const auto* in_force = std::get_if<succession::InForce>(&action)) {
    job.in_force(in_force->number);
  } else if (const auto* inform = std::get_if<succession::Inform>(&action)) {
    job.inform(inform->incumbent);
    voters_.log_survival(job_id);
  } else if (const auto* stop = std::get_if<succession::StopCoordinator>(&action)) {
    stop_job(job_id, *stop);
  } else if (const auto* line = std::get_if<succession::Log>(&action)) {
    if (options_.log && !job.is_over()) options_.log("job " + job_id + ": " + line->message);
  }
}

void CoordinatorService::Impl::stop_job(const std::string& id,
                                        const succession::StopCoordinator& stop) {
  const auto found = jobs_.find(id);
  found->second->end_observation("the coordinator of the job is at another address now");
  found->second->stop(stop);
  std::erase(has_changes_, found->second.get());
  jobs_.erase(found);
  num_jobs_.set(jobs_.size());
  moved_[id] = stop.successor.value_or(succession::Incumbent{});
  if (is_handing_over_ && !hand_over()) end_jobs();
}

// True: a job waits for another node to take it over.
bool CoordinatorService::Impl::hand_over() {
  return std::any_of(jobs_.begin(), jobs_.end(), [](const auto& one) {
    return one.second->has_succession() && !one.second->is_over();
  });
}

void CoordinatorService::Impl::on_stall(const os::EventLoop::Stall& stall) {
  for (const auto& [id, job] : jobs_) job->on_stall(stall);
}

void CoordinatorService::Impl::mark_changed(CoordinatorJob* job) {
  has_changes_.push_back(job);
  processing_timer_.arm(loop_.now());
}

void CoordinatorService::Impl::process_pending() {
  publish_job_changes();
  sessions_.streams.process_pending();
  if (on_drained_ && !is_handing_over_ && !has_nodes()) finish_drain();
}

void CoordinatorService::Impl::publish_job_changes() {
  if (has_changes_.empty()) return;
  for (CoordinatorJob* job : std::exchange(has_changes_, {})) {
    job->publish_changes();
    if (!job->is_removable()) continue;
    job->end_observation("the job has ended: its last node has left");
    const std::string id = job->id();
    jobs_.erase(id);
    voters_.close(id);
    num_jobs_.set(jobs_.size());
  }
  if (state_file_ != nullptr && !state_timer_.armed()) {
    state_timer_.arm(loop_.now() + kStateDelay);
  }
}

void CoordinatorService::Impl::remove(SessionPeer* peer) {
  memory_return_.update(bytes_held());
  if (peer->job != nullptr) peer->job->remove(peer);
  if (peer->observed != nullptr) peer->observed->remove_observer(peer);
  if (peer->is_observer) --num_observers_;
  const std::size_t index = peer->index;
  std::swap(peers_[index], peers_.back());
  peers_[index]->index = index;
  peers_.pop_back();
  memory_return_.update(bytes_held());
  num_sessions_.set(peers_.size());
}

CoordinatorStats CoordinatorService::Impl::stats() const {
  return {.sessions = num_sessions_.get(),
          .sessions_total = sessions_total_.get(),
          .sessions_rejected = sessions_rejected_.get(),
          .jobs = num_jobs_.get()};
}

std::string CoordinatorService::Impl::describe() const {
  std::string text;
  for (const auto& [id, job] : jobs_) {
    text +=
        "job " + id + ": " +
        (job->machine() == nullptr ? "no node has joined" : job->machine()->describe(loop_.now())) +
        "\n";
  }
  return text;
}

std::string CoordinatorService::Impl::encode() const {
  std::vector<core::StoredJob> stored;
  for (const auto& [id, job] : jobs_) {
    if (job->machine() != nullptr) stored.push_back(job->stored());
  }
  return core::encode_jobs(std::move(stored));
}

void CoordinatorService::Impl::store_state() {
  std::string state = encode();
  if (state == stored_) return;
  stored_ = state;
  state_file_->put(std::move(state));
}

bool CoordinatorService::Impl::all_jobs_are_over() const {
  for (const auto& [id, job] : jobs_) {
    if (!job->is_over()) return false;
  }
  return true;
}

void CoordinatorService::Impl::drain(Duration limit, const CoordinatorEnd& end,
                                     std::function<void()> done) {
  on_drained_ = std::move(done);
  drain_limit_ = limit;
  end_ = end;
  if (limit > Duration::zero() && hand_over()) {
    is_handing_over_ = true;
    drain_timer_.arm(add_saturating(loop_.now(), std::min(limit, kHandOverTimeout)));
    std::vector<CoordinatorJob*> jobs;
    for (const auto& [id, job] : jobs_) {
      if (job->has_succession() && !job->is_over()) jobs.push_back(job.get());
    }
    for (CoordinatorJob* job : jobs) job->resign();
    return;
  }
  end_jobs();
}

// The jobs that no other node takes over.
void CoordinatorService::Impl::end_jobs() {
  is_handing_over_ = false;
  drain_timer_.disarm();
  const CoordinatorEnd& end = end_;
  Duration limit = drain_limit_;
  const bool is_over = all_jobs_are_over();
  if (!is_over && !end.reason.empty()) {
    for (const auto& [id, job] : jobs_) job->announce_end(end, id == host_job_);
    drain_limit_ = limit = std::min(limit, kAnnouncementTimeout);
  }
  if (limit <= Duration::zero() || !has_nodes() || (!is_over && end.reason.empty())) {
    finish_drain();
  } else {
    drain_timer_.arm(add_saturating(loop_.now(), limit));
  }
}

void CoordinatorService::Impl::finish_drain() {
  drain_timer_.disarm();
  processing_timer_.disarm();
  if (state_file_ != nullptr) store_state();
  for (const auto& [id, job] : jobs_) job->end_observation("the coordinator has ended");
  // Not reported to the jobs: the coordinator itself ends their sessions.
  sessions_.streams.abandon();
  peers_.clear();
  has_changes_.clear();
  jobs_.clear();
  num_sessions_.set(0);
  num_jobs_.set(0);
  // Until the socket closes, the server still identifies itself as a coordinator, and closes every
  // session: a client must not take it for a plain store.
  store_->accept_sessions([](const os::DetachedStream&) {}, sessions_.tokens != nullptr);
  store_->drain(drain_limit_, std::exchange(on_drained_, nullptr));
}

CoordinatorService::CoordinatorService(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CoordinatorService::~CoordinatorService() = default;

Result<std::unique_ptr<CoordinatorService>> CoordinatorService::open(
    os::EventLoop* loop, const CoordinatorOptions& options, CoordinatorHost host) {
  auto tokens = open_tokens(options);
  if (!tokens.ok()) return tokens.status();
  auto store = StoreService::open(
      loop, {.host = options.host, .port = options.port, .limits = options.store_limits});
  if (!store.ok()) return store.status();
  auto impl =
      std::make_unique<Impl>(loop, options, std::move(host), *std::move(store), *std::move(tokens));
  if (Status loaded = impl->load(); !loaded.ok()) return loaded;
  return std::unique_ptr<CoordinatorService>(new CoordinatorService(std::move(impl)));
}

std::uint16_t CoordinatorService::port() const { return impl_->store().port(); }
const std::string& CoordinatorService::host() const { return impl_->store().host(); }
CoordinatorStats CoordinatorService::stats() const { return impl_->stats(); }
std::string CoordinatorService::describe() const { return impl_->describe(); }
Status CoordinatorService::succeed(const succession::StartCoordinator& start, const NodeId& self) {
  return impl_->succeed(start, self);
}
void CoordinatorService::direct_to(const std::string& address) { impl_->direct_to(address); }
void CoordinatorService::on_succession(const succession::Action& action) {
  impl_->on_host_succession(action);
}
void CoordinatorService::drain(Duration limit, std::function<void()> done,
                               const CoordinatorEnd& end) {
  impl_->drain(limit, end, std::move(done));
}

}  // namespace elastic::host
