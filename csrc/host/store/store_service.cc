#include "host/store/store_service.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "core/session/session_wire.h"
#include "host/base/service_thread.h"
#include "os/base/process.h"
#include "os/loop/event_loop.h"
#include "os/loop/thread.h"

// Theory of operation. The service owns the listening socket and the connections; each connection
// handles its own requests. Those of a turn are executed directly on the stream's bytes, and the
// replies are appended to the stream's turn output. Messages to other connections, whose waits a
// request has ended, are written to their streams. The pending work of the streams (these messages,
// requests that were held back, removal) is done when all handlers of the iteration have returned,
// so that several messages to one client share a segment (os/net/stream.cc).
//
// If no descriptor is left for clients, the oldest connection that has not sent VALIDATE is closed
// for a new one. If there is none, the listener pauses and connections wait in the kernel's queue.
// It resumes when a connection closes, and also after a pause, because descriptors may be freed
// elsewhere in the process.

namespace elastic::host {
namespace {

// A client that does not read its replies is not read from while more bytes are unsent.
constexpr std::size_t kUnsentPauseBytes = 256 << 10;
// The longest request of a client that may only look for a coordinator.
constexpr std::size_t kFencedBytesMax = 4 << 10;
// The workers of one host may all connect before the first one has sent VALIDATE.
constexpr std::size_t kPendingPerAddressMin = 64;
// Of the quarter of the descriptors that unauthenticated clients may use, this part is for those
// that have begun a session's handshake. A handshake costs memory, so there is a maximum.
constexpr std::size_t kHandshakesPart = 4;
constexpr std::size_t kHandshakesMin = 16;
constexpr std::size_t kHandshakesMax = 1024;

// Connections accepted in one iteration: a flood of new workers must not delay connected ones.
constexpr int kAcceptsPerTurn = 64;
// More than most kernels queue (net.core.somaxconn).
constexpr int kQueueMax = 65536;
// The approximate memory of a connection without its buffers, including its slot in the loop.
constexpr std::size_t kConnectionBytes = 256;
// Descriptors for which the process has room from the start: enough for some thousand nodes.
constexpr std::size_t kRoomForConnections = 16384;

}  // namespace

void StoreContext::publish() {
  if (table.num_keys() != keys.get()) last_key = loop.now();
  keys.set(table.num_keys());
  bytes.set(budget.used());
}

StoreContext::StoreContext(os::EventLoop* event_loop, const StoreLimits& store_limits,
                           std::uint64_t seed, std::function<void()> on_pending)
    : loop(*event_loop),
      limits(store_limits),
      budget(limits.total_bytes_max),
      table(limits, &budget, seed),
      streams(event_loop, &budget,
              {.output_bytes_max = limits.output_bytes_max, .pause_bytes = kUnsentPauseBytes},
              std::move(on_pending)),
      pending(pending_per_address(limits)) {}

std::size_t unauthenticated_max(const StoreLimits& limits) {
  return std::min(limits.connections_max, os::descriptor_limit()) / 4;
}

std::size_t pending_per_address(const StoreLimits& limits) {
  if (limits.pending_per_address_max > 0) return limits.pending_per_address_max;
  return std::max(kPendingPerAddressMin, unauthenticated_max(limits));
}

std::size_t handshakes_max(const StoreLimits& limits) {
  return std::clamp(unauthenticated_max(limits) / kHandshakesPart, kHandshakesMin, kHandshakesMax);
}

// ---- One client.

Result<std::unique_ptr<StorePeer>> StorePeer::create(StoreContext* context, os::UniqueFd fd,
                                                     const os::SocketAddress& remote) {
  std::unique_ptr<StorePeer> self(new StorePeer(context));
  if (Status started = self->stream_.start({.fd = std::move(fd)}); !started.ok()) return started;
  self->stream_.set_deadline(context->loop.now() + context->limits.validate_timeout);
  self->is_fenced_ = context->may_use != nullptr;
  self->pending_ = context->pending.add(remote.host(), [peer = self.get()] { peer->reject(); });
  return self;
}

// Executes the complete requests at the beginning of `bytes` and returns their size.
std::size_t StorePeer::on_bytes(std::string_view bytes) {
  std::string* const replies = stream_.turn_output();
  wire::Request request;
  std::size_t used = 0;
  std::uint64_t requests = 0;
  while (used < bytes.size()) {
    if (found_coordinator_ && begins_session(bytes[used])) {
      hand_over(bytes.substr(used));
      used = bytes.size();
      break;
    }
    const wire::DecodeResult decoded = decoder_.decode(bytes.substr(used), &request);
    if (decoded.status == wire::DecodeStatus::kNeedMore) {
      // Only a checked key may follow VALIDATE and PING there.
      if (is_fenced_ && bytes.size() - used > kFencedBytesMax) reject();
      break;
    }
    const bool is_request = decoded.status == wire::DecodeStatus::kRequest;
    if (is_request && is_check_of(session::kReservedKey, request)) {
      found_coordinator_ = true;
      replies->push_back(wire::kReady);
    } else if (is_request && context_.needs_token && is_check_of(session::kTokenKey, request)) {
      replies->push_back(wire::kReady);
    } else if (is_request && is_fenced_ && !may_serve(request)) {
      context_.on_refused(stream_.remote().host());
      stream_.flush();
      reject();
      break;
    } else if (decoded.status == wire::DecodeStatus::kViolation ||
               context_.table.serve(request, this, replies, &context_.released) != nullptr) {
      stream_.flush();  // the replies to the requests before this one
      reject();
      break;
    }
    used += decoded.bytes;
    ++requests;
    if (!context_.released.empty()) release_others();
    if (stream_.should_pause()) break;
  }
  // A client that may not use the store (is_fenced_) stays pending until it begins a session.
  if (pending_ != nullptr && decoder_.is_validated() && !is_fenced_) {
    if (!context_.first_client) context_.first_client = context_.loop.now();
    pending_.reset();
    stream_.clear_deadline();
  }
  context_.requests.add(requests);
  context_.publish();  // before the replies: a client that has its reply finds it counted
  return used;
}

// Whether a client asks for one of the keys that only a coordinator has.
bool StorePeer::is_check_of(std::string_view key, const wire::Request& request) const {
  return context_.on_session != nullptr && request.opcode == wire::Opcode::kCheck &&
         request.items.size() == 1 && request.items.begin().next() == key;
}

// For a client that was outside of the fence when it connected: a session of its host may have
// begun since.
bool StorePeer::may_serve(const wire::Request& request) {
  is_fenced_ = !context_.may_use(stream_.remote(), stream_.local());
  return !is_fenced_ || request.opcode == wire::Opcode::kValidate ||
         request.opcode == wire::Opcode::kPing;
}

bool StorePeer::begins_session(char first) const {
  return first == session::kMagic[0] || (context_.needs_token && first == session::kTlsFirstByte);
}

// Converts the connection to a session. A client that has not read the reply to its CHECK cannot
// know yet that this is a coordinator: it is treated as a store client.
void StorePeer::hand_over(std::string_view unread) {
  stream_.flush();
  if (!stream_.can_detach()) {
    reject();
    return;
  }
  cancel();
  pending_.reset();  // it is pending where the session is accepted
  context_.on_session(stream_.detach(unread));
}

// Notifies the clients whose waits a request has ended.
void StorePeer::release_others() {
  for (StoreTable::Waiter* waiter : context_.released) {
    auto* connection = static_cast<StorePeer*>(waiter);
    if (connection == this) {
      stream_.turn_output()->push_back(wire::kStopWaiting);  // after its own replies of this turn
    } else {
      connection->stream_.write(std::string_view(&wire::kStopWaiting, 1));
    }
  }
  context_.released.clear();
}

void StorePeer::on_end(os::Stream::End why, int) {
  cancel();
  pending_.reset();
  const bool is_gone = why == os::Stream::End::kClosedByPeer || why == os::Stream::End::kBroken;
  if (!is_gone) context_.connections_rejected.add(1);
}

void StorePeer::reject() {
  if (!stream_.is_open()) return;
  context_.connections_rejected.add(1);
  cancel();
  pending_.reset();
  stream_.close();
}

// ---- The service.

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
      accept_timer_(loop, [this] { watch_listener(); }),
      drain_timer_(loop, [this] { cut_all(); }) {
  context_.on_closed = [this](StorePeer* connection) { remove(connection); };
}

StoreService::~StoreService() {
  draining_ = false;
  cut_all();
}

void StoreService::fence(Fence may_use, std::function<void(const std::string& host)> on_refused) {
  context_.may_use = std::move(may_use);
  context_.on_refused = std::move(on_refused);
  const std::size_t unauthenticated = unauthenticated_max(context_.limits);
  const std::size_t handshakes = std::min(unauthenticated, handshakes_max(context_.limits));
  context_.pending.set_total_max(std::max(kPendingPerAddressMin, unauthenticated - handshakes));
}

void StoreService::pause_accepting() {
  is_paused_ = true;
  accept_timer_.disarm();
  if (listener_watch_.active()) listener_watch_.modify(0);
}

void StoreService::resume_accepting() {
  is_paused_ = false;
  watch_listener();
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
      accept_timer_.arm_after(kAcceptPause);
      return;
    }
  }
}

void StoreService::watch_listener() {
  accept_timer_.disarm();
  if (listener_watch_.active() && !is_paused_) listener_watch_.modify(EPOLLIN);
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
  if (accept_timer_.armed()) watch_listener();  // a descriptor is free again
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

namespace elastic {

class StoreServer::Impl {
 public:
  std::unique_ptr<host::ServiceThread<host::StoreService>> service;
};

StoreServer::StoreServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StoreServer::~StoreServer() = default;

Result<std::unique_ptr<StoreServer>> StoreServer::start(const StoreServerOptions& options) {
  auto service = host::ServiceThread<host::StoreService>::start("elastic-store", options);
  if (!service.ok()) return service.status();
  return std::unique_ptr<StoreServer>(
      new StoreServer(std::make_unique<Impl>(Impl{*std::move(service)})));
}

std::uint16_t StoreServer::port() const { return impl_->service->port(); }
const std::string& StoreServer::host() const { return impl_->service->host(); }
StoreServerStats StoreServer::stats() const { return impl_->service->stats(); }
void StoreServer::close(Duration drain) { impl_->service->close(drain); }

}  // namespace elastic
