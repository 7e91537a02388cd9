#pragma once

// A coordinator in virtual time, with the interface of elastic::Coordinator.

#include <memory>
#include <string>
#include <utility>

#include "elastic/coordinator.h"
#include "host/coordinator/coordinator_service.h"
#include "os/loop/thread.h"
#include "support/loop_group.h"

namespace elastic::host {

class TurnedCoordinator {
 public:
  // On a loop of the thread's group.
  static Result<std::unique_ptr<TurnedCoordinator>> start(const CoordinatorOptions& options,
                                                          CoordinatorHost host = {}) {
    auto self = std::make_unique<TurnedCoordinator>();
    auto service = CoordinatorService::open(&self->loop(), options, std::move(host));
    if (!service.ok()) return service.status();
    self->service_ = *std::move(service);
    return self;
  }
  std::uint16_t port() const { return service_->port(); }
  CoordinatorStats stats() const { return service_->stats(); }
  std::string describe() const { return service_->describe(); }
  void on_succession(const succession::Action& action) { service_->on_succession(action); }
  os::EventLoop& loop() { return thread_->loop(); }

  // Begins what close() waits for.
  void begin_close(Duration drain) {
    thread_->call([this, drain] { service_->drain(drain, [this] { is_drained_ = true; }); });
  }
  bool is_drained() const { return is_drained_; }
  void close(Duration drain = Duration::zero()) {
    begin_close(drain);
    EXPECT_TRUE(group_.run_until([this] { return is_drained_; }));
    service_.reset();
  }

 private:
  support::LoopGroup& group_ = *support::LoopGroup::current();
  const std::unique_ptr<os::LoopThread> thread_ = *os::LoopThread::start("coordinator", &group_);
  std::unique_ptr<CoordinatorService> service_;
  bool is_drained_ = false;
};

}  // namespace elastic::host
