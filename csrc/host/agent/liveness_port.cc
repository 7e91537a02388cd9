#include "host/agent/liveness_port.h"

#include <sys/epoll.h>

namespace elastic::host {

Result<std::unique_ptr<LivenessPort>> LivenessPort::open(os::EventLoop* loop) {
  auto listener = os::Listener::open("", 0);
  if (!listener.ok()) return listener.status();
  std::unique_ptr<LivenessPort> self(new LivenessPort(*std::move(listener)));
  auto watch = loop->watch(self->fd(), EPOLLIN, self.get());
  if (!watch.ok()) return watch.status();
  self->watch_ = *std::move(watch);
  return self;
}

void LivenessPort::on_ready(std::uint32_t) {
  os::UniqueFd connection;
  const auto status = listener_.accept(&connection);
  // Without descriptors the connections wait, which they may do for ever: they are not served.
  if (status == os::Listener::AcceptStatus::kExhausted) watch_.reset();
}

}  // namespace elastic::host
