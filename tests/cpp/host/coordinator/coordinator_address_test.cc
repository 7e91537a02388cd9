// Which address of a node the others receive. These tests run in their own network namespace with
// two addresses, each of which looks like another host to the other.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "host/coordinator/coordinator_fixture.h"
#include "os/base/fd.h"

namespace elastic::host {
namespace {

using testing::HasSubstr;

constexpr const char* kHere = "10.99.0.1";
constexpr const char* kThere = "10.99.0.2";

class CoordinatorAddressTest : public CoordinatorTest {
 protected:
  // The network namespace applies to this thread and to the threads that it starts from here on.
  void SetUp() override {
    before.reset(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
    if (::unshare(CLONE_NEWNET) != 0) GTEST_SKIP() << "needs the right to make a network namespace";
    is_other_host = true;
    const std::string command = "ip link set lo up && ip addr add " + std::string(kHere) +
                                "/32 dev lo && ip addr add " + kThere + "/32 dev lo";
    if (std::system(command.c_str()) != 0) GTEST_SKIP() << "needs the program ip (iproute2)";
    start({.host = "", .port = 0});
  }
  void TearDown() override {
    coordinator.reset();
    if (is_other_host) {
      EXPECT_EQ(::setns(before.get(), CLONE_NEWNET), 0);
    }
  }
  // A node that looks to the coordinator as if it were on another host.
  std::unique_ptr<SessionClient> connect_from_there(std::uint64_t id) {
    os::UniqueFd fd = TestClient::make_socket(kHere);
    const os::SocketAddress own = os::look_up(kThere, 0)->front();
    EXPECT_EQ(::bind(fd.get(), own.get(), own.size), 0);
    auto node =
        std::make_unique<SessionClient>(TestClient(std::move(fd), coordinator->port(), kHere));
    node->be(id);
    node->info.address = kThere;
    node->greet("job");
    return node;
  }
  std::string address_of_rank(int rank) const {
    SessionClient observer(coordinator->port());
    observer.say_first({.job_id = "job", .observer = session::ObserverRequest{}});
    for (const ObservedNode& node : observer.expect<session::NodePage>().nodes) {
      if (node.rank == rank) return node.address;
    }
    return "";
  }

  os::UniqueFd before;
  bool is_other_host = false;
};

TEST_F(CoordinatorAddressTest, LoopbackIsUsedOnOneHost) {
  const auto node = connect(1);
  node->join(nnodes(1, 1));
  EXPECT_EQ(node->expect<rdzv::Round>().record->master_addr, "127.0.0.1");
}

TEST_F(CoordinatorAddressTest, LoopbackJoinIsCorrectedWhenAnotherHostJoins) {
  const auto here = connect(1);
  here->info.static_rank = 0;  // rank 0, so that its address is the published one
  here->join(nnodes(2, 2));
  here->expect<rdzv::Waiting>();
  const auto there = connect_from_there(2);
  there->join(nnodes(2, 2));
  const auto round = there->expect<rdzv::Round>();
  EXPECT_EQ(address_of_rank(0), round.record->master_addr);
  for (const int rank : {0, 1}) {
    const bool is_own = rank == round.own.group_rank;
    EXPECT_EQ(address_of_rank(rank), is_own ? kThere : kHere);
  }
}

TEST_F(CoordinatorAddressTest, LoopbackJoinAfterAnotherHostIsCorrected) {
  const auto there = connect_from_there(2);
  there->join(nnodes(2, 2));
  there->expect<rdzv::Waiting>();
  const auto here = connect(1);
  here->join(nnodes(2, 2));
  here->expect<rdzv::Round>();
  for (const int rank : {0, 1}) {
    EXPECT_NE(address_of_rank(rank), "127.0.0.1");
  }
}

TEST_F(CoordinatorAddressTest, RemoteLoopbackIsRejectedWithTheFlag) {
  const auto there = connect_from_there(2);
  there->info.address = "127.0.0.1";
  there->join(nnodes(1, 1));
  EXPECT_THAT(std::string(there->expect<rdzv::Refused>().error.message()),
              AllOf(HasSubstr(kThere), HasSubstr("--local-addr")));
}

TEST_F(CoordinatorAddressTest, Ipv4MappedAddressIsPublishedAsIpv4) {
  const auto there = connect_from_there(2);
  there->info.address = std::string("::ffff:") + kThere;
  there->join(nnodes(1, 1));
  EXPECT_EQ(there->expect<rdzv::Round>().record->master_addr, kThere);
}

}  // namespace
}  // namespace elastic::host
