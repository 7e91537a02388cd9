#include "core/workers/worker_group.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>

#include "core/workers/worker_exits.h"

namespace elastic::core {
namespace {

using namespace std::chrono_literals;
using guardian::StartKind;
using guardian::TemplateEvent;
using guardian::TemplateNews;

TemplateEvent news(TemplateNews kind, std::string_view text = "", std::uint32_t id = 0) {
  return {kind, id, Instant(), text};
}

StartKind begin(WarmTemplate* machine, std::size_t workers) {
  return machine->begin_generation(workers, 30s, Instant()).kind;
}

TEST(WarmTemplate, WorkersAreExecutedWithoutATemplate) {
  WarmTemplate machine(false);
  EXPECT_EQ(begin(&machine, 1), StartKind::kExec);
  EXPECT_EQ(begin(&machine, 8), StartKind::kExec);
}

TEST(WarmTemplate, OnlySeveralWorkersWaitForTheImportsInTheFirstGeneration) {
  WarmTemplate one(true);
  EXPECT_EQ(begin(&one, 1), StartKind::kExec);
  WarmTemplate several(true);
  const WarmTemplate::Start start = several.begin_generation(2, 30s, Instant(1s));
  EXPECT_EQ(start.kind, StartKind::kFork);
  EXPECT_EQ(start.wait, 30s);
  EXPECT_EQ(start.notice, "");
  EXPECT_TRUE(several.is_importing());
  EXPECT_EQ(several.on(news(TemplateNews::kReady)).notice, "");
  EXPECT_FALSE(several.is_importing());
  EXPECT_EQ(begin(&several, 1), StartKind::kFork);
}

// On a busy host a failure may come before the imports are done. They are ahead of those of a new
// worker, which would take more of the processor from them.
TEST(WarmTemplate, ASingleWorkerWaitsForImportsThatAreAheadOfItsOwn) {
  WarmTemplate machine(true, Instant(10s));
  EXPECT_EQ(machine.begin_generation(1, 30s, Instant(10s)).kind, StartKind::kExec);
  machine.on(news(TemplateNews::kImporting, "torch._dynamo"));
  const WarmTemplate::Start next = machine.begin_generation(1, 30s, Instant(18s));
  EXPECT_EQ(next.kind, StartKind::kFork);
  EXPECT_EQ(next.wait, 8s) << "as long as the imports have taken so far";
  EXPECT_EQ(next.notice, "the workers wait for the template process, which imports torch._dynamo");
  EXPECT_EQ(machine.begin_generation(1, 30s, Instant(100s)).wait, 30s);
  machine.on(news(TemplateNews::kReady));
  EXPECT_EQ(machine.begin_generation(1, 30s, Instant(101s)).notice, "");

  // A new process is ahead of nothing.
  WorkerExit end = killed(SIGKILL);
  end.at = Instant(102s);
  EXPECT_TRUE(machine.on_end(end).starts);
  EXPECT_EQ(machine.begin_generation(1, 30s, Instant(103s)).kind, StartKind::kExec);
  EXPECT_EQ(machine.begin_generation(1, 30s, Instant(105s)).wait, 3s);
}

TEST(WarmTemplate, UnfitTemplateIsReportedOnceAndNotReplaced) {
  WarmTemplate machine(true);
  EXPECT_EQ(begin(&machine, 2), StartKind::kFork);
  EXPECT_EQ(machine.on(news(TemplateNews::kUnfit, "the import of x left a thread")).notice,
            "--warm is off, workers start as usual: the import of x left a thread");
  EXPECT_EQ(machine.on(news(TemplateNews::kExecuted, "the same reason")).notice, "");
  const WarmTemplate::Reaction end = machine.on_end(exited(0));
  EXPECT_FALSE(end.starts);
  EXPECT_EQ(end.notice, "");
  EXPECT_EQ(begin(&machine, 2), StartKind::kExec);
}

TEST(WarmTemplate, ModuleThatIsLeftOutIsReportedOnceAndTheOthersAreUsed) {
  WarmTemplate machine(true);
  const auto left_out = news(TemplateNews::kLeftOut, "the import of x left a thread");
  EXPECT_EQ(machine.on(left_out).notice,
            "--warm: each worker imports a module of the script itself: the import of x left a "
            "thread");
  EXPECT_EQ(machine.on(left_out).notice, "") << "a template that was started again reports it too";
  machine.on(news(TemplateNews::kReady));
  EXPECT_EQ(begin(&machine, 2), StartKind::kFork);
}

TEST(WarmTemplate, DeathDuringAnImportNamesTheModuleAndIsFinal) {
  WarmTemplate machine(true);
  machine.on(news(TemplateNews::kImporting, "torch"));
  const WarmTemplate::Reaction end = machine.on_end(killed(SIGKILL));
  EXPECT_FALSE(end.starts);
  EXPECT_EQ(end.notice,
            "--warm is off, workers start as usual: the template process was killed by signal "
            "9 (SIGKILL) while it imported torch");
}

TEST(WarmTemplate, ChangedFileStartsANewTemplate) {
  WarmTemplate machine(true);
  machine.on(news(TemplateNews::kReady));
  EXPECT_NE(machine.on(news(TemplateNews::kStale, "/a.py")).notice, "");
  EXPECT_EQ(begin(&machine, 1), StartKind::kExec);
  EXPECT_TRUE(machine.on_end(exited(0)).starts);
  EXPECT_EQ(begin(&machine, 2), StartKind::kFork);
}

TEST(WarmTemplate, ReadyTemplateIsReplacedALimitedNumberOfTimes) {
  WarmTemplate machine(true);
  for (int i = 0; i < WarmTemplate::kRenewalsMax; ++i) {
    machine.on(news(TemplateNews::kReady));
    EXPECT_TRUE(machine.on_end(killed(SIGKILL)).starts);
  }
  machine.on(news(TemplateNews::kReady));
  const WarmTemplate::Reaction end = machine.on_end(killed(SIGKILL));
  EXPECT_FALSE(end.starts);
  EXPECT_NE(end.notice, "");
}

TEST(WarmTemplate, ExecutedWorkersAreReportedOncePerGeneration) {
  WarmTemplate machine(true);
  machine.on(news(TemplateNews::kReady));
  for (int generation = 0; generation < 2; ++generation) {
    begin(&machine, 2);
    EXPECT_EQ(machine.on(news(TemplateNews::kExecuted, "late", 1)).notice,
              "local rank 1 is executed, not forked: late");
    EXPECT_EQ(machine.on(news(TemplateNews::kExecuted, "late", 0)).notice, "");
  }
}

}  // namespace
}  // namespace elastic::core
