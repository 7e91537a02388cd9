#include "core/hang/stack_text.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/describe.h"
#include "core/base/text.h"

namespace elastic::core {
namespace {

using Kind = hang::StackGroup::Kind;

const std::string kThread = "Thread 0x00007f0d7b5f4740 (most recent call first):\n";
const std::string kCurrent = "Current thread 0x00007f0d7b5f4740 (most recent call first):\n";
const std::string kC10d = "/venv/lib/python3.11/site-packages/torch/distributed/";

std::string frame(const std::string& file, int line, const std::string& function) {
  return "  File \"" + file + "\", line " + std::to_string(line) + " in " + function + "\n";
}

WorkerEvidence worker(int rank, std::string text, char state = 'S') {
  return {.rank = rank, .step = 5, .state = state, .text = std::move(text)};
}

std::string in_all_reduce() {
  return kCurrent + frame(kC10d + "distributed_c10d.py", 2501, "all_reduce") +
         frame(kC10d + "c10d_logger.py", 81, "wrapper") + frame("/app/train.py", 88, "train") +
         frame("/app/train.py", 120, "<module>");
}

TEST(StackText, NamesTheLibraryCallAndTheLineOfTheUser) {
  const hang::StackGroup group = locate(worker(1, in_all_reduce()));
  EXPECT_EQ(group.label, "in all_reduce (train.py:88)");
  EXPECT_EQ(group.kind, Kind::kWaiting);
}

TEST(StackText, NamesTheFunctionOfTheUserWhereNoLibraryIsAbove) {
  const hang::StackGroup group = locate(worker(
      3, kThread + frame("/usr/lib/python3.11/threading.py", 320, "wait") + "\n" + kCurrent +
             frame("/app/data.py", 41, "__getitem__") + frame("/app/train.py", 80, "train")));
  EXPECT_EQ(group.label, "in __getitem__ (data.py:41)");
  EXPECT_EQ(group.kind, Kind::kAtWork);
}

TEST(StackText, WorkerThatOnlyWaitsInTheStandardLibraryIsAtWork) {
  const hang::StackGroup group =
      locate(worker(3, kCurrent + frame("/usr/lib/python3.11/threading.py", 320, "wait") +
                           frame("/app/train.py", 80, "train")));
  EXPECT_EQ(group.label, "in wait (train.py:80)");
  EXPECT_EQ(group.kind, Kind::kAtWork);
}

TEST(StackText, PlacesBeyondTheLimitAreOneGroup) {
  std::vector<WorkerEvidence> workers;
  const int count = static_cast<int>(hang::kGroupsMax) + 6;
  for (int rank = 0; rank < count; ++rank) {
    workers.push_back(worker(rank, kCurrent + frame("/app/train.py", 100 + rank, "train")));
  }
  const auto groups = group_stacks(workers);
  ASSERT_EQ(groups.size(), hang::kGroupsMax);
  EXPECT_EQ(groups.back().label, "at 7 other places");
  EXPECT_EQ(describe_ranks(groups.back().ranks), "7 ranks (63-69)");
}

TEST(StackText, EndsAtTheScript) {
  const std::string runner = "/venv/lib/python3.11/site-packages/elastic/";
  const std::string script = frame("/app/train.py", 88, "<module>");
  const std::string own = frame("/app/elastic/_warm/mine.py", 1, "inner") + script;
  for (const std::string& text : {script,
                                  script + frame(runner + "_warm/child.py", 223, "_run_script") +
                                      frame(runner + "_warm/template.py", 240, "<module>"),
                                  script + frame(runner + "worker/auto.py", 92, "_run_script") +
                                      frame("<frozen runpy>", 88, "_run_code")}) {
    EXPECT_EQ(locate(worker(0, kCurrent + text)).text, script);
  }
  EXPECT_EQ(locate(worker(0, kCurrent + own)).text, own) << "only outermost frames are left out";
  EXPECT_EQ(locate(worker(0, kCurrent + frame("<frozen runpy>", 88, "_run_code"))).text, "");
}

TEST(StackText, DescribesWorkersWithoutAStackByTheKernel) {
  EXPECT_EQ(locate(worker(0, "", 'T')).label, "stopped by a signal");
  EXPECT_EQ(locate(worker(0, "", 'T')).kind, Kind::kStopped);
  EXPECT_EQ(locate(worker(0, "", 'R')).label, "running, without a Python stack");
  WorkerEvidence asleep = worker(0, "", 'D');
  EXPECT_EQ(locate(asleep).label, "in uninterruptible sleep in the kernel and does not answer");
  asleep.wait_channel = "folio_wait_bit";
  EXPECT_EQ(locate(asleep).label,
            "in uninterruptible sleep in the kernel (folio_wait_bit) and does not answer");
  EXPECT_EQ(locate(asleep).kind, Kind::kStopped);
  asleep.text = in_all_reduce();
  EXPECT_EQ(locate(asleep).label,
            "in all_reduce (train.py:88), in uninterruptible sleep in the kernel (folio_wait_bit)")
      << "another thread has answered";
  EXPECT_EQ(locate(asleep).kind, Kind::kWaiting);
  WorkerEvidence blocked = worker(0, "");
  blocked.wait_channel = "pipe_read";
  EXPECT_EQ(locate(blocked).label, "waiting in the kernel (pipe_read)");
}

TEST(StackText, SaysThatTheRecorderDoesNotShowSomeCalls) {
  const std::string user = frame("/app/train.py", 88, "train");
  const auto in = [](const std::string& function) {
    return frame(kC10d + "distributed_c10d.py", 2501, function);
  };
  const std::string wrapper = frame(kC10d + "c10d_logger.py", 81, "wrapper");
  const auto label = [&](const std::string& frames) {
    const hang::StackGroup group = locate(worker(0, kCurrent + frames + user));
    EXPECT_EQ(group.kind, Kind::kWaiting) << frames;
    return group.label;
  };
  const std::string unseen = ", which the flight recorder does not show";
  for (const std::string call : {"send", "recv", "batch_isend_irecv", "monitored_barrier"}) {
    EXPECT_EQ(label(in(call) + wrapper), "in " + call + " (train.py:88)" + unseen);
  }
  // The last one is of torch 2.14.
  for (const std::string inner :
       {"_store_based_barrier", "_new_process_group_helper", "_create_gloo_process_group"}) {
    EXPECT_EQ(label(in(inner) + in("_new_group_with_tag") + wrapper + in("new_group")),
              "in new_group (train.py:88)" + unseen);
  }
  EXPECT_EQ(label(in("recv") + wrapper + in("recv_object_list")),
            "in recv_object_list (train.py:88), in recv" + unseen);
  EXPECT_EQ(label(frame(kC10d + "pipelining/schedules.py", 12, "_wait_batch_p2p") +
                  frame(kC10d + "pipelining/schedules.py", 500, "step")),
            "in step (train.py:88), in _wait_batch_p2p" + unseen);
  EXPECT_EQ(label(in("barrier") + wrapper + in("new_group")), "in new_group (train.py:88)")
      << "that barrier is recorded";
  EXPECT_EQ(label(in("all_reduce") + wrapper), "in all_reduce (train.py:88)");
  EXPECT_EQ(
      locate(worker(0, kCurrent + frame("/usr/lib/python3.11/socket.py", 7, "recv") + user)).label,
      "in recv (train.py:88)")
      << "of a socket";
}

TEST(StackText, AcceptsAnyBytes) {
  for (const std::string& text :
       {std::string("(most recent call first):\n  File \""), std::string(70000, '('),
        kCurrent + frame("", -1, ""), kCurrent + "  File \"\x01\xff\", line 1 in \x7f\n",
        kCurrent + std::string(5000, '\n') + frame("/a.py", 1, std::string(9000, 'x'))}) {
    const hang::StackGroup group = locate(worker(0, text));
    EXPECT_LE(group.text.size(), hang::kStackBytesMax);
    EXPECT_LE(group.label.size(), hang::kLabelBytesMax);
    EXPECT_TRUE(is_printable(group.text, Lines::kMany));
    EXPECT_TRUE(is_printable(group.label, Lines::kOne));
  }
}

TEST(StackText, GroupsRanksAtTheSamePlace) {
  std::vector<WorkerEvidence> workers;
  for (int rank = 0; rank < 8; ++rank) workers.push_back(worker(rank, in_all_reduce()));
  workers[3] = worker(3, kCurrent + frame("/app/data.py", 41, "__getitem__"));
  const auto groups = group_stacks(workers);
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(describe_ranks(groups[0].ranks), "7 ranks (0-2,4-7)");
  EXPECT_EQ(describe_ranks(groups[1].ranks), "rank 3");
  EXPECT_EQ(find_suspect(groups), 3);
}

TEST(StackText, GroupsOfNodesThatReplyInAnyOrderAreSorted) {
  StackGroups groups;
  groups.add(
      {.ranks = {6, 4}, .oldest = 9, .kind = Kind::kWaiting, .label = "in all_reduce", .text = ""});
  groups.add({.ranks = {5}, .oldest = 8, .kind = Kind::kAtWork, .label = "in read", .text = ""});
  groups.add({.ranks = {}, .oldest = 0, .kind = Kind::kAtWork, .label = "of no rank", .text = ""});
  groups.add(
      {.ranks = {1, 0}, .oldest = 7, .kind = Kind::kWaiting, .label = "in all_reduce", .text = ""});
  const auto all = groups.take();
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].ranks, (std::vector<std::int32_t>{0, 1, 4, 6}));
  EXPECT_EQ(all[0].oldest, 7);
  EXPECT_EQ(all[1].ranks, std::vector<std::int32_t>{5});
  EXPECT_TRUE(groups.take().empty());
}

TEST(StackText, SuspectsAStoppedRankOrTheOneThatWaitsForNoOther) {
  const auto suspect = [](const std::vector<WorkerEvidence>& workers) {
    return find_suspect(group_stacks(workers));
  };
  const auto in_read = kCurrent + frame("/app/data.py", 41, "read");
  const auto at = [](int line) { return kCurrent + frame("/app/train.py", line, "step"); };
  EXPECT_EQ(suspect({worker(0, in_all_reduce()), worker(1, in_read), worker(2, in_read)}), 1)
      << "though more ranks are stuck than wait";
  EXPECT_EQ(suspect({worker(0, in_read), worker(1, in_all_reduce()), worker(2, "", 'T')}), 2);
  EXPECT_EQ(suspect({worker(0, in_read), worker(1, in_all_reduce()), worker(2, "", 'D')}), 2);
  EXPECT_EQ(suspect({worker(0, in_all_reduce()), worker(1, in_all_reduce())}), -1);
  EXPECT_EQ(suspect({}), -1);
  // With NCCL a rank waits for the others in any call that needs a result of its device.
  EXPECT_EQ(suspect({worker(0, at(7)), worker(1, in_read)}), -1) << "all at places of their own";
  EXPECT_EQ(suspect({worker(0, at(7)), worker(1, at(7)), worker(2, in_read)}), 2);
  EXPECT_EQ(suspect({worker(0, in_all_reduce()), worker(1, at(7)), worker(2, in_read)}), 1);
}

TEST(StackText, DescribesEachWorkerWithAllItsThreads) {
  const std::string thread = kThread + frame("/app/data.py", 41, "load") + "\n";
  const WorkerEvidence silent{.rank = 4, .state = 'S', .wait_channel = "futex_wait"};
  EXPECT_EQ(describe_stacks({worker(1, thread + in_all_reduce()), silent}),
            "rank 1, at step 5: in all_reduce (train.py:88)\n" + thread + in_all_reduce() +
                "rank 4: waiting in the kernel (futex_wait)\n");
  EXPECT_EQ(describe_stacks({worker(2, "\x1b[31m\xff")}),
            "rank 2, at step 5: waiting in the kernel\n\uFFFD[31m\uFFFD\n");
  EXPECT_EQ(describe_stacks({}), "");
}

}  // namespace
}  // namespace elastic::core
