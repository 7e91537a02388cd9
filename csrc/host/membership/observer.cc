#include "elastic/observer.h"

#include <map>
#include <mutex>
#include <utility>
#include <variant>

#include "core/session/session_route.h"
#include "core/session/session_wire.h"
#include "host/base/framed_peer.h"
#include "host/membership/session_link.h"
#include "os/base/process.h"
#include "os/loop/event_loop.h"
#include "os/loop/thread.h"
#include "os/loop/wait.h"
#include "os/net/local_socket.h"

// Theory of operation. One attempt to connect, then one session. Pages change the nodes that this
// object holds; the last page of a pass, or the beats, complete a snapshot, which replaces the one
// that the caller has not taken yet. Each page is acknowledged, so the coordinator sends no faster
// than this thread reads. A process that does not coordinate the job names the one that does, to
// which the next attempt goes. Where the endpoint's name has several addresses, the next one is
// tried until one leads to the job. At a Unix-domain socket, the job's only agent answers itself.

namespace elastic {
namespace {

constexpr std::size_t kUnsentBytesMax = 1 << 20;
constexpr int kFollowedMax = 8;  // redirections
// A vanished coordinator's host is detected within this: the coordinator sends more often.
constexpr Duration kSilenceMax = std::chrono::seconds(10);

}  // namespace

class Observer::Impl {
 public:
  Impl(ObserverOptions options, os::Notifier changed, std::unique_ptr<os::LoopThread> thread)
      : options_(std::move(options)),
        changed_(std::move(changed)),
        thread_(std::move(thread)),
        group_(std::make_shared<host::PeerGroup>(&thread_->loop(), kUnsentBytesMax,
                                                 2 * kUnsentBytesMax)),
        silence_timer_(&thread_->loop(), [this] {
          const bool is_local = !options_.socket_path.empty();
          fail({StatusCode::kUnavailable,
                (is_local ? "the agent at " + options_.socket_path
                          : "the coordinator at " + options_.endpoint_host) +
                    " sent nothing for ten seconds"});
        }) {
    thread_->call([this] { start(); });
  }
  ~Impl() {
    thread_->call([this] {
      // Here, because a timer of the group may be armed, and timers belong to the loop.
      silence_timer_.disarm();
      attempt_.reset();
      link_.reset();
      group_.reset();
    });
  }

  bool is_in_child() const { return fork_guard_.is_in_child(); }
  Result<std::shared_ptr<const ObservedJob>> next(Instant deadline,
                                                  const std::function<bool()>& interrupted);
  void wake() { changed_.notify(); }

 private:
  void start();
  void connect(const std::string& name, std::uint16_t port, bool is_endpoint);
  bool try_next_address();
  void close();
  void follow(const std::string& address);
  void connected(std::variant<os::DetachedStream, host::SessionAttempt::Failure> outcome);
  void open_session(os::DetachedStream connection);
  void on_message(const session::ServerMessage& message);
  void on(const session::NodePage& page);
  void on(const session::Beats& beats);
  void publish();
  void fail(const Status& why);

  // Constant after construction.
  const ObserverOptions options_;
  const os::ForkGuard fork_guard_;

  os::Notifier changed_;  // any thread
  const std::unique_ptr<os::LoopThread> thread_;

  // Loop thread only.
  std::shared_ptr<host::PeerGroup> group_;
  std::unique_ptr<host::SessionAttempt> attempt_;
  std::unique_ptr<host::SessionLink> link_;
  os::Timer silence_timer_;
  std::shared_ptr<host::Tokens> tokens_;  // null: sessions are not encrypted
  int num_followed_ = 0;
  core::AddressOrder<os::SocketAddress> choice_;  // of the endpoint's addresses
  bool is_at_endpoint_ = true;                    // the attempt, or the session, is at one of them
  std::string tried_;                             // the last one of them that accepted a connection
  bool has_facts_ = false;
  ObservedJob facts_;
  bool is_published_ = true;  // facts_ are in a snapshot
  std::map<NodeId, ObservedNode> nodes_;

  std::mutex mutex_;
  std::shared_ptr<const ObservedJob> newest_;  // guarded by mutex_; null: it was taken
  Status end_;                                 // guarded by mutex_
};

Result<std::shared_ptr<const ObservedJob>> Observer::Impl::next(
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

void Observer::Impl::start() {
  if (!options_.socket_path.empty()) {
    silence_timer_.arm(add_saturating(thread_->loop().now(), kSilenceMax));
    auto connection = os::connect_local(options_.socket_path);
    if (!connection.ok()) return fail(connection.status());
    return open_session({.fd = *std::move(connection)});
  }
  auto tokens = host::open_tokens(options_.token, nullptr);
  if (!tokens.ok()) return fail(tokens.status());
  tokens_ = *std::move(tokens);
  connect(options_.endpoint_host, options_.endpoint_port, true);
}

// False: each address has been tried, or the job was found.
bool Observer::Impl::try_next_address() {
  if (has_facts_ || tried_.empty()) return false;
  choice_.note_dead_end(std::exchange(tried_, ""));
  if (!choice_.has_untried()) return false;
  close();
  num_followed_ = 0;
  connect(options_.endpoint_host, options_.endpoint_port, true);
  return true;
}

void Observer::Impl::close() {
  if (link_ != nullptr) link_->close();
  retire(group_, std::move(link_));
  retire(group_, std::move(attempt_));
}

// The process at the endpoint does not coordinate the job, and knows which one does.
void Observer::Impl::follow(const std::string& address) {
  const auto target = os::parse_address_and_port(address);
  if (!target || ++num_followed_ > kFollowedMax) {
    return fail({StatusCode::kUnavailable, "no coordinator of the job was found at " +
                                               options_.endpoint_host +
                                               (address.empty() ? "" : " or " + address)});
  }
  close();
  connect(target->host(), target->port(), false);
}

void Observer::Impl::connect(const std::string& name, std::uint16_t port, bool is_endpoint) {
  is_at_endpoint_ = is_endpoint;
  using Addresses = host::SessionAttempt::Addresses;
  using Failure = host::SessionAttempt::Failure;
  silence_timer_.arm(add_saturating(thread_->loop().now(), options_.connect_timeout + kSilenceMax));
  attempt_ = std::make_unique<host::SessionAttempt>(
      group_.get(),
      host::SessionAttempt::Options{.host = name,
                                    .port = port,
                                    .limit = options_.connect_timeout,
                                    .node_timeout = kSilenceMax,
                                    .tokens = tokens_,
                                    .job_id = options_.run_id},
      host::SessionAttempt::Sink{
          .route = [this](const Result<Addresses>& found) -> std::variant<Addresses, Failure> {
            if (!found.ok()) return Failure{found.status(), std::nullopt};
            return is_at_endpoint_ ? choice_.order(*found) : *found;
          },
          .on_delay = [](const Status&) {},
          .done = [this](auto outcome) { connected(std::move(outcome)); }});
}

void Observer::Impl::connected(
    std::variant<os::DetachedStream, host::SessionAttempt::Failure> outcome) {
  if (is_at_endpoint_) tried_ = attempt_->peer();
  retire(group_, std::move(attempt_));
  if (auto* failure = std::get_if<host::SessionAttempt::Failure>(&outcome)) {
    return fail(failure->why);
  }
  open_session(std::get<os::DetachedStream>(std::move(outcome)));
}

void Observer::Impl::open_session(os::DetachedStream connection) {
  auto link = host::SessionLink::open(
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

void Observer::Impl::on_message(const session::ServerMessage& message) {
  silence_timer_.arm(add_saturating(thread_->loop().now(), kSilenceMax));
  if (const auto* facts = std::get_if<session::JobFacts>(&message)) {
    const std::string stacks = std::move(facts_.stacks);
    const std::string drain = std::move(facts_.drain);
    const bool is_drain_agreed = facts_.is_drain_agreed;
    const std::string host_answer = std::move(facts_.host_answer);
    const bool is_host_done = facts_.is_host_done;
    facts_ = facts->job;
    facts_.stacks = stacks;
    facts_.drain = drain;
    facts_.is_drain_agreed = is_drain_agreed;
    facts_.host_answer = host_answer;
    facts_.is_host_done = is_host_done;
    is_published_ = false;
    has_facts_ = true;
  } else if (const auto* page = std::get_if<session::NodePage>(&message)) {
    on(*page);
  } else if (const auto* beats = std::get_if<session::Beats>(&message)) {
    on(*beats);
  } else if (const auto* report = std::get_if<session::StacksReport>(&message)) {
    facts_.stacks = report->text;
    publish();
  } else if (const auto* answer = std::get_if<session::DrainReport>(&message)) {
    facts_.drain = answer->text;
    facts_.is_drain_agreed = answer->is_agreed;
    publish();
  } else if (const auto* done = std::get_if<session::HostReport>(&message)) {
    facts_.host_answer = done->text;
    facts_.is_host_done = done->is_done;
    publish();
  } else if (const auto* incumbent = std::get_if<session::Incumbent>(&message)) {
    if (incumbent->is_elsewhere) follow(incumbent->incumbent.address);
  } else if (const auto* refused = std::get_if<rdzv::Refused>(&message)) {
    fail(refused->error);
  } else if (const auto* leaving = std::get_if<session::Leaving>(&message)) {
    if (!is_published_) publish();  // no page follows the last facts
    fail({StatusCode::kUnavailable, leaving->reason});
  }
}

void Observer::Impl::on(const session::NodePage& page) {
  for (const ObservedNode& node : page.nodes) nodes_[node.id] = node;
  for (const NodeId& id : page.removed) nodes_.erase(id);
  link_->send(session::ObserverReady{});
  if (page.is_last) publish();
}

void Observer::Impl::on(const session::Beats& beats) {
  link_->send(session::ObserverReady{});
  if (beats.silence_ms.size() != nodes_.size()) return;
  auto silence = beats.silence_ms.begin();
  for (auto& [id, node] : nodes_) node.silence = std::chrono::milliseconds(*silence++);
  publish();
}

void Observer::Impl::publish() {
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

void Observer::Impl::fail(const Status& why) {
  if (try_next_address()) return;
  silence_timer_.disarm();
  if (link_ != nullptr) link_->close();
  {
    const std::lock_guard lock(mutex_);
    if (end_.ok()) end_ = why;
  }
  changed_.notify();
}

Observer::Observer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Observer::~Observer() {
  // A forked child has no loop thread to stop and join.
  if (impl_->is_in_child()) static_cast<void>(impl_.release());
}

Result<std::unique_ptr<Observer>> Observer::start(ObserverOptions options) {
  const std::string& request = options.host_request;
  if (!request.empty() && request != "exclude" && request != "readmit") {
    return Status(StatusCode::kInvalidArgument,
                  "host_request is \"" + request + "\": expected exclude or readmit");
  }
  Result<os::Notifier> notifier = os::Notifier::create();
  if (!notifier.ok()) return notifier.status();
  Result<std::unique_ptr<os::LoopThread>> thread = os::LoopThread::start("elastic-observe");
  if (!thread.ok()) return thread.status();
  return std::unique_ptr<Observer>(new Observer(
      std::make_unique<Impl>(std::move(options), *std::move(notifier), *std::move(thread))));
}

Result<std::shared_ptr<const ObservedJob>> Observer::next(
    Instant deadline, const std::function<bool()>& interrupted) {
  if (impl_->is_in_child()) {
    return Status(StatusCode::kFailedPrecondition, "the observer belongs to the parent process");
  }
  return impl_->next(deadline, interrupted);
}

void Observer::wake() {
  if (!impl_->is_in_child()) impl_->wake();
}

}  // namespace elastic
