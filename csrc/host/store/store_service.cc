#include "host/store/store_service.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "host/base/connection_limits.h"
#include "os/loop/descriptor_table.h"
#include "os/loop/random_seed.h"

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
// Descriptors for which the process has room from the start: enough for some thousand nodes.
constexpr std::size_t kRoomForConnections = 16384;

}  // namespace

Result<std::unique_ptr<StoreService>> StoreService::open(os::EventLoop* loop,
                                                         const StoreServerOptions& options) {
  auto listener = os::Listener::open(options.host, options.port);
  if (!listener.ok()) return listener.status();
  listener->reserve_descriptors(options.limits.descriptors_reserved);
  os::enlarge_descriptor_table(std::min(options.limits.connections_max, kRoomForConnections));
  std::unique_ptr<StoreService> self(new StoreService(loop, std::move(*listener), options.limits));
  auto watch = loop->watch(self->listener_.fd(), EPOLLIN, self.get());
  if (!watch.ok()) return watch.status();
  self->listener_watch_ = std::move(*watch);
  return self;
}

StoreService::StoreService(os::EventLoop* loop, os::Listener listener, const StoreLimits& limits)
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

StoreService::~StoreService() {
  draining_ = false;
  cut_all();
}

void StoreService::hold() {
  is_held_ = true;
  accept_timer_.disarm();
  if (listener_watch_.active()) listener_watch_.modify(0);
}

void StoreService::release() {
  is_held_ = false;
  resume_accepting();
}

std::size_t StoreService::bytes_held() const {
  return context_.budget.used() + connections_.size() * kConnectionBytes;
}

StoreServerStats StoreService::stats() const {
  return {.connections = context_.connections.get(),
          .connections_total = context_.connections_total.get(),
          .connections_rejected = context_.connections_rejected.get(),
          .requests = context_.requests.get(),
          .keys = context_.keys.get(),
          .bytes = context_.bytes.get()};
}

os::Listener::AcceptStatus StoreService::accept_one() {
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

void StoreService::accept_some() {
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

void StoreService::resume_accepting() {
  accept_timer_.disarm();
  if (listener_watch_.active() && !is_held_) listener_watch_.modify(EPOLLIN);
}

void StoreService::process_pending() {
  context_.streams.process_pending();
  if (draining_ && connections_.empty()) finish_drain();
}

void StoreService::remove(StorePeer* connection) {
  memory_return_.update(bytes_held());
  const std::size_t index = connection->index;
  std::swap(connections_[index], connections_.back());
  connections_[index]->index = index;
  connections_.pop_back();
  memory_return_.update(bytes_held());
  publish();
  if (accept_timer_.armed()) resume_accepting();  // a descriptor is free again
}

void StoreService::publish() {
  context_.connections.set(connections_.size());
  context_.publish();
}

void StoreService::cut_all() {
  context_.streams.abandon();
  memory_return_.update(bytes_held());
  connections_.clear();
  memory_return_.update(bytes_held());
  publish();
  if (draining_) finish_drain();
}

void StoreService::reset() {
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

void StoreService::drain(Duration drain, std::function<void()> done) {
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
void StoreService::finish_drain() {
  draining_ = false;
  drain_timer_.disarm();
  loop_.defer([done = std::weak_ptr(on_drained_)] {
    if (const auto callback = done.lock()) (*callback)();
  });
}

}  // namespace elastic::host
