// The rounds whose files the file thread opens.

#include "host/workers/worker_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "host/workers/worker_group_harness.h"
#include "os/loop/thread.h"
#include "support/loop_group.h"

namespace elastic::host {
namespace {

std::shared_ptr<const RoundInfo> round_of(std::uint64_t number) {
  auto round = std::make_shared<RoundInfo>();
  round->round = number;
  round->workers.resize(1);
  return round;
}

TEST(WorkerOutput, RoundThatBeginsWhileACancelledOneIsOpenedFollowsIt) {
  support::LoopGroup group;
  const auto thread = *os::LoopThread::start("agent", &group);
  const support::ScratchDir scratch;
  AgentOptions options;
  options.workers.resize(1);
  options.log_dir = scratch / "logs";
  WorkerOutput output(&thread->loop(), options, [](const std::string&) {});
  bool is_cancelled_opened = false;
  std::optional<Status> opened;
  output.begin_round(round_of(1), [&](const Status&) { is_cancelled_opened = true; });
  output.cancel_round();
  output.begin_round(round_of(2), [&](const Status& status) { opened = status; });
  ASSERT_TRUE(group.await([&] { return opened.has_value(); }));
  EXPECT_TRUE(opened->ok()) << opened->message();
  EXPECT_FALSE(is_cancelled_opened);
  EXPECT_THAT(output.files().directory, ::testing::EndsWith("attempt_1")) << "counted from 0";
}

}  // namespace
}  // namespace elastic::host
