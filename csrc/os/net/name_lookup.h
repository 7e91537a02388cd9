#pragma once

// Resolves a name for a loop, which must not block in the resolver.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "elastic/status.h"
#include "os/loop/event_loop.h"
#include "os/net/address.h"

namespace elastic::os {

class NameLookup final : public EventLoop::FdHandler {
 public:
  using Done = std::function<void(const Result<std::vector<SocketAddress>>&)>;

  // As look_up() of os/net/address.h; a name is resolved on a separate thread, unless `loop` is
  // turned by hand. `done` is called once, from the loop and never from this constructor; it may
  // destroy the lookup. An error if several earlier requests for the name have no answer yet.
  static Result<std::unique_ptr<NameLookup>> start(EventLoop* loop, const std::string& host,
                                                   std::uint16_t port, Done done);
  NameLookup(const NameLookup&) = delete;
  NameLookup& operator=(const NameLookup&) = delete;
  ~NameLookup() override;  // detaches the thread

  void on_ready(std::uint32_t events) override;

 private:
  struct Shared;
  NameLookup(std::shared_ptr<Shared> shared, Done done);

  const std::shared_ptr<Shared> shared_;  // shared with the thread
  Done done_;
  EventLoop::Watch watch_;
};

}  // namespace elastic::os
