// What the guardian reports of the pages of its workers.

#include "guardian/pages.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "elastic/worker.h"
#include "guardian/channel.h"
#include "guardian/worker.h"
#include "host/workers/forked_worker.h"

namespace elastic::guardian {
namespace {

using namespace std::chrono_literals;

Instant at(Duration time) { return Instant{} + 100s + time; }

// A worker that has written its page, and watches its collective operations.
template <typename Write>
std::vector<Worker> worker_that(Write write) {
  std::vector<Worker> workers(1);
  workers[0].id = 3;
  workers[0].channel = Channel::create();
  support::ForkedWorker child(&workers[0].channel, [&] {
    if (elastic_worker_open() != 1) return 1;
    write(elastic_worker_page_in_use);
    elastic_worker_announce_watch();
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
  workers[0].channel.read_messages();
  return workers;
}

TEST(ProgressSampler, AWaitIsReportedOnce) {
  std::vector<Worker> workers = worker_that([](elastic_worker_page* page) {
    page->waits_since = std::chrono::nanoseconds(at(0s).time_since_epoch()).count();
  });
  ProgressSampler sampler;
  sampler.set_interval(1s);
  const auto first = sampler.take(&workers, at(5s));
  ASSERT_TRUE(first);
  EXPECT_EQ(first->waiting, 1U);
  EXPECT_EQ(first->waited, 5s);
  EXPECT_FALSE(sampler.take(&workers, at(6s)));
}

}  // namespace
}  // namespace elastic::guardian
