#include "elastic/store_server.h"

#include <utility>

#include "host/base/service_thread.h"
#include "host/store/store_service.h"

namespace elastic {

class StoreServer::Impl {
 public:
  std::unique_ptr<host::ServiceThread<host::StoreService>> service;
};

StoreServer::StoreServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StoreServer::~StoreServer() = default;

Result<std::unique_ptr<StoreServer>> StoreServer::start(const StoreServerOptions& options) {
  auto service = host::ServiceThread<host::StoreService>::start("elastic-store", options);
  if (!service.ok()) return service.status();
  return std::unique_ptr<StoreServer>(
      new StoreServer(std::make_unique<Impl>(Impl{*std::move(service)})));
}

std::uint16_t StoreServer::port() const { return impl_->service->port(); }
const std::string& StoreServer::host() const { return impl_->service->host(); }
StoreServerStats StoreServer::stats() const { return impl_->service->stats(); }
void StoreServer::close(Duration drain) { impl_->service->close(drain); }

}  // namespace elastic
