// The sockets of a round, which are shut down when it is over. The tests act as the guardian.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "elastic/worker.h"
#include "guardian/channel.h"
#include "host/workers/membership_harness.h"

namespace elastic::guardian {
namespace {

using support::Guardian;
using support::join;
using support::next_round;
using support::wait_until_over;

int listen_on_loopback(sockaddr_in* address) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  *address = {};
  address->sin_family = AF_INET;
  address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof *address;
  const bool is_bound = ::bind(listener, reinterpret_cast<sockaddr*>(address), size) == 0 &&
                        ::listen(listener, 8) == 0 &&
                        ::getsockname(listener, reinterpret_cast<sockaddr*>(address), &size) == 0;
  return is_bound ? listener : -1;
}

bool is_listening(int listener) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  const int client = ::socket(AF_INET, SOCK_STREAM, 0);
  return ::connect(client, reinterpret_cast<sockaddr*>(&address), size) == 0;
}

struct Connection {
  int listener = -1;
  int client = -1;
  int server = -1;

  Connection() {
    sockaddr_in address{};
    listener = listen_on_loopback(&address);
    client = ::socket(AF_INET, SOCK_STREAM, 0);
    ::connect(client, reinterpret_cast<sockaddr*>(&address), sizeof address);
    server = ::accept(listener, nullptr, nullptr);
  }
  // Waits for a byte. 0: the connection was shut down.
  ssize_t receive() const {
    char byte = 0;
    return ::recv(client, &byte, 1, 0);
  }
  bool is_open() const {
    const char byte = 'x';
    return ::send(client, &byte, 1, MSG_NOSIGNAL) == 1 &&
           ::send(server, &byte, 1, MSG_NOSIGNAL) == 1;
  }
};

TEST(MembershipSockets, CutEndsABlockedReceive) {
  Guardian guardian([] {
    if (!join()) return 1;
    const Connection of_the_job;
    elastic_worker_begin_sockets();
    const Connection of_the_round;
    elastic_worker_end_sockets();
    const Connection later;
    elastic_worker_progress(1);
    if (of_the_round.receive() != 0 || elastic_worker_round_is_over() != 1) return 2;
    if (!is_listening(of_the_round.listener)) return 3;
    if (!of_the_job.is_open() || !later.is_open()) return 4;
    elastic_worker_leave_round();
    // The next round has no socket yet.
    elastic_worker_begin_sockets();
    elastic_worker_end_sockets();
    return of_the_job.is_open() && later.is_open() && next_round() == "gone" ? 0 : 5;
  });
  ASSERT_TRUE(guardian.is_at_work());
  guardian.cut(3);
  ASSERT_TRUE(guardian.next(Mark::kLeft, 1));
  guardian.channel() = Channel();
  EXPECT_EQ(guardian.exit_code(), 0);
}

// A socket that is opened after the cut, in the same call that opens all of them, is shut down too.
TEST(MembershipSockets, CutWhileSocketsAreOpenedReachesTheLaterOnes) {
  Guardian guardian([] {
    if (!join()) return 1;
    const Connection of_the_job;
    elastic_worker_begin_sockets();
    elastic_worker_begin_sockets();
    const Connection first;
    elastic_worker_end_sockets();
    elastic_worker_progress(1);
    if (first.receive() != 0) return 2;
    const Connection second;
    if (second.receive() != 0) return 3;
    elastic_worker_end_sockets();
    return of_the_job.is_open() ? 0 : 4;
  });
  ASSERT_TRUE(guardian.is_at_work());
  guardian.cut(3);
  EXPECT_EQ(guardian.exit_code(), 0);
}

TEST(MembershipSockets, SocketsOpenedAfterTheCutEndWithTheirInterval) {
  Guardian guardian([] {
    if (!join()) return 1;
    wait_until_over();
    elastic_worker_begin_sockets();
    const Connection one;
    elastic_worker_end_sockets();
    return one.receive() == 0 ? 0 : 2;
  });
  ASSERT_TRUE(guardian.next(Mark::kMember));
  guardian.cut(3);
  EXPECT_EQ(guardian.exit_code(), 0);
}

// While the sockets are opened all of them are shut down, and later those to the port.
TEST(MembershipSockets, OnlyConnectionsToThePortAreShutDownLater) {
  Guardian guardian([] {
    if (!join()) return 1;
    elastic_worker_begin_sockets();
    const Connection wanted;
    const Connection other;
    sockaddr_in address{};
    socklen_t size = sizeof address;
    ::getsockname(wanted.listener, reinterpret_cast<sockaddr*>(&address), &size);
    elastic_worker_end_sockets_to(ntohs(address.sin_port));
    elastic_worker_progress(1);
    if (wanted.receive() != 0) return 2;
    if (!other.is_open()) return 3;
    elastic_worker_begin_sockets();
    const Connection late;
    elastic_worker_end_sockets_to(ntohs(address.sin_port));
    return late.receive() == 0 ? 0 : 4;
  });
  ASSERT_TRUE(guardian.is_at_work());
  guardian.cut(3);
  EXPECT_EQ(guardian.exit_code(), 0);
}

TEST(MembershipSockets, OnlyTcpSocketsAreShutDown) {
  Guardian guardian([] {
    if (!join()) return 1;
    elastic_worker_begin_sockets();
    int local[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, local) != 0) return 2;
    const int datagram = ::socket(AF_INET, SOCK_DGRAM, 0);
    sockaddr_in address{};
    const Connection tcp;
    socklen_t size = sizeof address;
    ::getsockname(tcp.server, reinterpret_cast<sockaddr*>(&address), &size);
    ::connect(datagram, reinterpret_cast<sockaddr*>(&address), size);
    elastic_worker_end_sockets();
    elastic_worker_progress(1);
    if (tcp.receive() != 0) return 3;
    return ::send(local[0], "x", 1, MSG_NOSIGNAL) == 1 && ::shutdown(datagram, SHUT_WR) == 0 ? 0
                                                                                             : 4;
  });
  ASSERT_TRUE(guardian.next(Mark::kMember));
  guardian.cut(3);
  EXPECT_EQ(guardian.exit_code(), 0);
}

TEST(MembershipSockets, ForkedChildIsNoMember) {
  Guardian guardian([] {
    if (!join()) return 1;
    elastic_worker_begin_sockets();
    const Connection connection;
    elastic_worker_end_sockets();
    if (::fork() == 0) {
      char out = 0;
      elastic_worker_begin_sockets();
      elastic_worker_end_sockets();
      elastic_worker_leave_round();
      const bool is_free = elastic_worker_join_membership() == 0 &&
                           elastic_worker_round_is_over() == 0 &&
                           elastic_worker_wait_for_round(&out, 1, -1) == -1;
      ::_exit(is_free && elastic_worker_round() == 3 ? 0 : 1);
    }
    int status = 0;
    ::wait(&status);
    elastic_worker_progress(1);
    if (status != 0 || connection.receive() != 0) return 2;
    return next_round() == "A=1,B=," ? 0 : 3;
  });
  ASSERT_TRUE(guardian.is_at_work());
  guardian.cut(3);
  ASSERT_TRUE(guardian.next(Mark::kLeft, 1));
  ASSERT_TRUE(guardian.give(4));
  EXPECT_EQ(guardian.exit_code(), 0);
}

}  // namespace
}  // namespace elastic::guardian
