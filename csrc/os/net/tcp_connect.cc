#include "os/net/tcp_connect.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <string>

#include "os/base/posix_error.h"
#include "os/net/socket_option.h"

namespace elastic::os {
namespace {

// Seconds of silence after which a peer that disappeared is detected (keepalive).
constexpr int kConnectionKeepAliveIdleSeconds = 5;
constexpr int kConnectionKeepAliveIntervalSeconds = 5;
constexpr int kSilenceMaxSeconds = 20;

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

}  // namespace elastic::os
