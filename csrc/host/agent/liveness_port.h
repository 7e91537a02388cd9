#pragma once

// The listening socket that an agent shares with its guardian. While it is open, at least one of
// the two is alive (core/session/end_proof.h). Connections are closed at once. Loop thread only.

#include <sys/epoll.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "elastic/status.h"
#include "os/loop/event_loop.h"
#include "os/net/listener.h"

namespace elastic::host {

class LivenessPort final : private os::FdHandler {
 public:
  // At a free port of every interface.
  static Result<std::unique_ptr<LivenessPort>> open(os::EventLoop* loop) {
    auto listener = os::Listener::open("", 0);
    if (!listener.ok()) return listener.status();
    std::unique_ptr<LivenessPort> self(new LivenessPort(*std::move(listener)));
    auto watch = loop->watch(self->fd(), EPOLLIN, self.get());
    if (!watch.ok()) return watch.status();
    self->watch_ = *std::move(watch);
    return self;
  }

  int fd() const { return listener_.fd(); }
  std::uint16_t port() const { return listener_.address().port(); }

 private:
  explicit LivenessPort(os::Listener listener) : listener_(std::move(listener)) {}
  void on_ready(std::uint32_t) override {
    os::UniqueFd connection;
    const auto status = listener_.accept(&connection);
    // Without descriptors the connections wait, which they may do for ever: they are not served.
    if (status == os::Listener::AcceptStatus::kExhausted) watch_.reset();
  }

  os::Listener listener_;
  os::Watch watch_;  // last: its handler uses the listener
};

}  // namespace elastic::host
