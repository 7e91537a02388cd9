#include "os/net/stream_socket.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "os/loop/clock.h"
#include "os/net/dialer.h"

namespace elastic::os {
namespace {

// Parallel connection attempts; the first that succeeds is kept.
class Race {
 public:
  Race(std::span<const SocketAddress> addresses, const WaitLimits& limits)
      : addresses_(addresses), limits_(limits) {}

  // Stores the successful socket and its address in the arguments.
  Status run(UniqueFd* fd, SocketAddress* peer) {
    while (true) {
      if (has_more() && (runners_.empty() || monotonic_now() >= next_start_)) {
        start_next();
        continue;
      }
      if (runners_.empty()) return last_error_;
      if (Status waited = wait(); !waited.ok()) return waited;
      for (std::size_t i = 0; i < runners_.size(); ++i) {
        if (items_[i].revents != 0 && has_won(&runners_[i])) {
          *fd = std::move(runners_[i].fd);
          *peer = *runners_[i].address;
          return {};
        }
      }
      std::erase_if(runners_, [](const Runner& runner) { return !runner.fd.valid(); });
    }
  }

 private:
  struct Runner {
    UniqueFd fd;
    const SocketAddress* address;
  };

  bool has_more() const { return next_ < addresses_.size(); }

  void start_next() {
    const SocketAddress& address = addresses_[next_++];
    next_start_ = monotonic_now() + Dialer::kPace;
    Result<UniqueFd> fd = start_connecting(address);
    if (!fd.ok()) {
      last_error_ = fd.status();
      return;
    }
    runners_.push_back({*std::move(fd), &address});
  }

  Status wait() {
    items_.clear();
    for (const Runner& runner : runners_) items_.push_back({runner.fd.get(), POLLOUT, 0});
    WaitLimits limits = limits_;
    if (has_more()) limits.deadline = std::min(limits.deadline, next_start_);
    Status waited = wait_any(&items_, limits);
    if (waited.code() != StatusCode::kDeadlineExceeded) return waited;
    if (limits.deadline < limits_.deadline) return {};
    return waited.with_context("cannot connect to " + runners_.back().address->text());
  }

  // Whether an attempt that poll() reported has succeeded; a failed one is closed.
  bool has_won(Runner* runner) {
    const Status status = finish_connecting(runner->fd.get(), *runner->address);
    if (status.ok()) return true;
    last_error_ = status;
    runner->fd.reset();
    return false;
  }

  std::span<const SocketAddress> addresses_;
  const WaitLimits& limits_;
  std::size_t next_ = 0;
  Instant next_start_{};
  std::vector<Runner> runners_;
  std::vector<pollfd> items_;  // one for each runner, in the same order, while they are waited for
  Status last_error_{StatusCode::kInvalidArgument, "no address to connect to"};
};

}  // namespace

Result<StreamSocket> StreamSocket::connect(std::span<const SocketAddress> addresses,
                                           const WaitLimits& limits) {
  UniqueFd fd;
  SocketAddress peer;
  if (Status status = Race(addresses, limits).run(&fd, &peer); !status.ok()) return status;
  return StreamSocket(std::move(fd), peer);
}

Status StreamSocket::send(std::string_view bytes, const WaitLimits& limits) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      if (Status waited = wait_ready(fd_.get(), POLLOUT, limits); !waited.ok()) return waited;
    } else if (errno != EINTR) {
      return connection_error("the connection broke", errno);
    }
  }
  return {};
}

Result<std::size_t> StreamSocket::receive(std::span<char> into, const WaitLimits& limits) {
  while (true) {
    // The reply has rarely arrived yet: waiting first saves a recv() that would fail.
    if (Status waited = wait_ready(fd_.get(), POLLIN, limits); !waited.ok()) return waited;
    const ssize_t got = ::recv(fd_.get(), into.data(), into.size(), 0);
    if (got > 0) return static_cast<std::size_t>(got);
    if (got == 0) return Status(StatusCode::kUnavailable, "the server closed the connection");
    if (errno != EAGAIN && errno != EINTR) return connection_error("the connection broke", errno);
  }
}

void StreamSocket::finish_sending() { ::shutdown(fd_.get(), SHUT_WR); }

Status StreamSocket::wait_for_peer(const WaitLimits& limits) {
  while (true) {
    if (Status waited = wait_ready(fd_.get(), POLLIN, limits); !waited.ok()) return waited;
    char byte;
    if (::recv(fd_.get(), &byte, 1, 0) >= 0) return {};
    if (errno != EAGAIN && errno != EINTR) return connection_error("the connection broke", errno);
  }
}

bool StreamSocket::is_quiet() const {
  char byte;
  return ::recv(fd_.get(), &byte, 1, MSG_PEEK) < 0 && (errno == EAGAIN || errno == EINTR);
}

}  // namespace elastic::os
