#include "host/membership/local_observers.h"

#include <sys/epoll.h>

#include <chrono>
#include <utility>
#include <variant>

#include "host/base/connection_limits.h"
#include "os/loop/random_seed.h"

namespace elastic::host {
namespace {

constexpr std::size_t kPeersMax = 64;  // the others are closed at once
constexpr std::size_t kPendingPeersMax = 16;
constexpr std::size_t kObserverBytesMax = 4 << 20;
constexpr Duration kHelloTimeout = std::chrono::seconds(5);

}  // namespace

Result<std::unique_ptr<LocalObservers>> LocalObservers::open(os::EventLoop* loop,
                                                             const std::string& path,
                                                             std::string job_id,
                                                             ObserverDesk* desk) {
  auto listener = os::LocalListener::open(path);
  if (!listener.ok()) return listener.status();
  std::unique_ptr<LocalObservers> self(
      new LocalObservers(loop, *std::move(listener), std::move(job_id), desk));
  auto watch = loop->watch(self->listener_.fd(), EPOLLIN, self.get());
  if (!watch.ok()) return watch.status();
  self->watch_ = *std::move(watch);
  return self;
}

LocalObservers::LocalObservers(os::EventLoop* loop, os::LocalListener listener, std::string job_id,
                               ObserverDesk* desk)
    : loop_(*loop),
      job_id_(std::move(job_id)),
      desk_(*desk),
      incarnation_(os::random_seed()),
      listener_(std::move(listener)),
      pending_(kPendingPeersMax),
      pause_(loop, [this] { watch_.modify(EPOLLIN); }) {}

LocalObservers::~LocalObservers() {
  if (sessions_ != nullptr) sessions_->streams.abandon();
  for (const auto& peer : peers_) {
    if (peer->observed != nullptr) peer->observed->remove(peer.get());
  }
}

void LocalObservers::on_ready(std::uint32_t) {
  os::UniqueFd connection;
  switch (listener_.accept(&connection)) {
    case os::Listener::AcceptStatus::kAccepted: return adopt(std::move(connection));
    case os::Listener::AcceptStatus::kExhausted:
      watch_.modify(0);
      return pause_.arm(loop_.now() + kAcceptPause);
    case os::Listener::AcceptStatus::kEmpty:
    case os::Listener::AcceptStatus::kGone: return;
  }
}

void LocalObservers::adopt(os::UniqueFd connection) {
  if (peers_.size() >= kPeersMax) return;
  if (sessions_ == nullptr) {
    sessions_ = std::make_unique<SessionContext>(&loop_, kHelloTimeout, kObserverBytesMax,
                                                 2 * kObserverBytesMax, nullptr);
    sessions_->on_message = [this](SessionPeer* peer, session::ClientMessage& message) {
      return on_message(peer, message);
    };
    sessions_->on_closed = [this](SessionPeer* peer) { remove(peer); };
    sessions_->pending = &pending_;
  }
  auto peer = SessionPeer::create(sessions_.get(), {.fd = std::move(connection)});
  if (!peer.ok()) return;
  (*peer)->index = peers_.size();
  peers_.push_back(*std::move(peer));
}

Status LocalObservers::on_message(SessionPeer* peer, const session::ClientMessage& message) {
  if (peer->observed != nullptr) return peer->observed->on_message(peer, message);
  if (const auto* hello = std::get_if<session::ClientHello>(&message)) return greet(peer, *hello);
  return {StatusCode::kPeerViolation, "the first message of a session must be a hello"};
}

Status LocalObservers::greet(SessionPeer* peer, const session::ClientHello& hello) {
  if (!hello.observer) {
    return {StatusCode::kFailedPrecondition, "the job has one node, and admits no further one"};
  }
  if (!hello.job_id.empty() && hello.job_id != job_id_) {
    return no_such_job(hello.job_id, {job_id_});
  }
  peer->peer_version = hello.version;
  peer->is_observer = true;
  peer->accept();
  peer->send(session::ServerHello{.incarnation = incarnation_, .time = loop_.read_clock()});
  desk_.add(peer, *hello.observer);
  return {};
}

void LocalObservers::remove(SessionPeer* peer) {
  if (peer->observed != nullptr) peer->observed->remove(peer);
  const std::size_t index = peer->index;
  std::swap(peers_[index], peers_.back());
  peers_[index]->index = index;
  peers_.pop_back();
}

}  // namespace elastic::host
