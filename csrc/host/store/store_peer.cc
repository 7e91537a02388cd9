#include "host/store/store_peer.h"

#include <algorithm>
#include <utility>

#include "core/session/session_wire.h"
#include "os/base/descriptor_limit.h"

// Theory of operation. The requests of a turn are executed directly on the stream's bytes, and the
// replies are appended to the stream's turn output. Messages to other connections, whose waits a
// request has ended, are written to their streams and sent when all handlers of the iteration have
// returned, so that several messages to one client share a segment (os/net/stream.cc).

namespace elastic::host {
namespace {

// A client that does not read its replies is not read from while more bytes are unsent.
constexpr std::size_t kUnsentPauseBytes = 256 << 10;
// The longest request of a client that may only look for a coordinator.
constexpr std::size_t kFencedBytesMax = 4 << 10;
// The workers of one host may all connect before the first one has sent VALIDATE.
constexpr std::size_t kPendingPerAddressMin = 64;

}  // namespace

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

std::size_t pending_per_address(const StoreLimits& limits) {
  if (limits.pending_per_address_max > 0) return limits.pending_per_address_max;
  const std::size_t possible = std::min(limits.connections_max, os::descriptor_limit());
  return std::max(kPendingPerAddressMin, possible / 4);
}

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
  // A client outside of the fence is pending until it has proved a token, whatever it sends.
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

}  // namespace elastic::host
