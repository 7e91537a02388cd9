#include "host/succession/voter_links.h"

#include <sys/epoll.h>

#include <chrono>
#include <utility>

#include "os/loop/event_loop.h"
#include "os/net/address.h"
#include "os/net/listener.h"

// Theory of operation. Frames for an address take the open connection that this process has dialed
// there. Without one an attempt begins, and the frames wait for it. Connections that others have
// opened are used for replies only, by their id.

namespace elastic::host {
namespace {

constexpr int kVotersAcceptedPerTurn = 16;
constexpr std::size_t kWaitingFramesMax = 32;  // of one attempt; the oldest one is dropped
constexpr Duration kRejectedInterval = std::chrono::seconds(60);

std::string bytes_of(const voter::Frame& frame) {
  std::string bytes;
  voter::append(&bytes, frame);
  return bytes;
}

}  // namespace

class VoterLinks::Acceptor final : public os::FdHandler {
 public:
  Acceptor(VoterLinks* owner, os::Listener listener)
      : owner_(*owner),
        listener_(std::move(listener)),
        pause_(owner->loop_, [this] { watch_.modify(EPOLLIN); }) {}

  Status watch() {
    auto watch = owner_.loop_->watch(listener_.fd(), EPOLLIN, this);
    if (!watch.ok()) return watch.status();
    watch_ = *std::move(watch);
    return {};
  }
  std::uint16_t port() const { return listener_.address().port(); }

  void on_ready(std::uint32_t) override {
    for (int i = 0; i < kVotersAcceptedPerTurn; ++i) {
      os::UniqueFd fd;
      const auto status = listener_.accept(&fd);
      if (status == os::Listener::AcceptStatus::kEmpty) return;
      if (status == os::Listener::AcceptStatus::kAccepted) {
        owner_.adopt({.fd = std::move(fd)});
      } else if (status == os::Listener::AcceptStatus::kExhausted) {
        if (owner_.pending_.close_oldest()) continue;
        watch_.modify(0);
        pause_.arm(owner_.loop_->now() + kAcceptPause);
        return;
      }
    }
  }

 private:
  VoterLinks& owner_;
  os::Listener listener_;
  os::Timer pause_;
  os::Watch watch_;  // last: destroyed before the members that its handler uses
};

VoterLinks::VoterLinks(os::EventLoop* loop, std::string job_id, std::shared_ptr<Tokens> tokens,
                       const VoterLinkLimits& limits, Sink sink)
    : loop_(loop),
      job_id_(std::move(job_id)),
      tokens_(std::move(tokens)),
      limits_(limits),
      sink_(std::move(sink)),
      group_(loop, limits.unsent_bytes_max, limits.buffered_bytes_max),
      pending_(limits.pending_per_address_max) {}

VoterLinks::~VoterLinks() {
  attempts_.clear();
  group_.streams.abandon();
  links_.clear();
}

Status VoterLinks::listen(const std::string& host, const PortRange& ports) {
  Status fault;
  for (std::uint32_t port = ports.first; port <= ports.last; ++port) {
    // Before open(), which searches for the owner of a used port.
    if (ports.first != ports.last) {
      fault = os::Listener::check(host, static_cast<std::uint16_t>(port));
      if (fault.code() == StatusCode::kUnavailable) continue;
    }
    auto listener = os::Listener::open(host, static_cast<std::uint16_t>(port));
    if (!listener.ok()) {
      fault = listener.status();
      if (fault.code() == StatusCode::kUnavailable) continue;
      return fault;
    }
    auto acceptor = std::make_unique<Acceptor>(this, *std::move(listener));
    if (Status watched = acceptor->watch(); !watched.ok()) return watched;
    acceptor_ = std::move(acceptor);
    return {};
  }
  return fault;
}

std::uint16_t VoterLinks::port() const { return acceptor_ == nullptr ? 0 : acceptor_->port(); }

void VoterLinks::send(ConnectionId connection, const std::string& address, std::string_view frame) {
  const auto direct = links_.find(connection);
  if (direct != links_.end() && direct->second->is_ready()) return direct->second->send(frame);
  if (address.empty()) return;
  for (const auto& [id, link] : links_) {
    if (link->address == address && link->is_ready()) return link->send(frame);
  }
  Attempt& attempt = attempts_[address];
  if (attempt.waiting.size() >= kWaitingFramesMax) attempt.waiting.erase(attempt.waiting.begin());
  attempt.waiting.emplace_back(frame);
  if (attempt.dialer == nullptr && attempt.link == nullptr) dial(address, &attempt);
}

// ---- Connections that this process opens.

void VoterLinks::dial(const std::string& address, Attempt* attempt) {
  const auto target = os::parse_address_and_port(address);
  if (!target) {
    attempts_.erase(address);
    return;
  }
  attempt->dialer =
      std::make_unique<os::Dialer>(loop_, std::vector<os::SocketAddress>{*target},
                                   os::Dialer::kPace, loop_->now() + limits_.connect_timeout,
                                   [this, address](Result<os::Dialer::Connection> connection) {
                                     dialed(address, std::move(connection));
                                   });
}

void VoterLinks::dialed(const std::string& address, Result<os::Dialer::Connection> connection) {
  Attempt& attempt = attempts_.at(address);
  attempt.dialer.reset();
  if (!connection.ok()) return fail(address, connection.status());
  auto link = std::make_unique<VoterLink>(this, ++last_id_, address);
  if (Status started = link->start({.fd = std::move(connection->fd)}); !started.ok()) {
    return fail(address, started);
  }
  attempt.link = link.get();
  links_.emplace(last_id_, std::move(link));
}

void VoterLinks::fail(const std::string& address, const Status& why) {
  attempts_.erase(address);
  // The usual causes (kUnavailable) show in the job's events; any other cause needs an operator.
  if (why.code() != StatusCode::kUnavailable) {
    log_rejected("the voter port at " + address + " cannot be used: " + std::string(why.message()));
  }
  const core::CallGuard::Scope calling(&guard_);
  if (sink_.on_lost) sink_.on_lost(address, why);
}

// ---- All connections.

void VoterLinks::adopt(os::DetachedStream connection) {
  if (pending_.size() >= limits_.pending_max) pending_.close_oldest();
  auto link = std::make_unique<VoterLink>(this, ++last_id_, "");
  if (link->start(std::move(connection)).ok()) links_.emplace(last_id_, std::move(link));
}

void VoterLinks::greeted(VoterLink* link) {
  limit_open(*link);
  const auto found = attempts_.find(link->address);
  if (found == attempts_.end() || found->second.link != link) return;
  const std::vector<std::string> waiting = std::move(found->second.waiting);
  attempts_.erase(found);
  for (const std::string& frame : waiting) link->send(frame);
}

void VoterLinks::closed(VoterLink* link, const Status& why) {
  if (!link->is_accepted()) return fail(std::string(link->address), why);
  if (why.code() == StatusCode::kUnavailable) return;  // the usual end
  log_rejected("a connection of " + link->remote().host() +
               " to the voter port is closed: " + std::string(why.message()));
}

void VoterLinks::remove(VoterLink* link) {
  const core::CallGuard::Scope calling(&guard_);
  if (sink_.on_ended) sink_.on_ended(link->id);
  links_.erase(link->id);
}

std::string VoterLinks::host_of(ConnectionId connection) const {
  return links_.at(connection)->remote().host();
}

const std::string& VoterLinks::job_of(ConnectionId connection) const {
  return links_.at(connection)->job;
}

// A peer that connects without end must not take the places of others.
void VoterLinks::limit_open(const VoterLink& newest) {
  std::size_t total = 0;
  std::size_t of_address = 0;
  VoterLink* idlest = nullptr;
  VoterLink* idlest_of_address = nullptr;
  const auto idler = [](VoterLink* a, VoterLink* b) {
    return a == nullptr || b->last_active < a->last_active ? b : a;
  };
  for (const auto& [id, link] : links_) {
    if (!link->is_ready() || link->is_accepted() != newest.is_accepted()) continue;
    ++total;
    idlest = idler(idlest, link.get());
    if (link->remote().host() != newest.remote().host()) continue;
    ++of_address;
    idlest_of_address = idler(idlest_of_address, link.get());
  }
  if (!newest.is_accepted()) {
    if (total > limits_.opened_max) idlest->close();
  } else if (of_address > limits_.accepted_per_address_max) {
    idlest_of_address->close();
  } else if (total > limits_.accepted_max) {
    idlest->close();
  }
}

// Limited, because any client may connect without limit.
void VoterLinks::log_rejected(const std::string& message) {
  if (!sink_.log) return;
  if (loop_->now() >= rejected_end_) {
    if (rejected_ > 1) {
      sink_.log(std::to_string(rejected_ - 1) + " more connections between voters were closed");
    }
    rejected_ = 0;
    rejected_end_ = loop_->now() + kRejectedInterval;
  }
  if (++rejected_ == 1) sink_.log(message);
}

Status VoterLink::start(os::DetachedStream connection) {
  os::expect_liveness(connection.fd.get(), owner_.limits_.silence_max);
  Tokens* const tokens = owner_.tokens_.get();
  const Duration timeout = owner_.limits_.greeting_timeout;
  if (is_accepted()) {
    return accept(std::move(connection),
                  {.greeting_timeout = timeout, .pending = &owner_.pending_, .tokens = tokens});
  }
  if (tokens != nullptr) {
    auto tls = tokens->connect(owner_.job_id_);
    if (!tls.ok()) return tls.status();
    connection.tls = *std::move(tls);
  }
  if (Status started = connect(std::move(connection)); !started.ok()) return started;
  stream().set_keep_alive(kKeepAliveInterval);
  stream().set_deadline(owner_.loop_->now() + timeout);
  write(bytes_of(voter::Greeting{.job_id = owner_.job_id_}));
  return {};
}

// The peer knows a key of this process; it may be an observer's or another job's.
void VoterLink::on_secured() {
  if (!is_accepted()) return;
  const auto identity = proved_identity();
  const bool is_any = owner_.job_id_.empty();
  if (!identity || identity->role != PeerRole::kNode ||
      (!is_any && identity->job_id != owner_.job_id_)) {
    return reject(Status(StatusCode::kFailedPrecondition,
                         "its token does not allow it to take part in the job " + owner_.job_id_));
  }
  job = identity->job_id;
}

void VoterLink::send(std::string_view frame) {
  last_active = ++owner_.activity_;
  write(voter::payload_head(frame.size()));
  write(frame);
}

// Tells a peer that speaks the protocol why it cannot take part, so that its side can report it.
void VoterLink::reject(const Status& why) {
  if (!is_accepted() || why.code() != StatusCode::kFailedPrecondition) {
    return FramedPeer::reject(why);
  }
  finish(bytes_of(voter::Refused{std::string(why.message())}));
  owner_.closed(this, why);
}

void VoterLink::on_frame(std::string_view bytes) {
  voter::Frame frame;
  const voter::DecodeResult decoded = voter::decode(bytes, voter::kFrameBytesMax, &frame);
  if (decoded.status == voter::DecodeStatus::kViolation) return reject(decoded.error);
  if (decoded.status != voter::DecodeStatus::kMessage) return;
  if (const auto* refused = std::get_if<voter::Refused>(&frame)) {
    FramedPeer::reject(Status(StatusCode::kFailedPrecondition, "it refused: " + refused->reason));
  } else if (const auto* greeting = std::get_if<voter::Greeting>(&frame)) {
    on_greeting(*greeting);
  } else if (!is_greeted()) {
    reject(Status(StatusCode::kPeerViolation, kVoterFrames.no_greeting));
  } else {
    last_active = ++owner_.activity_;
    const core::CallGuard::Scope calling(&owner_.guard_);
    owner_.sink_.on_frame(id, address, std::get<voter::Payload>(frame).bytes);
  }
}

void VoterLink::on_greeting(const voter::Greeting& greeting) {
  if (is_greeted()) return reject(Status(StatusCode::kPeerViolation, "it sent a second greeting"));
  if (!owner_.job_id_.empty()) {
    job = owner_.job_id_;
  } else if (stream().tls() == nullptr) {
    job = greeting.job_id;
  }
  const voter::Greeting own{.job_id = job};
  if (Status fault = voter::check_greeting(greeting, own); !fault.ok()) return reject(fault);
  if (is_accepted()) write(bytes_of(own));
  greeted();
  last_active = ++owner_.activity_;
  owner_.greeted(this);
}

}  // namespace elastic::host
