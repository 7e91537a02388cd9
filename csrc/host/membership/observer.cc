#include "elastic/observer.h"

#include <map>
#include <mutex>
#include <utility>
#include <variant>

#include "core/session/session_route.h"
#include "core/session/session_wire.h"
#include "host/base/framed_peer.h"
#include "host/membership/session_link.h"
#include "os/loop/event_loop.h"
#include "os/loop/loop_object.h"
#include "os/loop/wait.h"
#include "os/net/local_socket.h"

// Theory of operation. One attempt to connect, then one session. Pages change the nodes that this
// object holds; the last page of a pass, or the beats, complete a snapshot, which replaces the one
// that the caller has not taken yet. Each page is acknowledged, so the coordinator sends no faster
// than this thread reads. A process that does not coordinate the job names the one that does, to
// which the next attempt goes. Where the endpoint's name has several addresses, the next one is
// tried until one leads to the job. At a Unix-domain socket, the job's only agent answers itself.

namespace elastic::host {
namespace {

constexpr std::size_t kRequestBytesMax = 1 << 20;  // unsent
constexpr int kFollowedMax = 8;                    // redirections
// A vanished coordinator's host is detected within this: the coordinator sends more often.
constexpr Duration kSilenceMax = std::chrono::seconds(10);

}  // namespace

// Loop thread only, except next() and wake().
class Observation {
 public:
  static Result<std::unique_ptr<Observation>> begin(os::EventLoop* loop, ObserverOptions options) {
    Result<os::Notifier> changed = os::Notifier::create();
    if (!changed.ok()) return changed.status();
    return std::make_unique<Observation>(loop, std::move(options), *std::move(changed));
  }
  Observation(os::EventLoop* loop, ObserverOptions options, os::Notifier changed)
      : loop_(*loop),
        options_(std::move(options)),
        changed_(std::move(changed)),
        silence_timer_(loop,
                       [this] {
                         const bool is_local = !options_.socket_path.empty();
                         fail({StatusCode::kUnavailable,
                               (is_local ? "the agent at " + options_.socket_path
                                         : "the coordinator at " + options_.endpoint_host) +
                                   " sent nothing for ten seconds"});
                       }),
        group_(std::make_shared<PeerGroup>(loop, kRequestBytesMax, 2 * kRequestBytesMax)) {
    start();
  }
  Observation(const Observation&) = delete;
  Observation& operator=(const Observation&) = delete;

  // Any thread.
  Result<std::shared_ptr<const ObservedJob>> next(Instant deadline,
                                                  const std::function<bool()>& interrupted);
  void wake() { changed_.notify(); }

 private:
  void start();
  void connect(const std::string& name, std::uint16_t port, bool is_endpoint);
  bool try_next_address();
  void close();
  void follow(const std::string& address);
  void connected(std::variant<os::DetachedStream, SessionAttempt::Failure> outcome);
  void open_session(os::DetachedStream connection);
  void on_message(const session::ServerMessage& message);
  void on(const session::JobFacts& facts);
  void on(const session::NodePage& page);
  void on(const session::Beats& beats);
  void on(const session::StacksReport& report);
  void on(const session::DrainReport& report);
  void on(const session::HostReport& report);
  void on(const session::Incumbent& incumbent);
  void on(const rdzv::Refused& refused) { fail(refused.error); }
  void on(const session::Leaving& leaving);
  template <typename ToNode>
  void on(const ToNode&) {}  // an observer is no node of the job
  void publish();
  void fail(const Status& why);

  os::EventLoop& loop_;
  const ObserverOptions options_;
  os::Notifier changed_;  // any thread

  std::mutex mutex_;
  std::shared_ptr<const ObservedJob> newest_;  // guarded by mutex_; null: it was taken
  Status end_;                                 // guarded by mutex_

  std::shared_ptr<Tokens> tokens_;  // null: sessions are not encrypted
  int num_followed_ = 0;
  core::AddressOrder<os::SocketAddress> choice_;  // of the endpoint's addresses
  bool is_at_endpoint_ = true;                    // the attempt, or the session, is at one of them
  std::string tried_;                             // the last one of them that accepted a connection
  bool has_facts_ = false;
  ObservedJob facts_;
  bool is_published_ = true;  // facts_ are in a snapshot
  std::map<NodeId, ObservedNode> nodes_;
  os::Timer silence_timer_;
  std::shared_ptr<PeerGroup> group_;
  std::unique_ptr<SessionLink> link_;
  std::unique_ptr<SessionAttempt> attempt_;
};

Result<std::shared_ptr<const ObservedJob>> Observation::next(
    Instant deadline, const std::function<bool()>& interrupted) {
  const os::WaitLimits limits{.deadline = deadline, .interrupted = &interrupted};
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (newest_ != nullptr) return std::exchange(newest_, nullptr);
      if (!end_.ok()) return end_;
    }
    if (Status waited = changed_.wait(limits); !waited.ok()) return waited;
    if (interrupted && interrupted()) return Status(StatusCode::kCancelled, "interrupted");
  }
}

void Observation::start() {
  if (!options_.socket_path.empty()) {
    silence_timer_.arm(add_saturating(loop_.now(), kSilenceMax));
    auto connection = os::connect_local(options_.socket_path);
    if (!connection.ok()) return fail(connection.status());
    return open_session({.fd = *std::move(connection)});
  }
  auto tokens = open_tokens(options_.token, nullptr);
  if (!tokens.ok()) return fail(tokens.status());
  tokens_ = *std::move(tokens);
  connect(options_.endpoint_host, options_.endpoint_port, true);
}

// False: each address has been tried, or the job was found.
bool Observation::try_next_address() {
  if (has_facts_ || tried_.empty()) return false;
  choice_.note_dead_end(std::exchange(tried_, ""));
  if (!choice_.has_untried()) return false;
  close();
  num_followed_ = 0;
  connect(options_.endpoint_host, options_.endpoint_port, true);
  return true;
}

void Observation::close() {
  if (link_ != nullptr) link_->close();
  retire(group_, std::move(link_));
  retire(group_, std::move(attempt_));
}

// The process at the endpoint does not coordinate the job, and knows which one does.
void Observation::follow(const std::string& address) {
  const auto target = os::parse_address_and_port(address);
  if (!target || ++num_followed_ > kFollowedMax) {
    return fail({StatusCode::kUnavailable, "no coordinator of the job was found at " +
                                               options_.endpoint_host +
                                               (address.empty() ? "" : " or " + address)});
  }
  close();
  connect(target->host(), target->port(), false);
}

void Observation::connect(const std::string& name, std::uint16_t port, bool is_endpoint) {
  is_at_endpoint_ = is_endpoint;
  using Addresses = SessionAttempt::Addresses;
  using Failure = SessionAttempt::Failure;
  silence_timer_.arm(add_saturating(loop_.now(), options_.connect_timeout + kSilenceMax));
  attempt_ = std::make_unique<SessionAttempt>(
      group_.get(),
      SessionAttempt::Options{.host = name,
                              .port = port,
                              .limit = options_.connect_timeout,
                              .node_timeout = kSilenceMax,
                              .tokens = tokens_,
                              .job_id = options_.run_id},
      SessionAttempt::Sink{
          .route = [this](const Result<Addresses>& found) -> std::variant<Addresses, Failure> {
            if (!found.ok()) return Failure{found.status(), std::nullopt};
            return is_at_endpoint_ ? choice_.order(*found) : *found;
          },
          .on_delay = [](const Status&) {},
          .done = [this](auto outcome) { connected(std::move(outcome)); }});
}

void Observation::connected(std::variant<os::DetachedStream, SessionAttempt::Failure> outcome) {
  if (is_at_endpoint_) tried_ = attempt_->peer();
  retire(group_, std::move(attempt_));
  if (auto* failure = std::get_if<SessionAttempt::Failure>(&outcome)) {
    return fail(failure->why);
  }
  open_session(std::get<os::DetachedStream>(std::move(outcome)));
}

void Observation::open_session(os::DetachedStream connection) {
  auto link = SessionLink::open(
      group_.get(), std::move(connection),
      {.on_message = [this](const session::ServerMessage& message) { on_message(message); },
       .on_lost = [this](const Status& why) { fail(why); }});
  if (!link.ok()) return fail(link.status());
  link_ = *std::move(link);
  session::ClientHello hello;
  hello.job_id = options_.run_id;
  hello.observer = session::ObserverRequest{options_.workers};
  link_->send(hello);
  if (options_.stacks) link_->send(session::RequestStacks{});
  if (options_.drain) {
    session::RequestDrain request{{*options_.drain, options_.drain_reason}};
    if (!options_.drain_node.empty()) request.node = options_.drain_node;
    link_->send(request);
  }
  if (!options_.host_request.empty()) {
    link_->send(session::RequestHost{options_.host, options_.host_reason,
                                     options_.host_request == "readmit"});
  }
}

void Observation::on_message(const session::ServerMessage& message) {
  silence_timer_.arm(add_saturating(loop_.now(), kSilenceMax));
  std::visit([this](const auto& one) { this->on(one); }, message);
}

// The replies to requests are not among the facts that the coordinator sends.
void Observation::on(const session::JobFacts& facts) {
  ObservedJob job = facts.job;
  job.stacks = std::move(facts_.stacks);
  job.drain = std::move(facts_.drain);
  job.is_drain_agreed = facts_.is_drain_agreed;
  job.host_answer = std::move(facts_.host_answer);
  job.is_host_done = facts_.is_host_done;
  facts_ = std::move(job);
  is_published_ = false;
  has_facts_ = true;
}

void Observation::on(const session::NodePage& page) {
  for (const ObservedNode& node : page.nodes) nodes_[node.id] = node;
  for (const NodeId& id : page.removed) nodes_.erase(id);
  link_->send(session::ObserverReady{});
  if (page.is_last) publish();
}

void Observation::on(const session::Beats& beats) {
  link_->send(session::ObserverReady{});
  if (beats.silence_ms.size() != nodes_.size()) return;
  auto silence = beats.silence_ms.begin();
  for (auto& [id, node] : nodes_) node.silence = std::chrono::milliseconds(*silence++);
  publish();
}

void Observation::on(const session::StacksReport& report) {
  facts_.stacks = report.text;
  publish();
}

void Observation::on(const session::DrainReport& report) {
  facts_.drain = report.text;
  facts_.is_drain_agreed = report.is_agreed;
  publish();
}

void Observation::on(const session::HostReport& report) {
  facts_.host_answer = report.text;
  facts_.is_host_done = report.is_done;
  publish();
}

void Observation::on(const session::Incumbent& incumbent) {
  if (incumbent.is_elsewhere) follow(incumbent.incumbent.address);
}

void Observation::on(const session::Leaving& leaving) {
  if (!is_published_) publish();  // no page follows the last facts
  fail({StatusCode::kUnavailable, leaving.reason});
}

void Observation::publish() {
  is_published_ = true;
  auto job = std::make_shared<ObservedJob>(facts_);
  job->nodes.reserve(nodes_.size());
  for (const auto& [id, node] : nodes_) job->nodes.push_back(node);
  {
    const std::lock_guard lock(mutex_);
    newest_ = std::move(job);
  }
  changed_.notify();
}

void Observation::fail(const Status& why) {
  if (try_next_address()) return;
  silence_timer_.disarm();
  if (link_ != nullptr) link_->close();
  {
    const std::lock_guard lock(mutex_);
    if (end_.ok()) end_ = why;
  }
  changed_.notify();
}

}  // namespace elastic::host

namespace elastic {

class Observer::Impl {
 public:
  std::unique_ptr<os::LoopObject<host::Observation>> observation;
};

Observer::Observer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Observer::~Observer() = default;

Result<std::unique_ptr<Observer>> Observer::start(ObserverOptions options) {
  const std::string& request = options.host_request;
  if (!request.empty() && request != "exclude" && request != "readmit") {
    return Status(StatusCode::kInvalidArgument,
                  "host_request is \"" + request + "\": expected exclude or readmit");
  }
  auto observation = os::LoopObject<host::Observation>::start(
      "elastic-observe",
      [&](os::EventLoop* loop) { return host::Observation::begin(loop, std::move(options)); });
  if (!observation.ok()) return observation.status();
  return std::unique_ptr<Observer>(
      new Observer(std::make_unique<Impl>(Impl{*std::move(observation)})));
}

Result<std::shared_ptr<const ObservedJob>> Observer::next(
    Instant deadline, const std::function<bool()>& interrupted) {
  if (impl_->observation->is_in_child()) {
    return Status(StatusCode::kFailedPrecondition, "the observer belongs to the parent process");
  }
  return impl_->observation->object().next(deadline, interrupted);
}

void Observer::wake() {
  if (!impl_->observation->is_in_child()) impl_->observation->object().wake();
}

}  // namespace elastic
