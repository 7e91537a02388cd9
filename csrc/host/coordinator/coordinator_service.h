#pragma once

// A coordinator on somebody else's loop: sessions and jobs behind a listening socket, which also
// serves the users' key-value store.
//
// elastic::Coordinator wraps it with a thread of its own. Loop thread only.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "elastic/coordinator.h"
#include "elastic/status.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

// Why a coordinator ends while it has jobs that do not.
struct CoordinatorEnd {
  std::string reason = {};  // "": nothing is announced
  bool gave_up = false;     // its host's job has waited for nodes in vain
};

class CoordinatorService {
 public:
  // Binds and listens; see Coordinator::start for the errors. `loop` outlives the service.
  // `host_job`: the job whose agent runs the service; "": none.
  static Result<std::unique_ptr<CoordinatorService>> open(os::EventLoop* loop,
                                                          const CoordinatorOptions& options,
                                                          std::string host_job = "");
  CoordinatorService(const CoordinatorService&) = delete;
  CoordinatorService& operator=(const CoordinatorService&) = delete;
  ~CoordinatorService();  // closes every session and connection

  std::uint16_t port() const;
  const std::string& host() const;
  CoordinatorStats stats() const;  // any thread
  std::string describe() const;

  // As Coordinator::close, then calls `done` from the loop; it may destroy the service. A service
  // that is destroyed before does not call it. `end`: what nodes of jobs that are not over are
  // told.
  void drain(Duration limit, std::function<void()> done, const CoordinatorEnd& end = {});

 private:
  class Impl;
  explicit CoordinatorService(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace elastic::host
