// Which connections a client keeps for its next calls.

#include "host/store/client_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "core/store/wire.h"
#include "elastic/store_server.h"

namespace elastic::host {
namespace {

TEST(ClientPool, ConnectionWithUnconfirmedRequestsIsKeptHoweverManyAreIdle) {
  const auto server = *StoreServer::start({});
  StoreClientOptions options;
  options.port = server->port();
  const auto pool = *ClientPool::connect(options);
  const os::WaitLimits limits = pool->limits(std::chrono::seconds(60));
  {
    ClientPool::Lease silent = *pool->lease(ClientPool::Use::kSilent, limits);
    std::vector<ClientPool::Lease> others;
    for (int i = 0; i < 100; ++i) {
      others.push_back(*pool->lease(ClientPool::Use::kAnswered, limits));
    }
    wire::append_key_value_request(silent->new_request(), wire::Opcode::kSet, "key", "value");
    ASSERT_TRUE(silent->send_silent(limits).ok());
  }
  auto next = pool->lease(ClientPool::Use::kAnswered, pool->limits(Duration::zero()));
  ASSERT_TRUE(next.ok()) << next.status().message();
  EXPECT_TRUE((*next)->has_silent_requests()) << "the next call must follow them";
}

}  // namespace
}  // namespace elastic::host
