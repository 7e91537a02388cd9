#include "elastic/witness.h"

#include <optional>
#include <utility>

#include "host/succession/witness_service.h"
#include "os/base/fork_guard.h"
#include "os/loop/loop_thread.h"

namespace elastic {

class Witness::Impl {
 public:
  explicit Impl(std::unique_ptr<os::LoopThread> started) : thread(std::move(started)) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    thread->call([this] { service.reset(); });
  }

  const os::ForkGuard fork_guard;
  const std::unique_ptr<os::LoopThread> thread;
  std::unique_ptr<host::WitnessService> service;  // used on the thread
  std::string host;
  std::uint16_t port = 0;
};

Witness::Witness(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Witness::~Witness() {
  // A forked child has no thread to stop and join.
  if (impl_->fork_guard.is_in_child()) static_cast<void>(impl_.release());
}

Result<std::unique_ptr<Witness>> Witness::start(const WitnessOptions& options) {
  auto thread = os::LoopThread::start("elastic-witness");
  if (!thread.ok()) return thread.status();
  auto impl = std::make_unique<Impl>(*std::move(thread));
  Status status;
  impl->thread->call([&] {
    auto service = host::WitnessService::open(&impl->thread->loop(), options);
    status = service.status();
    if (!service.ok()) return;
    impl->service = *std::move(service);
    impl->host = impl->service->host();
    impl->port = impl->service->port();
  });
  if (!status.ok()) return status;
  return std::unique_ptr<Witness>(new Witness(std::move(impl)));
}

std::uint16_t Witness::port() const { return impl_->port; }
const std::string& Witness::host() const { return impl_->host; }

}  // namespace elastic
