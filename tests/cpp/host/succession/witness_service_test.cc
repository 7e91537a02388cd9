// A witness whose port any process can reach.

#include "host/succession/witness_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/succession/voter_wire.h"
#include "os/loop/thread.h"
#include "support/loop_group.h"

namespace elastic::host {
namespace {

using namespace std::chrono_literals;

class WitnessServiceTest : public ::testing::Test {
 protected:
  WitnessServiceTest() {
    thread_->call([this] {
      witness_ = *WitnessService::open(
          &thread_->loop(), {.host = "127.0.0.1",
                             .log = [this](std::string_view line) { lines_.emplace_back(line); }});
    });
  }
  ~WitnessServiceTest() override {
    thread_->call([this] { witness_.reset(); });
  }

  // Whether the witness offers its vote to this job.
  bool answers(const std::string& job) {
    std::unique_ptr<VoterLinks> links;
    std::size_t replies = 0;
    const VoterLinks::Sink sink = {.on_frame = [&](VoterLinks::ConnectionId, const std::string&,
                                                   std::string_view) { ++replies; },
                                   .on_lost = {},
                                   .log = {}};
    thread_->call([&] {
      links = std::make_unique<VoterLinks>(&thread_->loop(), job, nullptr, VoterLinkLimits{}, sink);
      links->send(0, "127.0.0.1:" + std::to_string(witness_->port()),
                  succession::encode_frame({job, {1, 1}, {}, succession::Probe{{7, 7}}}));
    });
    group_.run_until([&] { return replies > 0; }, 10s);
    thread_->call([&] { links.reset(); });
    return replies > 0;
  }

  support::LoopGroup group_;
  std::vector<std::string> lines_;
  const std::unique_ptr<os::LoopThread> thread_ = *os::LoopThread::start("witness", &group_);
  std::unique_ptr<WitnessService> witness_;
};

// Without a token any process can name jobs: more than the witness keeps, here.
TEST_F(WitnessServiceTest, OneAddressDoesNotTakeItsPlacesFromOtherJobs) {
  for (int i = 0; i < 4100; ++i) {
    ASSERT_TRUE(answers("named" + std::to_string(i))) << "job " << i;
  }
  EXPECT_TRUE(answers("job"));
  EXPECT_TRUE(answers("job")) << "again";
}

}  // namespace
}  // namespace elastic::host
