// A RendezvousBackend over one key of a TCPStore server.
//
// Reading is a COMPARE_SET that cannot succeed, since its expected value is never stored: the
// answer is the stored value, or the expected value itself if there is none. It takes one round
// trip and, unlike GET, never waits, and no server closes the connection because of it.
//
// A COMPARE_SET that fails on a missing key also answers with the expected value. No value is ever
// written twice, so this answer means that the key was removed, unless another process wrote the
// old value again: a CHECK decides.

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "elastic/rendezvous_backends.h"
#include "elastic/store_client.h"
#include "host/coordinator/hosting.h"
#include "os/loop/clock.h"
#include "os/net/address.h"
#include "os/net/interfaces.h"

namespace elastic {
namespace {

const std::string kKeyPrefix = "elastic/rendezvous/";
constexpr std::string_view kNeverStored = "?";
// The limit of one attempt to connect; the rendezvous repeats attempts until its own timeout.
constexpr Duration kConnectWait = std::chrono::seconds(1);

// A call that times out means that the server cannot be reached now.
Status timeout_as_unavailable(const Status& status) {
  if (status.code() != StatusCode::kDeadlineExceeded) return status;
  return {StatusCode::kUnavailable, std::string(status.message())};
}

class StoreBackend final : public RendezvousBackend {
 public:
  explicit StoreBackend(StoreBackendOptions options)
      : options_(std::move(options)), key_(kKeyPrefix + options_.run_id) {}

  std::string name() const override { return "tcpstore"; }

  Result<std::optional<StoredState>> get_state() override {
    if (Status status = connect(); !status.ok()) return status;
    Result<std::string> there = client_->compare_set(key_, kNeverStored, kNeverStored);
    if (!there.ok()) return timeout_as_unavailable(there.status());
    if (*there == kNeverStored) return std::optional<StoredState>();
    return std::optional(StoredState{*there, *there});
  }

  Result<StoredWrite> set_state(std::string_view bytes,
                                const std::optional<std::string>& token) override {
    if (Status status = connect(); !status.ok()) return status;
    Result<std::string> there = client_->compare_set(key_, token.value_or(""), bytes);
    if (!there.ok()) return timeout_as_unavailable(there.status());
    if (token && *there == *token) {
      const Result<bool> is_present = client_->check(std::array{key_});
      if (!is_present.ok()) return timeout_as_unavailable(is_present.status());
      if (!*is_present) {
        return Status(StatusCode::kFailedPrecondition,
                      "the store was restarted: the job's state in it is lost");
      }
    }
    return StoredWrite{*there == bytes, {*there, *there}};
  }

  // The local address from which the server is reached. A name that resolves to loopback here (on
  // Debian the host's own) means this host to other hosts, which need another address of it.
  std::string local_address() override {
    const auto found = os::look_up(options_.host, options_.port,
                                   {.deadline = os::monotonic_now() + options_.call_timeout});
    if (!found.ok()) return "";
    const bool is_own_name = found->front().is_loopback() && !host::is_loopback_name(options_.host);
    return is_own_name ? "" : os::address_towards(found->front());
  }

 private:
  Status connect() {
    if (client_) return {};
    StoreClientOptions options;
    options.host = options_.host;
    options.port = options_.port;
    options.timeout = std::min(kConnectWait, options_.call_timeout);
    auto client = StoreClient::connect(options);
    if (!client.ok()) return timeout_as_unavailable(client.status());
    client_ = *std::move(client);
    client_->set_timeout(options_.call_timeout);
    return {};
  }

  const StoreBackendOptions options_;
  const std::string key_;
  std::unique_ptr<StoreClient> client_;  // null until the server was reached
};

}  // namespace

std::shared_ptr<RendezvousBackend> make_store_backend(StoreBackendOptions options) {
  return std::make_shared<StoreBackend>(std::move(options));
}

}  // namespace elastic
