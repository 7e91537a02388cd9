#include "host/succession/voter_links.h"

#include <sys/epoll.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "host/base/admission.h"
#include "os/net/address.h"
#include "os/net/dialer.h"
#include "os/net/listener.h"

// Theory of operation. Frames for an address take the open connection that this process has dialed
// there. Without one an attempt begins, and the frames wait for it. Connections that others have
// opened are used for replies only, by their id.

namespace elastic::host {
namespace {

constexpr int kVotersAcceptedPerTurn = 16;
constexpr std::size_t kWaitingFramesMax = 32;  // of one attempt; the oldest one is dropped
constexpr Duration kRejectedInterval = std::chrono::seconds(60);

}  // namespace

class VoterLinks::Acceptor final : public os::EventLoop::FdHandler {
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
  os::EventLoop::Timer pause_;
  os::EventLoop::Watch watch_;  // last: destroyed before the members that its handler uses
};

VoterLinks::VoterLinks(os::EventLoop* loop, std::string job_id, std::shared_ptr<TokenSource> tokens,
                       const VoterLinkLimits& limits, Sink sink)
    : loop_(loop),
      job_id_(std::move(job_id)),
      tokens_(std::move(tokens)),
      limits_(limits),
      sink_(std::move(sink)),
      budget_(limits.buffered_bytes_max),
      streams_(loop, &budget_, {.output_bytes_max = limits.unsent_bytes_max}),
      pending_(limits.pending_per_address_max) {}

VoterLinks::~VoterLinks() {
  attempts_.clear();
  streams_.abandon();
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
  if (direct != links_.end() && direct->second->is_open()) return direct->second->send(frame);
  if (address.empty()) return;
  for (const auto& [id, link] : links_) {
    if (link->address == address && link->is_open()) return link->send(frame);
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
  log_rejected("a connection of " + link->remote_host() +
               " to the voter port is closed: " + std::string(why.message()));
}

void VoterLinks::remove(VoterLink* link) {
  if (sink_.on_ended) sink_.on_ended(link->id);
  links_.erase(link->id);
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
    if (!link->is_open() || link->is_accepted() != newest.is_accepted()) continue;
    ++total;
    idlest = idler(idlest, link.get());
    if (link->remote_host() != newest.remote_host()) continue;
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

namespace {

constexpr char kTlsHandshake = '\x16';  // the first byte of a TLS client

constexpr const char* kSetToken = ": set the same token on all nodes (--token-file)";

}  // namespace

Status VoterLink::end_status(os::Stream::End why, int error) const {
  switch (why) {
    case os::Stream::End::kBroken: return os::connection_error("the connection broke", error);
    case os::Stream::End::kOutputLimit:
    case os::Stream::End::kMemoryLimit: return {StatusCode::kUnavailable, "it does not read"};
    case os::Stream::End::kDeadline: return {StatusCode::kUnavailable, "it sent no greeting"};
    case os::Stream::End::kTlsFailed: {
      const os::TlsSession& tls = *stream_.tls();
      const bool is_unknown = tls.error() == os::TlsSession::Error::kUnknownIdentity;
      return {StatusCode::kFailedPrecondition,
              (is_unknown ? "its token is not valid here"
                          : "it does not know the token of this node (" + tls.error_text() + ")") +
                  kSetToken};
    }
    case os::Stream::End::kClosedByPeer: break;
  }
  return {StatusCode::kUnavailable, "it closed the connection"};
}

// With a token an accepted connection is started twice: its first byte tells whether the peer
// begins with a TLS handshake, or has no token and is sent the reason in clear.
Status VoterLink::start(os::DetachedStream connection) {
  os::expect_liveness(connection.fd.get(), owner_.limits_.silence_max);
  if (owner_.tokens_ != nullptr && (!is_accepted() || !connection.unread.empty())) {
    auto tls = is_accepted() ? owner_.tokens_->accept() : owner_.tokens_->connect(owner_.job_id_);
    if (!tls.ok()) return tls.status();
    connection.tls = *std::move(tls);
  }
  if (Status started = stream_.start(std::move(connection)); !started.ok()) return started;
  remote_host_ = stream_.remote().host();
  stream_.set_keep_alive(kKeepAliveInterval);
  stream_.set_deadline(owner_.loop_->now() + owner_.limits_.greeting_timeout);
  if (is_accepted()) {
    pending_ = owner_.pending_.add(remote_host_, [this] { close(); });
    return {};
  }
  has_magic_ = true;  // only the side that connects sends it
  stream_.write(voter::kMagic);
  write(voter::Greeting{.job_id = owner_.job_id_});
  return {};
}

// The peer knows a key of this process; it may be an observer's or another job's.
void VoterLink::on_secured() {
  if (!is_accepted()) return;
  const auto identity = read_identity(stream_.tls()->identity());
  const bool is_any = owner_.job_id_.empty();
  if (!identity || identity->role != PeerRole::kNode ||
      (!is_any && identity->job_id != owner_.job_id_)) {
    refuse(Status(StatusCode::kFailedPrecondition,
                  "its token does not allow it to take part in the job " + owner_.job_id_));
    return;
  }
  job = identity->job_id;
}

void VoterLink::write(const voter::Frame& frame) {
  std::string bytes;
  voter::append(&bytes, frame);
  stream_.write(bytes);
}

void VoterLink::send(std::string_view frame) {
  last_active = ++owner_.activity_;
  stream_.write(voter::payload_head(frame.size()));
  stream_.write(frame);
}

std::size_t VoterLink::on_bytes(std::string_view bytes) {
  std::size_t used = 0;
  if (!has_magic_ && owner_.tokens_ != nullptr && stream_.tls() == nullptr) {
    if (bytes.starts_with(voter::kMagic.front())) {
      refuse(Status(StatusCode::kFailedPrecondition,
                    std::string("a node of this job needs a token, and it has none") + kSetToken));
    } else {
      pending_.reset();
      owner_.adopt(stream_.detach(bytes));
    }
    return bytes.size();
  }
  if (!has_magic_ && !take_magic(bytes, &used)) return used;
  while (stream_.is_open() && !is_finishing_) {
    voter::Frame frame;
    const std::size_t limit = is_greeted_ ? voter::kFrameBytesMax : voter::kGreetingBytesMax;
    const voter::DecodeResult result = voter::decode(bytes.substr(used), limit, &frame);
    if (result.status == voter::DecodeStatus::kNeedMore) return used;
    if (result.status == voter::DecodeStatus::kViolation) {
      fail(result.error);
      break;
    }
    used += result.bytes;
    if (result.status == voter::DecodeStatus::kMessage) on_frame(frame);
  }
  return bytes.size();
}

bool VoterLink::take_magic(std::string_view bytes, std::size_t* used) {
  const std::size_t size = std::min(bytes.size(), voter::kMagic.size());
  if (bytes.substr(0, size) != voter::kMagic.substr(0, size)) {
    *used = bytes.size();
    fail(bytes.starts_with(kTlsHandshake)
             ? Status(StatusCode::kFailedPrecondition,
                      std::string("it uses a token, and this node has none") + kSetToken)
             : Status(StatusCode::kPeerViolation, "it speaks another protocol"));
    return false;
  }
  has_magic_ = size == voter::kMagic.size();
  if (has_magic_) *used = size;
  return has_magic_;
}

void VoterLink::on_frame(const voter::Frame& frame) {
  if (const auto* refused = std::get_if<voter::Refused>(&frame)) {
    fail(Status(StatusCode::kFailedPrecondition, "it refused: " + refused->reason));
  } else if (const auto* greeting = std::get_if<voter::Greeting>(&frame)) {
    on_greeting(*greeting);
  } else if (!is_greeted_) {
    fail(Status(StatusCode::kPeerViolation, "its first message is not a greeting"));
  } else {
    last_active = ++owner_.activity_;
    owner_.sink_.on_frame(id, address, std::get<voter::Payload>(frame).bytes);
  }
}

void VoterLink::on_greeting(const voter::Greeting& greeting) {
  if (is_greeted_) return fail(Status(StatusCode::kPeerViolation, "it sent a second greeting"));
  if (!owner_.job_id_.empty()) {
    job = owner_.job_id_;
  } else if (stream_.tls() == nullptr) {
    job = greeting.job_id;
  }
  const voter::Greeting own{.job_id = job};
  if (Status fault = voter::check_greeting(greeting, own); !fault.ok()) return refuse(fault);
  if (is_accepted()) write(own);
  pending_.reset();
  stream_.clear_deadline();
  is_greeted_ = true;
  last_active = ++owner_.activity_;
  owner_.greeted(this);
}

// Sends the reason, so that the other side can report it.
void VoterLink::refuse(const Status& why) {
  if (!is_accepted()) return fail(why);
  write(voter::Refused{std::string(why.message())});
  pending_.reset();
  is_finishing_ = true;
  stream_.finish(owner_.loop_->now() + kFinishTimeout);
  owner_.closed(this, why);
}

void VoterLink::fail(const Status& why) {
  close();
  owner_.closed(this, why);
}

void VoterLink::on_end(os::Stream::End why, int error) {
  pending_.reset();
  if (!is_finishing_) owner_.closed(this, end_status(why, error));
}

}  // namespace elastic::host
