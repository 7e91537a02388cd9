#include "host/succession/voter_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "core/succession/voter_wire.h"
#include "host/auth/token_source.h"
#include "os/loop/thread.h"
#include "os/net/dialer.h"
#include "os/net/listener.h"
#include "os/net/stream_socket.h"
#include "support/loop_group.h"

namespace elastic::host {
namespace {

using namespace std::chrono_literals;
using support::LoopGroup;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class VoterLinksTest : public ::testing::Test {
 protected:
  LoopGroup group_;
};

// One side's links on a loop, and everything that it received.
class Side {
 public:
  explicit Side(const std::string& job, VoterLinkLimits limits = {}, bool replies = false,
                const std::string& token = "") {
    thread_->call([&] {
      std::shared_ptr<Tokens> tokens;
      if (!token.empty()) tokens = *TokenSource::open({.file = "", .text = token}, nullptr);
      links_ = std::make_unique<VoterLinks>(
          &thread_->loop(), job, tokens, limits,
          VoterLinks::Sink{
              .on_frame =
                  [this, replies](VoterLinks::ConnectionId from, const std::string&,
                                  std::string_view frame) {
                    if (replies) links_->send(from, "", "re: " + std::string(frame));
                    frames_.push_back(std::string(frame));
                  },
              .on_lost =
                  [this](const std::string& address, const Status& why) {
                    losses_.push_back(address + ": " + std::string(why.message()));
                  },
              .log = [this](const std::string& message) { logs_.push_back(message); }});
    });
  }
  ~Side() {
    thread_->call([this] { links_.reset(); });
  }

  std::string listen() {
    thread_->call([this] { EXPECT_TRUE(links_->listen("127.0.0.1", {}).ok()); });
    return "127.0.0.1:" + std::to_string(links_->port());
  }
  void send(const std::string& address, const std::string& frame) {
    thread_->call([&] { links_->send(0, address, frame); });
  }

  std::vector<std::string> frames(std::size_t count) { return await(frames_, count); }
  std::vector<std::string> losses(std::size_t count) { return await(losses_, count); }
  std::vector<std::string> logs(std::size_t count) { return await(logs_, count); }

 private:
  // Once the list has this many entries.
  std::vector<std::string> await(const std::vector<std::string>& list, std::size_t count) {
    group_.run_until([&] { return list.size() >= count; }, 1min);
    return list;
  }

  LoopGroup& group_ = *LoopGroup::current();
  std::vector<std::string> frames_, losses_, logs_;
  const std::unique_ptr<os::LoopThread> thread_ = *os::LoopThread::start("voter", &group_);
  std::unique_ptr<VoterLinks> links_;
};

void carry_frames_and_replies(const std::string& token = "") {
  Side voter("job", {}, true, token);
  Side coordinator("job", {}, false, token);
  const std::string address = voter.listen();
  coordinator.send(address, "one");
  coordinator.send(address, "two");
  coordinator.send(address, std::string(1 << 20, 'x'));
  const auto received = voter.frames(3);
  ASSERT_EQ(received.size(), 3U);
  EXPECT_EQ(received[0], "one");
  EXPECT_EQ(received[1], "two");
  EXPECT_EQ(received[2].size(), std::size_t{1} << 20);
  EXPECT_EQ(coordinator.frames(3)[0], "re: one");
}

TEST_F(VoterLinksTest, CarryFramesInOrderAndRepliesOnTheSameConnection) {
  carry_frames_and_replies();
}

TEST_F(VoterLinksTest, StayOpenLongerThanAGreetingMayTake) {
  Side voter("job", {}, true);
  Side coordinator("job");
  const std::string address = voter.listen();
  coordinator.send(address, "one");
  ASSERT_EQ(coordinator.frames(1).size(), 1U);
  group_.advance(4 * VoterLinkLimits().greeting_timeout);
  coordinator.send(address, "two");
  EXPECT_EQ(coordinator.frames(2).back(), "re: two");
  EXPECT_TRUE(coordinator.losses(0).empty());
  EXPECT_TRUE(voter.losses(0).empty());
}

TEST_F(VoterLinksTest, ReportAnAddressThatDoesNotAnswer) {
  const auto unused = os::ReservedPort::open("127.0.0.1", 0);
  ASSERT_TRUE(unused.ok());
  const std::string address = "127.0.0.1:" + std::to_string(unused->port());
  Side coordinator("job");
  coordinator.send(address, "lost");
  EXPECT_THAT(coordinator.losses(1), ElementsAre(HasSubstr("cannot connect to " + address)));
}

TEST_F(VoterLinksTest, ReportTheEndOfAConnectionAndConnectAgain) {
  Side coordinator("job");
  std::string address;
  {
    Side voter("job");
    address = voter.listen();
    coordinator.send(address, "one");
    ASSERT_EQ(voter.frames(1).size(), 1U);
  }
  EXPECT_THAT(coordinator.losses(1), ElementsAre(HasSubstr(address)));
}

TEST_F(VoterLinksTest, RefuseANodeOfAnotherJobAndSayWhy) {
  Side voter("job");
  Side other("other");
  other.send(voter.listen(), "vote for me");
  EXPECT_THAT(other.losses(1), ElementsAre(HasSubstr("this is a voter of another job")));
  EXPECT_THAT(voter.logs(1), ElementsAre(HasSubstr("a connection of 127.0.0.1")));
  EXPECT_TRUE(voter.frames(0).empty());
}

// ---- With a token.

constexpr const char* kToken = "a-token-of-32-characters-00000000";

class VoterLinksWithToken : public VoterLinksTest {
 protected:
  void SetUp() override {
    if (const Status missing = os::check_tls(); !missing.ok()) GTEST_SKIP() << missing.message();
  }
};

TEST_F(VoterLinksWithToken, CarryTheSame) { carry_frames_and_replies(kToken); }

TEST_F(VoterLinksWithToken, RefuseANodeWithoutATokenAndBothSidesLogWhatToDo) {
  Side voter("job", {}, true, kToken);
  Side other("job");
  other.send(voter.listen(), "vote for me");
  EXPECT_THAT(other.losses(1),
              ElementsAre(HasSubstr("it refused: a node of this job needs a token, and")));
  EXPECT_THAT(other.logs(1), ElementsAre(HasSubstr("cannot be used: it refused: a node")));
  EXPECT_THAT(voter.logs(1), ElementsAre(HasSubstr("a connection of 127.0.0.1 to the voter port")));
  EXPECT_TRUE(voter.frames(0).empty());
}

TEST_F(VoterLinksWithToken, RefuseAnotherTokenAndTheTokenOfAnObserver) {
  Side voter("job", {}, true, kToken);
  const std::string address = voter.listen();
  Side other("job", {}, false, "another-token-of-32-characters-0");
  other.send(address, "vote for me");
  EXPECT_THAT(other.losses(1), ElementsAre(HasSubstr("does not know the token of this node")));
  EXPECT_THAT(voter.logs(1), ElementsAre(HasSubstr("its token is not valid here")));
  Side observer("job", {}, false, *observer_token({.file = "", .text = kToken}, "job"));
  observer.send(address, "vote for me");
  EXPECT_THAT(observer.losses(1), ElementsAre(HasSubstr("does not allow it to take part")));
  EXPECT_TRUE(voter.frames(0).empty());
}

TEST_F(VoterLinksWithToken, ANodeWithoutATokenReportsThatAnotherOneHasOne) {
  Side voter("job");
  Side other("job", {}, false, kToken);
  other.send(voter.listen(), "vote for me");
  EXPECT_THAT(voter.logs(1), ElementsAre(HasSubstr("it uses a token, and this node has none")));
  EXPECT_EQ(other.losses(1).size(), 1U);
}

// ---- Faulty peers.

os::UniqueFd connect_to(const std::string& address) {
  const auto target = os::parse_address_and_port(address);
  os::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(fd.get(), target->get(), target->size), 0);
  return fd;
}

bool is_readable(const os::UniqueFd& fd) {
  pollfd item{fd.get(), POLLIN, 0};
  return ::poll(&item, 1, 0) > 0;
}

// Whether the other side has closed the connection; waits for it.
bool is_closed(const os::UniqueFd& fd) {
  char byte = 0;
  return LoopGroup::current()->run_until([&] { return is_readable(fd); }) &&
         ::recv(fd.get(), &byte, 1, 0) <= 0;
}

TEST_F(VoterLinksTest, CloseConnectionsThatSendNoGreeting) {
  Side voter("job");
  const auto silent = connect_to(voter.listen());
  const Instant begun = group_.now();
  EXPECT_TRUE(is_closed(silent));
  EXPECT_EQ(group_.now() - begun, VoterLinkLimits{}.greeting_timeout);
}

TEST_F(VoterLinksTest, CloseConnectionsOfAnotherProtocol) {
  Side voter("job");
  const auto other = connect_to(voter.listen());
  ASSERT_EQ(::send(other.get(), "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL), 18);
  EXPECT_TRUE(is_closed(other));
  EXPECT_THAT(voter.logs(1), ElementsAre(HasSubstr("speaks another protocol")));
}

TEST_F(VoterLinksTest, LimitTheConnectionsWithoutAHandshake) {
  VoterLinkLimits limits;
  limits.pending_per_address_max = 4;
  limits.accepted_per_address_max = 4;
  Side voter("job", limits);
  const std::string address = voter.listen();
  std::vector<os::UniqueFd> silent;
  for (int i = 0; i < 5; ++i) silent.push_back(connect_to(address));
  EXPECT_TRUE(is_closed(silent.front()));

  std::string greeting(voter::kMagic);
  voter::append(&greeting, voter::Greeting{.job_id = "job"});
  std::vector<os::UniqueFd> greeted;
  for (int i = 0; i < 5; ++i) {
    greeted.push_back(connect_to(address));
    ASSERT_GT(::send(greeted.back().get(), greeting.data(), greeting.size(), MSG_NOSIGNAL), 0);
    char reply[8];
    ASSERT_TRUE(group_.run_until([&] { return is_readable(greeted.back()); }, 1s));
    ASSERT_GT(::recv(greeted.back().get(), reply, sizeof reply, 0), 0);
  }
  group_.settle();
  std::string rest(4096, '\0');
  while (::recv(greeted.front().get(), rest.data(), rest.size(), 0) > 0) {
  }
  // A node of the job is served all the same.
  Side coordinator("job");
  coordinator.send(address, "one");
  EXPECT_THAT(voter.frames(1), ElementsAre("one"));
}

TEST(VoterGreeting, RefusesFramesThatAreTooLongOrMalformed) {
  voter::Frame frame;
  std::string bytes;
  voter::append(&bytes, voter::Greeting{.job_id = "job"});
  EXPECT_EQ(voter::decode(bytes, voter::kGreetingBytesMax, &frame).status,
            voter::DecodeStatus::kMessage);
  EXPECT_EQ(std::get<voter::Greeting>(frame).job_id, "job");
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(voter::decode(bytes.substr(0, size), voter::kGreetingBytesMax, &frame).status,
              voter::DecodeStatus::kNeedMore);
  }
  std::string payload;
  voter::append(&payload, voter::Payload{std::string(voter::kGreetingBytesMax, 'x')});
  EXPECT_EQ(voter::decode(payload, voter::kGreetingBytesMax, &frame).status,
            voter::DecodeStatus::kViolation);
  voter::Greeting later{.job_id = "job"};
  later.version = later.oldest_version = voter::kVersion + 1;
  EXPECT_THAT(std::string(voter::check_greeting(later, {.job_id = "job"}).message()),
              HasSubstr("version 2"));
}

}  // namespace
}  // namespace elastic::host
