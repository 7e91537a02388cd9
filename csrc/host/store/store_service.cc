#include "host/store/store_service.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "host/base/connection_limits.h"
#include "host/base/memory_return.h"
#include "host/store/store_peer.h"
#include "os/loop/descriptor_table.h"
#include "os/loop/random_seed.h"
#include "os/net/listener.h"

// Theory of operation. The service owns the listening socket and the connections; each connection
// handles its own requests (store_peer.cc). The pending work of the streams (sending wake-ups,
// requests that were held back, removal) is done at the end of an iteration, after all descriptors
// (os/net/stream.cc).
//
// If no descriptor is left for clients, the oldest connection that has not sent VALIDATE is closed
// for a new one. If there is none, the listener pauses and connections wait in the kernel's queue.
// It resumes when a connection closes, and also after a pause, because descriptors may be freed
// elsewhere in the process.

namespace elastic::host {
namespace {

// Connections accepted in one iteration: a flood of new workers must not delay connected ones.
constexpr int kAcceptsPerTurn = 64;
// More than most kernels queue (net.core.somaxconn).
constexpr int kQueueMax = 65536;
// The approximate memory of a connection without its buffers, including its slot in the loop.
constexpr std::size_t kConnectionBytes = 256;
// Descriptors for which the process has room from the start: those of a job of some thousand nodes.
constexpr std::size_t kRoomForConnections = 16384;

}  // namespace

class StoreService::Impl final : public os::EventLoop::FdHandler {
 public:
  Impl(os::EventLoop* loop, os::Listener listener, const StoreLimits& limits)
      : loop_(*loop),
        context_(loop, limits, os::random_seed(), [this] { process_pending(); }),
        listener_(std::move(listener)),
        host_(listener_.address().host()),
        port_(listener_.address().port()),
        memory_return_(loop),
        accept_timer_(loop, [this] { resume_accepting(); }),
        drain_timer_(loop, [this] { cut_all(); }) {
    context_.on_closed = [this](StorePeer* connection) { remove(connection); };
  }
  ~Impl() override {
    draining_ = false;
    cut_all();
  }

  Status watch_listener() {
    auto watch = loop_.watch(listener_.fd(), EPOLLIN, this);
    if (!watch.ok()) return watch.status();
    listener_watch_ = std::move(*watch);
    return {};
  }

  void on_ready(std::uint32_t) override { accept_some(); }

  std::uint16_t port() const { return port_; }
  const std::string& host() const { return host_; }
  StoreServerStats stats() const;
  std::optional<Instant> first_client() const { return context_.first_client; }
  std::optional<Instant> last_key() const { return context_.last_key; }
  void accept_sessions(SessionSink sink, bool needs_token) {
    context_.on_session = std::move(sink);
    context_.needs_token = needs_token;
  }
  void fence(Fence may_use, std::function<void(const std::string& host)> on_refused) {
    context_.may_use = std::move(may_use);
    context_.on_refused = std::move(on_refused);
  }
  void hold() {
    is_held_ = true;
    accept_timer_.disarm();
    if (listener_watch_.active()) listener_watch_.modify(0);
  }
  void release() {
    is_held_ = false;
    resume_accepting();
  }
  void reset();
  void drain(Duration drain, std::function<void()> done);

 private:
  os::Listener::AcceptStatus accept_one();
  void accept_some();
  void resume_accepting();
  void process_pending();
  void remove(StorePeer* connection);
  void cut_all();
  void finish_drain();
  void publish();
  std::size_t bytes_held() const {
    return context_.budget.used() + connections_.size() * kConnectionBytes;
  }

  os::EventLoop& loop_;
  StoreContext context_;
  os::Listener listener_;
  const std::string host_;
  const std::uint16_t port_;
  std::vector<std::unique_ptr<StorePeer>> connections_;
  bool draining_ = false;
  bool is_held_ = false;
  std::shared_ptr<std::function<void()>> on_drained_;  // see finish_drain()
  MemoryReturn memory_return_;
  os::EventLoop::Timer accept_timer_;  // armed while accepting pauses
  os::EventLoop::Timer drain_timer_;
  os::EventLoop::Watch listener_watch_;
};

StoreServerStats StoreService::Impl::stats() const {
  return {.connections = context_.connections.get(),
          .connections_total = context_.connections_total.get(),
          .connections_rejected = context_.connections_rejected.get(),
          .requests = context_.requests.get(),
          .keys = context_.keys.get(),
          .bytes = context_.bytes.get()};
}

os::Listener::AcceptStatus StoreService::Impl::accept_one() {
  os::UniqueFd fd;
  os::SocketAddress remote;
  const auto status = listener_.accept(&fd, &remote);
  if (status != os::Listener::AcceptStatus::kAccepted) return status;
  context_.connections_total.add(1);
  auto connection = connections_.size() < context_.limits.connections_max
                        ? StorePeer::create(&context_, std::move(fd), remote)
                        : Status(StatusCode::kResourceExhausted, "connections_max is reached");
  if (connection.ok()) {
    (*connection)->index = connections_.size();
    connections_.push_back(std::move(*connection));
    publish();
  } else {
    context_.connections_rejected.add(1);
  }
  return status;
}

void StoreService::Impl::accept_some() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    const auto status = accept_one();
    if (status == os::Listener::AcceptStatus::kEmpty) return;
    if (status == os::Listener::AcceptStatus::kExhausted) {
      if (context_.pending.close_oldest()) continue;
      listener_watch_.modify(0);
      accept_timer_.arm(loop_.now() + kAcceptPause);
      return;
    }
  }
}

void StoreService::Impl::resume_accepting() {
  accept_timer_.disarm();
  if (listener_watch_.active() && !is_held_) listener_watch_.modify(EPOLLIN);
}

void StoreService::Impl::process_pending() {
  context_.streams.process_pending();
  if (draining_ && connections_.empty()) finish_drain();
}

void StoreService::Impl::remove(StorePeer* connection) {
  memory_return_.update(bytes_held());
  const std::size_t index = connection->index;
  std::swap(connections_[index], connections_.back());
  connections_[index]->index = index;
  connections_.pop_back();
  memory_return_.update(bytes_held());
  publish();
  if (accept_timer_.armed()) resume_accepting();  // a descriptor is free again
}

void StoreService::Impl::publish() {
  context_.connections.set(connections_.size());
  context_.publish();
}

void StoreService::Impl::cut_all() {
  context_.streams.abandon();
  memory_return_.update(bytes_held());
  connections_.clear();
  memory_return_.update(bytes_held());
  publish();
  if (draining_) finish_drain();
}

void StoreService::Impl::reset() {
  cut_all();
  // Connections in the kernel's queue belong to the time before the reset, too.
  for (int i = 0; i < kQueueMax && listener_watch_.active(); ++i) {
    const auto status = accept_one();
    if (status != os::Listener::AcceptStatus::kAccepted &&
        status != os::Listener::AcceptStatus::kGone) {
      break;
    }
    connections_.clear();
  }
  context_.first_client.reset();
  context_.table.clear();
  publish();
  context_.last_key.reset();
}

void StoreService::Impl::drain(Duration drain, std::function<void()> done) {
  accept_some();
  listener_watch_.reset();
  accept_timer_.disarm();
  listener_.close();
  draining_ = true;
  on_drained_ = std::make_shared<std::function<void()>>(std::move(done));
  if (drain <= Duration::zero() || connections_.empty()) {
    cut_all();
    return;
  }
  drain_timer_.arm(add_saturating(loop_.now(), drain));
  for (const auto& connection : connections_) connection->drain();
}

// The callback may destroy this object, so it is called when no member function is on the stack,
// and not at all if the object was destroyed before.
void StoreService::Impl::finish_drain() {
  draining_ = false;
  drain_timer_.disarm();
  loop_.defer([done = std::weak_ptr(on_drained_)] {
    if (const auto callback = done.lock()) (*callback)();
  });
}

StoreService::StoreService(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StoreService::~StoreService() = default;

Result<std::unique_ptr<StoreService>> StoreService::open(os::EventLoop* loop,
                                                         const StoreServerOptions& options) {
  auto listener = os::Listener::open(options.host, options.port);
  if (!listener.ok()) return listener.status();
  listener->reserve_descriptors(options.limits.descriptors_reserved);
  os::enlarge_descriptor_table(std::min(options.limits.connections_max, kRoomForConnections));
  auto impl = std::make_unique<Impl>(loop, std::move(*listener), options.limits);
  if (Status watched = impl->watch_listener(); !watched.ok()) return watched;
  return std::unique_ptr<StoreService>(new StoreService(std::move(impl)));
}

std::uint16_t StoreService::port() const { return impl_->port(); }
const std::string& StoreService::host() const { return impl_->host(); }
StoreServerStats StoreService::stats() const { return impl_->stats(); }
std::optional<Instant> StoreService::first_client() const { return impl_->first_client(); }
std::optional<Instant> StoreService::last_key() const { return impl_->last_key(); }
void StoreService::accept_sessions(SessionSink sink, bool needs_token) {
  impl_->accept_sessions(std::move(sink), needs_token);
}
void StoreService::fence(Fence may_use, std::function<void(const std::string& host)> on_refused) {
  impl_->fence(std::move(may_use), std::move(on_refused));
}
void StoreService::hold() { impl_->hold(); }
void StoreService::release() { impl_->release(); }
void StoreService::reset() { impl_->reset(); }
void StoreService::drain(Duration drain, std::function<void()> done) {
  impl_->drain(drain, std::move(done));
}

}  // namespace elastic::host
