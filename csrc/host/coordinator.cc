#include "elastic/coordinator.h"

#include <future>
#include <mutex>
#include <optional>
#include <utility>

#include "host/coordinator_service.h"
#include "os/fork_guard.h"
#include "os/loop_thread.h"

namespace elastic {

class Coordinator::Impl {
 public:
  static Result<std::unique_ptr<Impl>> start(const CoordinatorOptions& options) {
    auto thread = os::LoopThread::start("elastic-coord");
    if (!thread.ok()) return thread.status();
    std::optional<Result<std::unique_ptr<host::CoordinatorService>>> service;
    (*thread)->call([&] { service = host::CoordinatorService::open(&(*thread)->loop(), options); });
    if (!service->ok()) return service->status();
    return std::make_unique<Impl>(*std::move(thread), std::move(**service));
  }

  Impl(std::unique_ptr<os::LoopThread> thread, std::unique_ptr<host::CoordinatorService> service)
      : port_(service->port()),
        host_(service->host()),
        thread_(std::move(thread)),
        service_(std::move(service)) {}
  ~Impl() { close(Duration::zero()); }

  std::uint16_t port() const { return port_; }
  const std::string& host() const { return host_; }
  bool is_in_child() const { return fork_guard_.is_in_child(); }

  CoordinatorStats stats() const {
    const std::lock_guard lock(mutex_);
    return service_ == nullptr ? last_stats_ : service_->stats();
  }

  std::string describe() const {
    const std::lock_guard lock(mutex_);
    std::string text;
    if (service_ != nullptr) thread_->call([&] { text = service_->describe(); });
    return text;
  }

  void close(Duration drain) {
    {
      const std::lock_guard lock(mutex_);
      if (std::exchange(closing_, true)) return;
    }
    std::promise<void> drained;
    thread_->call([&] { service_->drain(drain, [&drained] { drained.set_value(); }); });
    drained.get_future().wait();

    const std::lock_guard lock(mutex_);
    last_stats_ = service_->stats();
    thread_->call([this] { service_.reset(); });
    thread_.reset();
  }

 private:
  // Constant after construction.
  const std::uint16_t port_;
  const std::string host_;
  const os::ForkGuard fork_guard_;

  mutable std::mutex mutex_;
  bool closing_ = false;         // guarded by mutex_
  CoordinatorStats last_stats_;  // guarded by mutex_
  // Both guarded by mutex_ once closing_ is set; their own members keep their own rules.
  std::unique_ptr<os::LoopThread> thread_;
  std::unique_ptr<host::CoordinatorService> service_;
};

Coordinator::Coordinator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Coordinator::~Coordinator() {
  // The loop thread does not exist in a forked child, so there is nobody to stop and join.
  if (impl_->is_in_child()) static_cast<void>(impl_.release());
}

Result<std::unique_ptr<Coordinator>> Coordinator::start(const CoordinatorOptions& options) {
  auto impl = Impl::start(options);
  if (!impl.ok()) return impl.status();
  return std::unique_ptr<Coordinator>(new Coordinator(*std::move(impl)));
}

std::uint16_t Coordinator::port() const { return impl_->port(); }
const std::string& Coordinator::host() const { return impl_->host(); }
CoordinatorStats Coordinator::stats() const { return impl_->stats(); }
std::string Coordinator::describe() const {
  return impl_->is_in_child() ? std::string() : impl_->describe();
}
void Coordinator::close(Duration drain) {
  if (!impl_->is_in_child()) impl_->close(drain);
}

}  // namespace elastic
