#include "host/succession/voter_links.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "host/base/connection_limits.h"
#include "host/succession/voter_link.h"
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

}  // namespace elastic::host
