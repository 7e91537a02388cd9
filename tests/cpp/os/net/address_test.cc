#include "os/net/address.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netdb.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "os/loop/thread.h"
#include "os/net/listener.h"

namespace {

// While it is set, getaddrinfo() of names in this domain waits until it is cleared.
constexpr std::string_view kStalledDomain = ".stalled.invalid";
std::atomic<bool> is_stalled{false};

}  // namespace

// Replaces the C library's getaddrinfo() in this program, to simulate name servers that do not
// answer.
extern "C" int getaddrinfo(const char* host, const char* service, const addrinfo* hints,
                           addrinfo** found) {
  if (std::string_view(host).ends_with(kStalledDomain) && (hints->ai_flags & AI_NUMERICHOST) == 0) {
    is_stalled.wait(true);
    return EAI_AGAIN;
  }
  static const auto real =
      reinterpret_cast<decltype(&::getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  return real(host, service, hints, found);
}

namespace elastic::os {
namespace {

using ::testing::HasSubstr;
using Addresses = Result<std::vector<SocketAddress>>;

constexpr auto kLookupTimeout = std::chrono::seconds(60);

// Each test has a name of its own: the threads of an earlier one may still end.
class StalledResolver : public ::testing::Test {
 protected:
  StalledResolver() { is_stalled = true; }
  ~StalledResolver() override {
    release();
    give_up();
  }
  static void release() {
    is_stalled = false;
    is_stalled.notify_all();
  }
  Status start(const std::string& host, NameLookup::Done done) {
    Status started;
    thread_->call([&] {
      auto lookup = NameLookup::start(&thread_->loop(), host, 80, std::move(done));
      started = lookup.status();
      if (lookup.ok()) lookups_.push_back(*std::move(lookup));
    });
    return started;
  }
  // Destroys the lookups; their threads go on.
  void give_up() {
    thread_->call([this] { lookups_.clear(); });
  }

  std::unique_ptr<LoopThread> thread_ = *LoopThread::start("test-lookup");
  std::vector<std::unique_ptr<NameLookup>> lookups_;  // loop thread
};

TEST_F(StalledResolver, HasABoundedNumberOfThreadsForOneName) {
  const std::string host = "bounded.stalled.invalid";
  Status last;
  int started = 0;
  for (; started < 100; ++started) {
    last = start(host, [](const auto&) {});
    if (!last.ok()) break;
    give_up();
  }
  EXPECT_LT(started, 50);
  EXPECT_EQ(last.code(), StatusCode::kUnavailable);
  EXPECT_THAT(last.message(),
              HasSubstr("cannot resolve bounded.stalled.invalid: the resolver has not"));

  std::promise<Addresses> other;
  EXPECT_TRUE(start("localhost", [&](const Addresses& found) { other.set_value(found); }).ok());
  EXPECT_TRUE(other.get_future().get().ok()) << "of another name";
}

TEST_F(StalledResolver, IsAskedAgainWhenARequestHasEnded) {
  const std::string host = "ended.stalled.invalid";
  std::vector<std::promise<Addresses>> ended(100);
  std::size_t started = 0;
  for (; started < ended.size(); ++started) {
    std::promise<Addresses>* const one = &ended[started];
    if (!start(host, [one](const Addresses& found) { one->set_value(found); }).ok()) break;
  }
  release();
  for (std::size_t i = 0; i < started; ++i) EXPECT_FALSE(ended[i].get_future().get().ok());
  std::promise<Addresses> last;
  EXPECT_TRUE(start(host, [&](const Addresses& found) { last.set_value(found); }).ok());
  EXPECT_FALSE(last.get_future().get().ok());
}

TEST(NameLookup, ReportsOnTheLoopThread) {
  auto thread = *LoopThread::start("test-lookup");
  struct Case {
    const char* name;
    bool is_found;
  };
  for (const Case& example :
       {Case{"127.0.0.1", true}, {"localhost", true}, {"no-such-host.invalid", false}}) {
    std::promise<Addresses> outcome;
    std::unique_ptr<NameLookup> lookup;
    thread->call([&] {
      lookup = *NameLookup::start(&thread->loop(), example.name, 80, [&](const auto& found) {
        lookup.reset();
        outcome.set_value(found);
      });
    });
    auto future = outcome.get_future();
    ASSERT_EQ(future.wait_for(kLookupTimeout), std::future_status::ready);
    EXPECT_EQ(future.get().ok(), example.is_found) << example.name;
  }
}

TEST(NameLookup, MayBeDestroyedBeforeItsThreadHasFinished) {
  auto thread = *LoopThread::start("test-lookup");
  thread->call([&] {
    EXPECT_TRUE(
        NameLookup::start(&thread->loop(), "no-such-host.invalid", 80, [](const auto&) {}).ok());
  });
}

TEST(Interfaces, LoopbackIsNotAmongTheReachableAddresses) {
  for (const SocketAddress& address : interface_addresses()) {
    EXPECT_FALSE(address.is_loopback()) << address.host();
    EXPECT_TRUE(Listener::open(address.host(), 0).ok()) << address.host();
  }
  const std::string primary = primary_address();
  if (interface_addresses().empty()) GTEST_SKIP() << "no interface but loopback here";
  EXPECT_TRUE(Listener::open(primary, 0).ok()) << primary;
}

}  // namespace
}  // namespace elastic::os
