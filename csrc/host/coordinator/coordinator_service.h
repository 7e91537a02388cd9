#pragma once

// A coordinator on a loop that its owner runs: sessions and jobs behind a listening socket, which
// also serves the users' key-value store.
//
// elastic::Coordinator runs it on a separate thread. Loop thread only.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "elastic/coordinator.h"
#include "elastic/status.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

// Why a coordinator ends before its jobs.
struct CoordinatorEnd {
  std::string reason = {};  // "": no reason is sent
  bool gave_up = false;     // too few nodes joined the job of its host
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

  // As Coordinator::close, then calls `done` from the loop, which may destroy the service. A
  // service that is destroyed before that does not call it. `end`: sent to the nodes of jobs that
  // have not ended.
  void drain(Duration limit, std::function<void()> done, const CoordinatorEnd& end = {});

 private:
  class Impl;
  explicit CoordinatorService(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace elastic::host
