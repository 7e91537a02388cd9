#include "host/gate/network_prober.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/gate/probe_exchange.h"
#include "host/succession/voter_links.h"
#include "os/base/fd.h"
#include "os/loop/thread.h"
#include "support/loop_group.h"

namespace elastic::host {
namespace {

using namespace std::chrono_literals;
using support::LoopGroup;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kToken = "a-token-of-32-characters-00000000";

class Node {
 public:
  explicit Node(LoopGroup* group, const std::string& token = "", const std::string& job = "job")
      : thread_(*os::LoopThread::start("node", group)) {
    thread_->call([&] {
      prober_ = *NetworkProber::open(
          &thread_->loop(),
          {.job_id = job, .bind_host = "127.0.0.1", .token = {.file = "", .text = token}},
          {.report = [this](const gate::ProbeReport& one) { reports.push_back(one); },
           .log = [this](const std::string& text) { logs.push_back(text); }});
    });
  }
  ~Node() { lose(); }
  void lose() {
    thread_->call([this] { prober_.reset(); });
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(prober_->port()); }
  void measure(const std::string& address, std::uint64_t check = 5) {
    thread_->call([&] { prober_->on_order({check, 1, address, "other", gate::kProbeOrderLimit}); });
  }

  std::vector<gate::ProbeReport> reports;
  std::vector<std::string> logs;

 private:
  std::unique_ptr<os::LoopThread> thread_;
  std::unique_ptr<NetworkProber> prober_;
};

class NetworkProberTest : public ::testing::Test {
 protected:
  std::optional<gate::ProbeReport> report_of(Node& node) {
    if (!group_.run_until([&] { return !node.reports.empty(); }, 10s)) return std::nullopt;
    return node.reports.front();
  }
  void expect_error(Node& node, const std::string& text) {
    const auto report = report_of(node);
    ASSERT_TRUE(report.has_value());
    EXPECT_FALSE(report->has_answered);
    EXPECT_THAT(report->error, HasSubstr(text));
  }

  LoopGroup group_;
};

TEST_F(NetworkProberTest, MeasuresTheNetworkToANodeThatAnswers) {
  for (const char* token : {"", kToken}) {
    Node a(&group_, token);
    Node b(&group_, token);
    a.measure(b.address());
    const auto report = report_of(a);
    ASSERT_TRUE(report.has_value());
    EXPECT_TRUE(report->has_answered) << report->error;
    EXPECT_EQ(report->check, 5U);
    EXPECT_EQ(report->round, 1U);
    EXPECT_GT(report->bytes_per_second, 0U);
    EXPECT_EQ(report->error, "");
    // Both ends of a pair may have an order, and a node another one after it.
    b.measure(a.address());
    EXPECT_TRUE(report_of(b)->has_answered);
    Node c(&group_, token);
    a.reports.clear();
    a.measure(c.address());
    EXPECT_TRUE(report_of(a)->has_answered);
    EXPECT_THAT(a.logs, IsEmpty());
  }
}

TEST_F(NetworkProberTest, AClosedPortIsReportedAtOnce) {
  Node a(&group_);
  std::string address;
  {
    Node b(&group_);
    address = b.address();
  }
  const Instant before = group_.now();
  a.measure(address);
  expect_error(a, "refused");
  EXPECT_LT(group_.now() - before, 1s);
}

// Accepts connections, and no more.
struct Listener {
  Listener() {
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(fd.get(), 8), 0);
    ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
  }
  std::string text() const { return "127.0.0.1:" + std::to_string(ntohs(address.sin_port)); }
  os::UniqueFd fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  sockaddr_in address{};
};

TEST_F(NetworkProberTest, APartnerThatAcceptsAndIsSilentEndsAtTheLimit) {
  Node a(&group_);
  const Listener silent;
  const Instant before = group_.now();
  a.measure(silent.text());
  const auto report = report_of(a);
  ASSERT_TRUE(report.has_value());
  EXPECT_FALSE(report->has_answered);
  EXPECT_NE(report->error, "");
  EXPECT_LE(group_.now() - before, gate::kProbeOrderLimit);
}

TEST_F(NetworkProberTest, APartnerThatIsLostMeanwhileIsReportedAtOnce) {
  Node a(&group_);
  const Listener other;
  const Instant before = group_.now();
  a.measure(other.text());
  os::UniqueFd connection;
  EXPECT_TRUE(group_.await([&] {
    connection = os::UniqueFd(::accept(other.fd.get(), nullptr, nullptr));
    return connection.valid();
  }));
  EXPECT_THAT(a.reports, IsEmpty());
  connection.reset();
  const auto report = report_of(a);
  ASSERT_TRUE(report.has_value());
  EXPECT_FALSE(report->has_answered);
  EXPECT_NE(report->error, "");
  EXPECT_LT(group_.now() - before, 1s);
}

TEST_F(NetworkProberTest, AnotherJobOrTokenIsRefused) {
  Node a(&group_);
  Node b(&group_, "", "another job");
  a.measure(b.address());
  expect_error(a, "it refused");
  Node c(&group_, kToken);
  a.reports.clear();
  a.measure(c.address());
  expect_error(a, "token");
}

TEST_F(NetworkProberTest, GarbageHasNoAnswerAndEndsNothing) {
  Node a(&group_);
  Node b(&group_);
  auto thread = *os::LoopThread::start("garbage", &group_);
  std::unique_ptr<VoterLinks> links;
  int answers = 0;
  thread->call([&] {
    links = std::make_unique<VoterLinks>(
        &thread->loop(), "job", nullptr, VoterLinkLimits{},
        VoterLinks::Sink{.on_frame = [&](auto, const auto&, std::string_view) { ++answers; },
                         .on_lost = [](const auto&, const Status&) {},
                         .log = [](const std::string&) {}});
    for (const std::string& one :
         {std::string("x"), std::string(17, '\0'), std::string(1 << 20, '\4'), std::string()}) {
      links->send(0, b.address(), one);
    }
    links->send(0, b.address(), gate::encode({gate::ProbeKind::kTaken, 1, 7}));
    links->send(0, b.address(), gate::encode({gate::ProbeKind::kPing, 1, 7}));
  });
  EXPECT_TRUE(group_.run_until([&] { return answers > 0; }, 1s));
  a.measure(b.address());
  EXPECT_TRUE(report_of(a)->has_answered);
  EXPECT_EQ(answers, 1);
  thread->call([&] { links.reset(); });
}

TEST_F(NetworkProberTest, TheLastOrderCounts) {
  Node a(&group_);
  Node b(&group_);
  a.measure("127.0.0.1:1", 5);
  a.measure(b.address(), 6);
  const auto report = report_of(a);
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->check, 6U);
  EXPECT_TRUE(report->has_answered);
  EXPECT_EQ(a.reports.size(), 1U);
}

TEST_F(NetworkProberTest, AProberCanEndWhileItMeasures) {
  Node a(&group_);
  Node b(&group_);
  a.measure(b.address());
  a.lose();
  b.measure(b.address());
  EXPECT_TRUE(report_of(b).has_value());
  EXPECT_THAT(a.reports, IsEmpty());
}

}  // namespace
}  // namespace elastic::host
