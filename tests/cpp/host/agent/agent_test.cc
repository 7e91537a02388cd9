#include "elastic/agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "host/agent/agent_harness.h"

namespace elastic {
namespace {

using support::Fifo;
using support::generous_deadline;
using support::options_of;
using support::read_all;
using support::run;
using support::RunningAgent;
using support::ScratchDir;
using support::shell;
using support::stub_worker;
using support::worker;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using Kind = AgentEvent::Kind;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Waits until the process is dead (a zombie counts).
void expect_death_of(int pid) {
  const os::UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!fd.valid()) return;  // it has already ended
  EXPECT_TRUE(os::wait_ready(fd.get(), POLLIN, {.deadline = generous_deadline()}).ok()) << pid;
}

// --- A round -------------------------------------------------------------------------------------

TEST(Agent, GivesEveryRankItsEnvironmentAndNothingElse) {
  const ScratchDir dir;
  AgentOptions options = options_of({stub_worker({"environment"}, StreamTarget::kFile),
                                     stub_worker({"environment"}, StreamTarget::kFile)});
  options.env = {"BASE=1", "RANK=from outside", "OMP_NUM_THREADS=1"};
  options.workers[1].env = {"LOCAL_RANK=0", "CUDA_VISIBLE_DEVICES=1"};
  options.run_id = "job 7";
  options.role = "trainer";
  options.rendezvous.settings.max_restarts = 4;
  options.log_dir = dir / "logs";
  RunningAgent agent(options);
  const AgentEvent round = agent.wait_for(Kind::kRoundStarting);
  EXPECT_EQ(agent.finish().exit_code, 0);
  ASSERT_NE(round.round, nullptr);
  const std::string port = "MASTER_PORT=" + std::to_string(round.round->master_port);
  for (const std::string rank : {"0", "1"}) {
    std::vector<::testing::Matcher<std::string>> expected = {
        ::testing::StartsWith("ELASTIC_CHANNEL="),
        "BASE=1",
        "OMP_NUM_THREADS=1",
        "LOCAL_RANK=0",
        "RANK=" + rank,
        "GROUP_RANK=0",
        "ROLE_RANK=" + rank,
        "ROLE_NAME=trainer",
        "LOCAL_WORLD_SIZE=2",
        "WORLD_SIZE=2",
        "GROUP_WORLD_SIZE=1",
        "ROLE_WORLD_SIZE=2",
        "MASTER_ADDR=127.0.0.1",
        port,
        "TORCHELASTIC_RESTART_COUNT=0",
        "TORCHELASTIC_MAX_RESTARTS=4",
        "TORCHELASTIC_RUN_ID=job 7",
        "TORCHELASTIC_USE_AGENT_STORE=True",
        "TORCHELASTIC_ERROR_FILE=" + round.log_dir + "/" + rank + "/error.json",
        "ELASTIC_ROUND=0",
        "ELASTIC_ON_MEMBERSHIP_CHANGE=restart",
        "ELASTIC_AWAITS_ROUND=0",
        "ELASTIC_MEMBERSHIP_CHANGE=",
        "ELASTIC_RESTART_CAUSE=",
        "ELASTIC_SAME_FAILURES=0"};
    if (rank == "1") expected.emplace_back("CUDA_VISIBLE_DEVICES=1");
    EXPECT_THAT(lines_of(read_all(round.log_dir + "/" + rank + "/stdout.log")),
                ::testing::UnorderedElementsAreArray(expected));
  }
}

TEST(Agent, ReportsTheEventsOfARound) {
  RunningAgent agent(options_of({stub_worker({"exit", "0"}), stub_worker({"exit", "0"})}));
  const AgentResult& result = agent.finish();
  EXPECT_EQ(result.state, AgentState::kSucceeded);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.message, "");
  EXPECT_THAT(result.failures, IsEmpty());
  EXPECT_EQ(agent.seen.front().kind, Kind::kRoundStarting);
  EXPECT_EQ(agent.seen.back().kind, Kind::kFinished);
  EXPECT_EQ(agent.all(Kind::kWorkerStarted).size(), 2u);
  EXPECT_EQ(agent.all(Kind::kWorkersRunning).size(), 1u);
  EXPECT_EQ(agent.all(Kind::kWorkerExited).size(), 2u);
  EXPECT_EQ(agent->next_event(generous_deadline()), std::nullopt) << "nothing follows the end";
}

TEST(Agent, StartsWorkersInTheirDirectory) {
  const ScratchDir dir;
  AgentOptions options = options_of({stub_worker({"directory"}, StreamTarget::kFile)});
  options.cwd = "/usr";
  options.log_dir = dir / "logs";
  RunningAgent agent(options);
  const AgentEvent round = agent.wait_for(Kind::kRoundStarting);
  agent.finish();
  EXPECT_EQ(read_all(round.log_dir + "/0/stdout.log"), "/usr\n");
}

TEST(Agent, RejectsInvalidOptions) {
  const auto error_of = [](AgentOptions options) {
    const auto agent = Agent::start(std::move(options));
    return agent.ok() ? StatusCode::kOk : agent.status().code();
  };
  EXPECT_EQ(error_of(options_of({})), StatusCode::kInvalidArgument);
  EXPECT_EQ(error_of(options_of({worker({})})), StatusCode::kInvalidArgument);
  AgentOptions options = options_of({stub_worker({"exit", "0"})});
  options.rendezvous.settings.max_restarts = -1;
  EXPECT_EQ(error_of(options), StatusCode::kInvalidArgument);
  options = options_of({stub_worker({"exit", "0"})});
  options.role = std::string(kNodeTextBytesMax + 1, 'r');
  EXPECT_EQ(error_of(options), StatusCode::kInvalidArgument);
  options = options_of({stub_worker({"exit", "0"})});
  options.guardian.guardian_path = "/no/such/guardian";
  EXPECT_EQ(error_of(options), StatusCode::kNotFound);
}

// --- Stop requests -------------------------------------------------------------------------------

TEST(Agent, StopsWhileWorkersStart) {
  std::vector<WorkerTemplate> workers(50, stub_worker({"pause"}, StreamTarget::kDiscard));
  RunningAgent agent(options_of(std::move(workers)));
  agent.wait_for(Kind::kRoundStarting);
  agent->request_stop(SIGTERM);
  EXPECT_EQ(agent.finish().exit_code, 128 + SIGTERM);
  EXPECT_EQ(agent.all(Kind::kWorkerExited).size(), 50u);
}

TEST(Agent, KillsItsWorkersWhenItIsDestroyed) {
  RunningAgent agent(options_of({stub_worker({"ignore", "15"}, StreamTarget::kDiscard)}));
  const int pid = agent.wait_for(Kind::kWorkerStarted).pid;
  agent.destroy();
  expect_death_of(pid);
}

// --- Files ---------------------------------------------------------------------------------------

TEST(Agent, KeepsLogsOfEveryAttemptApart) {
  const ScratchDir dir;
  WorkerTemplate both = shell("echo out $ELASTIC_ROUND; echo err >&2; exit 1", StreamTarget::kFile);
  both.stderr_target = StreamTarget::kFile;
  AgentOptions options = options_of({both});
  options.run_id = "../a/b";
  options.rendezvous.settings.max_restarts = 1;
  options.log_dir = std::filesystem::relative(dir / "logs").string();
  RunningAgent agent(options);
  const AgentResult& result = agent.finish();
  const auto rounds = agent.all(Kind::kRoundStarting);
  ASSERT_EQ(rounds.size(), 2u);
  EXPECT_THAT(rounds[0].log_dir, StartsWith(dir / "logs/_._a_b_"));
  EXPECT_THAT(rounds[0].log_dir, EndsWith("/attempt_0"));
  EXPECT_EQ(read_all(rounds[0].log_dir + "/0/stdout.log"), "out 0\n");
  ASSERT_EQ(result.failures.size(), 1u);
  EXPECT_EQ(result.failures[0].stdout_path, rounds[1].log_dir + "/0/stdout.log");
  EXPECT_EQ(read_all(result.failures[0].stdout_path), "out 1\n");
  EXPECT_EQ(read_all(result.failures[0].stderr_path), "err\n");
}

TEST(Agent, RemovesItsTemporaryDirectory) {
  RunningAgent agent(options_of({shell("echo cause > $TORCHELASTIC_ERROR_FILE; exit 1")}));
  const AgentEvent round = agent.wait_for(Kind::kRoundStarting);
  const AgentResult& result = agent.finish();
  ASSERT_EQ(result.failures.size(), 1u);
  EXPECT_EQ(read_all(result.failures[0].error_file), "cause\n") << "readable after the end";
  const auto permissions =
      std::filesystem::status(std::filesystem::path(round.log_dir).parent_path()).permissions();
  EXPECT_EQ(permissions, std::filesystem::perms::owner_all);
  agent.destroy();
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(round.log_dir).parent_path()));
}

// A container with a read-only root: no stream is written to a file, so no file is needed.
TEST(Agent, RunsWithoutATemporaryDirectoryUnlessAStreamNeedsOne) {
  const char* const old = std::getenv("TMPDIR");
  const std::string saved = old != nullptr ? old : "/tmp";
  ::setenv("TMPDIR", "/proc/self/no/such", 1);
  const AgentResult inherited =
      run(options_of({shell("test -z \"$TORCHELASTIC_ERROR_FILE\" || exit 3")}));
  const AgentResult logged = run(options_of({shell("exit 0", StreamTarget::kFile)}));
  ::setenv("TMPDIR", saved.c_str(), 1);
  EXPECT_EQ(inherited.exit_code, 0) << inherited.message;
  EXPECT_EQ(logged.exit_code, kExitCannotLog);
  EXPECT_THAT(logged.message, HasSubstr("/proc/self/no/such"));
}

TEST(Agent, ReportsThatItCannotLog) {
  AgentOptions options = options_of({stub_worker({"exit", "0"})});
  options.log_dir = "/proc/self/no/such";
  const AgentResult result = run(options);
  EXPECT_EQ(result.state, AgentState::kFailed);
  EXPECT_EQ(result.exit_code, kExitCannotLog);
  EXPECT_THAT(result.message, HasSubstr("/proc/self/no/such"));
}

// --- Tee -----------------------------------------------------------------------------------------

// What the agent writes to descriptors 1 and 2 until it has finished.
struct Console {
  AgentResult result;
  std::string out;
  std::string err;
};

Console run_with_console(AgentOptions options) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Console console;
  console.result = run(std::move(options));
  console.out = ::testing::internal::GetCapturedStdout();
  console.err = ::testing::internal::GetCapturedStderr();
  return console;
}

TEST(AgentTee, PrefixesWholeLinesOfBothStreams) {
  WorkerTemplate both = shell("echo out; echo err >&2", StreamTarget::kTee);
  both.stderr_target = StreamTarget::kTee;
  AgentOptions options = options_of({both});
  options.line_prefix = "<${role_name} ${rank} ${local_rank} ${other}> ";
  const Console console = run_with_console(options);
  EXPECT_EQ(console.out, "<default 0 0 ${other}> out\n");
  EXPECT_EQ(console.err, "<default 0 0 ${other}> err\n");
}

TEST(AgentTee, ShowsEveryAttempt) {
  AgentOptions options =
      options_of({shell("echo $ELASTIC_ROUND; test $ELASTIC_ROUND = 2", StreamTarget::kTee)});
  options.rendezvous.settings.max_restarts = 2;
  EXPECT_EQ(run_with_console(options).out, "[default0]:0\n[default0]:1\n[default0]:2\n");
}

TEST(AgentTee, ShowsNothingOfADiscardedStreamAndEverythingOfAnInheritedOne) {
  WorkerTemplate both = stub_worker({"both"}, StreamTarget::kDiscard);
  const Console console = run_with_console(options_of({both}));
  EXPECT_EQ(console.out, "");
  EXPECT_EQ(console.err, "err\n");
}

// multiprocessing and os.fork() copy the object, and the copy is destroyed at the child's exit.
TEST(Agent, CopyInAForkedChildDoesNothingAndLeavesTheWorkersAlone) {
  const ScratchDir dir;
  Fifo output(dir / "out");
  RunningAgent agent(options_of({shell("echo ready > " + output.path() + "; exec sleep 1000")}));
  ASSERT_EQ(output.next_line(), "ready");
  const pid_t child = ::fork();
  if (child == 0) {
    agent->request_stop(SIGTERM);
    const bool is_silent = !agent->next_event(Instant::max());
    const bool is_known = agent->is_in_child();
    agent.destroy();
    ::_exit(is_silent && is_known ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(agent->is_in_child());
  agent->request_stop(SIGTERM);
  EXPECT_EQ(agent.finish().exit_code, 128 + SIGTERM);
}

}  // namespace
}  // namespace elastic
