// What the guardian reports of the pages of its workers.

#include "guardian/pages.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/frame.h"
#include "core/workers/guardian_protocol.h"
#include "elastic/worker.h"
#include "guardian/channel.h"
#include "guardian/worker.h"
#include "host/workers/forked_worker.h"

namespace elastic::guardian::pages {
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

TEST(Signatures, AreReportedOnceWhenNoPageChangesAnyMore) {
  std::vector<Worker> workers = worker_that([](elastic_worker_page* page) {
    char* const bytes = reinterpret_cast<char*>(page);
    std::strcpy(bytes + ELASTIC_WORKER_GROUPS_OFFSET, "0\t0-3\n");
    std::strcpy(bytes + ELASTIC_WORKER_SIGNATURES_OFFSET, "7\t0\t0\t\t64\tr0f3a\n");
    page->signatures_sequence = 2;
  });
  std::string events;
  take_signatures(&workers, &events);
  EXPECT_EQ(events, "");  // the page has changed
  take_signatures(&workers, &events);
  core::FrameBuffer buffer(kFrameLimits);
  buffer.append(events);
  std::string_view payload;
  ASSERT_EQ(buffer.next(&payload), core::FrameStatus::kFrame);
  Event event;
  ASSERT_TRUE(decode_event(payload, &event));
  const SignaturesEvent expected{3, true, "7\t0\t0\t\t64\tr0f3a\n", "0\t0-3\n"};
  EXPECT_EQ(event, Event(expected));
  events.clear();
  take_signatures(&workers, &events);
  EXPECT_EQ(events, "");
}

}  // namespace
}  // namespace elastic::guardian::pages
