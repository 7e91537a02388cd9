#include "os/net/listener_watch.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "os/net/tcp_connect.h"

namespace elastic::os {

ListenerWatch::ListenerWatch(EventLoop* loop, const SocketAddress& address, Duration limit,
                             Report report)
    : loop_(loop), report_(std::move(report)), limit_(loop, [this] { finish(Found::kUnknown); }) {
  limit_.arm(add_saturating(loop->now(), limit));
  begin(address);
}

void ListenerWatch::begin(const SocketAddress& address) {
  auto fd = start_connecting(address);
  if (!fd.ok()) return limit_.arm(loop_->now());
  auto watch = loop_->watch(fd->get(), EPOLLOUT, this);
  if (!watch.ok()) return limit_.arm(loop_->now());
  fd_ = *std::move(fd);
  watch_ = *std::move(watch);
}

void ListenerWatch::on_ready(std::uint32_t) {
  if (!is_connected_) {
    const int error = connect_result(fd_.get());
    if (error != 0) return finish(error == ECONNREFUSED ? Found::kRefused : Found::kUnknown);
    is_connected_ = true;
    limit_.disarm();
    watch_.modify(EPOLLIN);
    return report(Found::kAnswered);
  }
  char byte = 0;
  const ssize_t got = ::recv(fd_.get(), &byte, 1, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  finish(got < 0 && errno == ECONNRESET ? Found::kRefused : Found::kUnknown);
}

void ListenerWatch::finish(Found found) {
  limit_.disarm();
  watch_.reset();
  fd_.reset();
  report(found);
}

void ListenerWatch::report(Found found) {
  const Report keep = report_;  // this may be destroyed
  keep(found);
}

}  // namespace elastic::os
