#include "elastic/coordinator.h"

#include <utility>

#include "host/base/service_thread.h"
#include "host/coordinator/coordinator_service.h"

namespace elastic {

class Coordinator::Impl {
 public:
  std::unique_ptr<host::ServiceThread<host::CoordinatorService>> service;
};

Coordinator::Coordinator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Coordinator::~Coordinator() = default;

Result<std::unique_ptr<Coordinator>> Coordinator::start(const CoordinatorOptions& options) {
  auto service = host::ServiceThread<host::CoordinatorService>::start("elastic-coord", options);
  if (!service.ok()) return service.status();
  return std::unique_ptr<Coordinator>(
      new Coordinator(std::make_unique<Impl>(Impl{*std::move(service)})));
}

std::uint16_t Coordinator::port() const { return impl_->service->port(); }
const std::string& Coordinator::host() const { return impl_->service->host(); }
CoordinatorStats Coordinator::stats() const { return impl_->service->stats(); }
std::string Coordinator::describe() const {
  return impl_->service->query(
      [](const host::CoordinatorService& service) { return service.describe(); });
}
void Coordinator::close(Duration drain) { impl_->service->close(drain); }

}  // namespace elastic
