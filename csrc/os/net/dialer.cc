#include "os/net/dialer.h"

#include <sys/epoll.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/base/duration_text.h"
#include "os/net/tcp_connect.h"

namespace elastic::os {
namespace {

constexpr std::size_t kRunnersMax = 8;

}  // namespace

// One socket that is being connected.
class Dialer::Runner final : public EventLoop::FdHandler {
 public:
  Runner(Dialer* dialer, UniqueFd socket, const SocketAddress& target)
      : fd(std::move(socket)), address(target), dialer_(*dialer) {}
  Status watch(EventLoop* loop) {
    auto watch = loop->watch(fd.get(), EPOLLOUT, this);
    if (!watch.ok()) return watch.status();
    watch_ = *std::move(watch);
    return {};
  }
  void unwatch() { watch_.reset(); }
  void on_ready(std::uint32_t) override { dialer_.on_ready(this); }

  UniqueFd fd;
  const SocketAddress address;

 private:
  Dialer& dialer_;
  EventLoop::Watch watch_;  // declared last: destroyed before the members that its handler uses
};

Dialer::Dialer(EventLoop* loop, std::vector<SocketAddress> addresses, Duration pace,
               Instant deadline, Done done)
    : loop_(loop),
      addresses_(std::move(addresses)),
      pace_(pace),
      began_(loop->now()),
      deadline_(deadline),
      done_(std::move(done)),
      timer_(loop, [this] { on_timer(); }) {
  timer_.arm(loop_->now());
}

Dialer::~Dialer() = default;

void Dialer::on_timer() {
  if (loop_->now() >= deadline_) {
    finish(Status(StatusCode::kUnavailable, "cannot connect to " + addresses_.front().text() +
                                                ": no answer for " +
                                                core::duration_text(loop_->now() - began_)));
    return;
  }
  timer_.arm(std::min(deadline_, loop_->now() + pace_));
  start_next();
}

void Dialer::start_next() {
  const SocketAddress& address = addresses_[started_++ % addresses_.size()];
  if (runners_.size() >= kRunnersMax) runners_.erase(runners_.begin());
  Result<UniqueFd> fd = start_connecting(address);
  if (!fd.ok()) {
    failed(fd.status());
    return;
  }
  auto runner = std::make_unique<Runner>(this, *std::move(fd), address);
  if (const Status status = runner->watch(loop_); !status.ok()) {
    failed(status);
    return;
  }
  runners_.push_back(std::move(runner));
}

void Dialer::on_ready(Runner* runner) {
  runner->unwatch();
  const Status status = finish_connecting(runner->fd.get(), runner->address);
  if (status.ok()) {
    const SocketAddress peer = runner->address;
    finish(Connection{std::move(runner->fd), peer});
    return;
  }
  std::erase_if(runners_, [runner](const auto& one) { return one.get() == runner; });
  failed(status);
}

void Dialer::failed(const Status& why) {
  last_error_ = why;
  if (!runners_.empty()) return;
  if (started_ < addresses_.size()) {
    timer_.arm(loop_->now());
  } else {
    finish(last_error_);
  }
}

void Dialer::finish(Result<Connection> result) {
  timer_.disarm();
  runners_.clear();
  const Done done = std::move(done_);
  done(std::move(result));  // may have destroyed the dialer
}

}  // namespace elastic::os
