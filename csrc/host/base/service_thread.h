#pragma once

// A network service on its own loop thread: the base of StoreServer and Coordinator.
//
// Service has open(loop, options), port(), host(), stats() that any thread may call, and
// drain(limit, done). Thread rule: any member from any thread. In a forked child, which lacks the
// thread, close() and the destructor have no effect.

#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "elastic/status.h"
#include "elastic/time.h"
#include "os/base/process.h"
#include "os/loop/loop_object.h"
#include "os/loop/registration.h"

namespace elastic::host {

template <typename Service>
class ServiceThread {
 public:
  using Stats = decltype(std::declval<const Service&>().stats());

  template <typename Options>
  static Result<std::unique_ptr<ServiceThread>> start(const char* name, const Options& options) {
    auto service = os::LoopObject<Service>::start(
        name, [&](os::EventLoop* loop) { return Service::open(loop, options); });
    if (!service.ok()) return service.status();
    return std::unique_ptr<ServiceThread>(new ServiceThread(*std::move(service)));
  }
  ServiceThread(const ServiceThread&) = delete;
  ServiceThread& operator=(const ServiceThread&) = delete;
  ~ServiceThread() { close(Duration::zero()); }

  std::uint16_t port() const { return port_; }
  const std::string& host() const { return host_; }

  // After close(): the values at that time. Nothing in a forked child.
  Stats stats() const {
    if (is_in_child()) return {};  // another thread of the parent may have had the lock
    const std::lock_guard lock(mutex_);
    return service_ == nullptr ? last_stats_ : service_->object().stats();
  }

  // Runs `question(service)` on the service's thread and returns its result; after close(), and in
  // a forked child, a default value.
  template <typename Question>
  auto query(const Question& question) const {
    decltype(question(std::declval<const Service&>())) answer{};
    if (is_in_child()) return answer;
    const std::lock_guard lock(mutex_);
    if (service_ != nullptr) answer = service_->ask(question);
    return answer;
  }

  // Once; a second call returns at once.
  void close(Duration drain) {
    if (is_in_child()) return;
    {
      const std::lock_guard lock(mutex_);
      if (std::exchange(closing_, true)) return;
    }
    std::promise<void> drained;
    service_->call(
        [&](Service& service) { service.drain(drain, [&drained] { drained.set_value(); }); });
    drained.get_future().wait();

    const std::lock_guard lock(mutex_);
    last_stats_ = service_->object().stats();
    service_.reset();
  }

 private:
  explicit ServiceThread(std::unique_ptr<os::LoopObject<Service>> service)
      : port_(service->object().port()),
        host_(service->object().host()),
        service_(std::move(service)) {}
  bool is_in_child() const { return fork_guard_.is_in_child(); }

  // Constant after construction.
  const std::uint16_t port_;
  const std::string host_;
  const os::ForkGuard fork_guard_;

  mutable std::mutex mutex_;
  bool closing_ = false;  // guarded by mutex_
  Stats last_stats_{};    // guarded by mutex_
  // Guarded by mutex_ once closing_ is set; its own members keep their own rules.
  std::unique_ptr<os::LoopObject<Service>> service_;
};

}  // namespace elastic::host
