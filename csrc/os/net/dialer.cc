#include "os/net/dialer.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <string>
#include <utility>

#include "core/base/text.h"
#include "os/base/fd.h"
#include "os/base/posix_error.h"
#include "os/loop/event_loop.h"

namespace elastic::os {
namespace {

// Seconds of silence after which a peer that disappeared is detected (keepalive). One that reads
// nothing for so long is lost, too: every server of this protocol reads on a loop that never waits.
constexpr int kConnectionKeepAliveIdleSeconds = 5;
constexpr int kConnectionKeepAliveIntervalSeconds = 5;
constexpr int kSilenceMaxSeconds = 20;

constexpr std::size_t kRunnersMax = 8;

void set_connection_options(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, kConnectionKeepAliveIdleSeconds);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, kConnectionKeepAliveIntervalSeconds);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kSilenceMaxSeconds * 1000);
}

// A socket that connects to a free port of its own host may get that port as its local port; then
// it is connected to itself. It must be closed at once, because the server needs the port.
bool is_connected_to_itself(int fd) {
  const SocketAddress local = local_end(fd);
  const SocketAddress peer = peer_end(fd);
  return local.port() == peer.port() && local.host() == peer.host() && local.host() != "?";
}

}  // namespace

Status connection_error(std::string_view context, int error) {
  Status status = posix_error(context, error);
  if (status.code() == StatusCode::kResourceExhausted) return status;
  return {StatusCode::kUnavailable, std::string(status.message())};
}

Result<UniqueFd> start_connecting(const SocketAddress& address) {
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return connection_error("cannot create a socket", errno);
  set_connection_options(fd.get());
  // After EINTR the attempt continues, as after EINPROGRESS.
  if (::connect(fd.get(), address.get(), address.size) != 0 && errno != EINPROGRESS &&
      errno != EINTR) {
    return connection_error("cannot connect to " + address.text(), errno);
  }
  return fd;
}

int connect_result(int fd) {
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error == 0 && is_connected_to_itself(fd)) {
    const linger reset{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    error = ECONNREFUSED;
  }
  return error;
}

Status finish_connecting(int fd, const SocketAddress& address) {
  const int error = connect_result(fd);
  if (error == 0) return {};
  return connection_error("cannot connect to " + address.text(), error);
}

bool is_refusal(const Status& status) {
  return status.message().ends_with(error_text(ECONNREFUSED));
}

void expect_liveness(int fd, Duration silence_max) {
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(silence_max).count();
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT,
             static_cast<int>(std::clamp<decltype(ms)>(ms, 1, INT_MAX)));
  set_option(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1);
}

// One socket that is being connected.
class Dialer::Runner final : public FdHandler {
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
  Watch watch_;  // declared last: destroyed before the members that its handler uses
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
