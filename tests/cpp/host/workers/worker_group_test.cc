#include "elastic/worker_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <filesystem>
#include <set>

#include "core/workers/guardian_protocol.h"
#include "host/workers/worker_group_harness.h"

namespace elastic {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using support::Fifo;
using support::Group;
using support::read_all;
using support::ScratchDir;
using support::stub;
using Kind = WorkerEvent::Kind;

// --- How a worker ends ---------------------------------------------------------------------------

TEST(WorkerGroup, ReportsEveryExitCode) {
  Group group;
  std::vector<WorkerCommand> commands;
  for (int code = 0; code < 256; ++code) commands.push_back(stub({"exit", std::to_string(code)}));
  group.start(std::move(commands));
  std::set<int> seen;
  for (int i = 0; i < 256; ++i) {
    const WorkerEvent event = group.wait_for(Kind::kExited);
    EXPECT_EQ(event.exit.kind, ExitKind::kExited);
    EXPECT_EQ(event.exit.code, event.local_rank);
    EXPECT_FALSE(event.exit.stopped_by_us);
    seen.insert(event.local_rank);
  }
  EXPECT_EQ(seen.size(), 256u);
  group.wait_for_gone();
}

TEST(WorkerGroup, ReportsEveryFatalSignal) {
  Group group;
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGKILL,
                           SIGUSR1, SIGSEGV, SIGPIPE, SIGALRM, SIGTERM, SIGXCPU, SIGXFSZ, SIGSYS}) {
    const WorkerExit exit = group.run(stub({"raise", std::to_string(number)}));
    EXPECT_EQ(exit.kind, ExitKind::kSignaled) << number;
    EXPECT_EQ(exit.signal, number);
    EXPECT_EQ(exit.shell_code(), 128 + number);
    EXPECT_FALSE(exit.stopped_by_us);
  }
}

TEST(WorkerGroup, StartedIsDeliveredBeforeExitedEvenForAShortWorker) {
  Group group;
  for (int i = 0; i < 50; ++i) {
    group.start({stub({"exit", "0"})});
    const WorkerEvent started = group.wait_for(Kind::kStarted);
    const WorkerEvent exited = group.wait_for(Kind::kExited);
    EXPECT_EQ(started.pid, exited.pid);
    EXPECT_LE(started.at, exited.at);
    group.wait_for_gone();
  }
  EXPECT_TRUE(group.passed.empty());
}

// --- Failed starts -------------------------------------------------------------------------------

struct BadStart {
  const char* name;
  WorkerCommand command;
  const char* stage;
  int error;
  int shell_code;
};

TEST(WorkerGroup, ReportsTheReasonOfAFailedStart) {
  const ScratchDir dir;
  const std::string plain = dir / "plain";
  const std::string empty = dir / "empty";
  const std::string script = dir / "script";
  std::ofstream(plain) << "data";
  std::ofstream(empty).close();
  std::ofstream(script) << "#!/no/such/interpreter\n";
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  std::filesystem::permissions(empty, std::filesystem::perms::owner_all);

  const auto command = [](std::string program) {
    WorkerCommand made;
    made.argv = {std::move(program)};
    return made;
  };
  WorkerCommand bad_cwd = stub({"exit", "0"});
  bad_cwd.cwd = dir / "none";
  WorkerCommand bad_output = stub({"exit", "0"});
  bad_output.stderr_path = dir / "none/err";
  const BadStart cases[] = {
      {"missing", command("/no/such/program"), "exec", ENOENT, 127},
      {"missing in PATH", command("no-such-program"), "exec", ENOENT, 127},
      {"not executable", command(plain), "exec", EACCES, 126},
      {"a directory", command(dir / "."), "exec", EACCES, 126},
      {"bad interpreter", command(script), "exec interpreter of", ENOENT, 127},
      {"not a program", command(empty), "exec", ENOEXEC, 126},
      {"behind a file", command(plain + "/x"), "exec", ENOTDIR, 126},
      {"too long", stub({"exit", std::string(1 << 18, 'x')}), "exec", E2BIG, 126},
      {"bad directory", bad_cwd, "chdir", ENOENT, 127},
      {"bad output", bad_output, "open", ENOENT, 127},
  };
  Group group;
  for (const BadStart& bad : cases) {
    SCOPED_TRACE(bad.name);
    const WorkerExit exit = group.run(bad.command);
    EXPECT_EQ(exit.kind, ExitKind::kNotStarted);
    EXPECT_EQ(exit.stage, bad.stage);
    EXPECT_EQ(exit.error, bad.error);
    EXPECT_EQ(exit.shell_code(), bad.shell_code);
    EXPECT_THAT(exit.describe(), ::testing::HasSubstr(exit.path));
  }
  EXPECT_TRUE(group.passed.empty()) << "a worker was reported as started";
}

// Each list and text of a start beyond the limit that the guardian's reader has.
TEST(WorkerGroup, RefusesACommandThatItsGuardianCouldNotRead) {
  const std::size_t many = guardian::kListItemsMax + 1;
  std::vector<WorkerCommand> commands(6, stub({"exit", "0"}));
  commands[0].argv.resize(many, "x");
  commands[1].env.resize(many, "A=");
  commands[2].env.push_back("A=" + std::string(guardian::kFrameBytesMax, 'x'));
  commands[3].cwd = std::string("a\0b", 3);
  commands[4].cpus = {0, guardian::kCpusMax};
  commands[5].cpus.resize(guardian::kCpusMax + 1);
  Group group;
  for (const WorkerCommand& command : commands) {
    EXPECT_EQ(group->start({stub({"exit", "0"}), command}).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(group.run(stub({"exit", "3"})).code, 3);
}

TEST(WorkerGroup, FailedStartDoesNotStopTheOthers) {
  const ScratchDir dir;
  Fifo output(dir / "out");
  WorkerCommand missing;
  missing.argv = {"/no/such/program"};
  WorkerCommand good = stub({"pause"});
  good.stdout_path = output.path();
  Group group;
  group.start({missing, good});
  EXPECT_EQ(group.wait_for_exit().kind, ExitKind::kNotStarted);
  EXPECT_TRUE(output.next_line());
  group->stop(SIGTERM, seconds(30));
  EXPECT_EQ(group.wait_for_exit().signal, SIGTERM);
  group.wait_for_gone();
}

// The FIFO has no reader, so opening it for writing blocks, as a log file on a dead mount does.
TEST(WorkerGroup, WorkerThatHangsBeforeItsProgramIsCancelledAtTheStartDeadlineWithThePath) {
  const ScratchDir dir;
  const std::string silent = dir / "silent";
  ASSERT_EQ(::mkfifo(silent.c_str(), 0600), 0);
  WorkerCommand hanging[] = {stub({"exit", "0"}), stub({"exit", "0"})};
  hanging[0].stdout_path = silent;
  hanging[1].stderr_path = silent;
  Fifo output(dir / "out");
  WorkerCommand good = stub({"pause"});
  good.stdout_path = output.path();
  WorkerGroupOptions options;
  options.start_timeout = milliseconds(2500);  // for the good one, too
  Group group(options);
  group.start({hanging[0], hanging[1], good});
  ASSERT_TRUE(output.next_line());
  std::set<int> ranks;
  for (int i = 0; i < 2; ++i) {
    const WorkerEvent failed = group.wait_for(Kind::kExited);
    ranks.insert(failed.local_rank);
    EXPECT_EQ(failed.exit.kind, ExitKind::kNotStarted);
    EXPECT_EQ(failed.exit.stage, "open");
    EXPECT_EQ(failed.exit.path, silent);
    EXPECT_EQ(failed.exit.error, ETIMEDOUT);
    EXPECT_EQ(failed.exit.describe(), "could not be started within 2.5 s: it hangs in open " +
                                          silent + "; check that its file system responds");
  }
  EXPECT_EQ(ranks, (std::set<int>{0, 1}));
  group->stop(SIGTERM, seconds(60));
  EXPECT_EQ(group.wait_for_exit().signal, SIGTERM) << "the other worker had started";
  group.wait_for_gone();
}

TEST(WorkerGroup, StartTimeoutOfZeroIsRejected) {
  WorkerGroupOptions options;
  options.start_timeout = Duration::zero();
  EXPECT_EQ(WorkerGroup::create(options).status().code(), StatusCode::kInvalidArgument);
}

TEST(WorkerGroup, RejectsInvalidCommands) {
  Group group;
  WorkerCommand nul = stub({std::string("a\0b", 3)});
  WorkerCommand huge = stub({});
  huge.env.assign(70000, "A=1");
  for (const std::vector<WorkerCommand>& commands :
       {std::vector<WorkerCommand>{}, {WorkerCommand{}}, {nul}, {huge}}) {
    EXPECT_EQ(group->start(commands).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(group.run(stub({"exit", "0"})).succeeded());
}

// --- What a worker gets --------------------------------------------------------------------------

class Output : public ::testing::Test {
 protected:
  std::string run(WorkerCommand command) {
    command.stdout_path = dir_ / "out";
    EXPECT_TRUE(group_.run(std::move(command)).succeeded());
    return read_all(dir_ / "out");
  }
  const ScratchDir dir_;
  Group group_;
};

TEST_F(Output, ArgumentsArriveUnchanged) {
  EXPECT_EQ(run(stub({"arguments", "", "a b", "", "ü\n\"", ""})), "[]\n[a b]\n[]\n[ü\n\"]\n[]\n");
}

TEST_F(Output, EnvironmentIsExactlyTheGivenOne) {
  WorkerCommand command = stub({"environment"});
  command.env = {"B=2", "A=1", "EMPTY=", "B=again"};
  EXPECT_EQ(run(command), "B=2\nA=1\nEMPTY=\nB=again\n");
}

TEST_F(Output, DirectoryIsTheGivenOne) {
  WorkerCommand command = stub({"directory"});
  command.cwd = "/";
  EXPECT_EQ(run(command), "/\n");
  command.cwd = "";
  EXPECT_EQ(run(command), std::filesystem::current_path().string() + "\n");
}

TEST_F(Output, ProgramIsSearchedInTheWorkersOwnPath) {
  const std::filesystem::path program = ELASTIC_TEST_STUB_WORKER;
  std::ofstream(dir_ / program.filename().string()) << "not executable, so passed over";
  WorkerCommand command = stub({"arguments", "x"});
  command.argv[0] = program.filename();
  command.env = {"PATH=/no/such:" + (dir_ / "") + ":" + program.parent_path().string()};
  EXPECT_EQ(run(command), "[x]\n");
}

TEST_F(Output, NoDescriptorBeyondTheFirstThreeIsInherited) {
  // Without close-on-exec, as a C library in the embedding program may open it.
  const os::UniqueFd leaky(::open("/dev/null", O_RDONLY));
  const os::UniqueFd high(::fcntl(leaky.get(), F_DUPFD, 500));
  Group late;
  WorkerCommand command = stub({"descriptors"});
  command.stdout_path = dir_ / "late";
  EXPECT_TRUE(late.run(command).succeeded());
  EXPECT_EQ(read_all(dir_ / "late"), "0\n1\n2\n");
  EXPECT_EQ(run(stub({"descriptors"})), "0\n1\n2\n");
}

TEST_F(Output, WorkerLeadsItsOwnSession) {
  int pid = 0;
  int group = 0;
  int session = 0;
  ASSERT_EQ(std::sscanf(run(stub({"session"})).c_str(), "%d %d %d", &pid, &group, &session), 3);
  EXPECT_EQ(pid, group);
  EXPECT_EQ(pid, session);
  EXPECT_NE(session, ::getsid(0));
}

// nohup and "&" ignore HUP, INT and QUIT for the user; CPython ignores PIPE and XFSZ for itself.
TEST(WorkerSignals, AreResetExceptThoseThatTheUserIgnores) {
  const ScratchDir dir;
  const int touched[] = {SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGXFSZ, SIGTERM};
  std::vector<void (*)(int)> before;
  for (const int number : touched) before.push_back(::signal(number, SIG_IGN));
  sigset_t blocked;
  sigset_t mask_before;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGUSR2);
  ::sigprocmask(SIG_BLOCK, &blocked, &mask_before);
  Group group;
  ::sigprocmask(SIG_SETMASK, &mask_before, nullptr);
  for (std::size_t i = 0; i < before.size(); ++i) ::signal(touched[i], before[i]);

  WorkerCommand command = stub({"signals"});
  command.stdout_path = dir / "out";
  EXPECT_TRUE(group.run(command).succeeded());
  EXPECT_EQ(read_all(dir / "out"), "ignored 1\nignored 2\nignored 3\n");
}

// --- Stopping ------------------------------------------------------------------------------------

class Stop : public ::testing::Test {
 protected:
  // Starts workers and waits until each has printed "ready".
  void start(std::vector<WorkerCommand> commands) {
    const std::size_t count = commands.size();
    for (WorkerCommand& command : commands) command.stdout_path = output_.path();
    group_.start(std::move(commands));
    for (std::size_t i = 0; i < count; ++i) ASSERT_TRUE(output_.next_line());
  }
  const ScratchDir dir_;
  Fifo output_{dir_ / "out"};
  Group group_;
};

TEST_F(Stop, WorkersThatIgnoreTheSignalAreKilledAtOneDeadline) {
  const std::string term = std::to_string(SIGTERM);
  start({stub({"ignore", term}), stub({"ignore", term}), stub({"pause"})});
  // The grace counts from the begin of the loop's iteration, which may be earlier than the call.
  const Instant begin = os::monotonic_now() - milliseconds(100);
  group_->stop(SIGTERM, seconds(2));  // time for the one that ends by itself
  int killed = 0;
  for (int i = 0; i < 3; ++i) {
    const WorkerEvent event = group_.wait_for(Kind::kExited);
    EXPECT_TRUE(event.exit.stopped_by_us);
    EXPECT_EQ(event.exit.killed_by_us, event.local_rank != 2);
    if (event.local_rank == 2) {
      EXPECT_EQ(event.exit.signal, SIGTERM);
    } else {
      EXPECT_EQ(event.exit.signal, SIGKILL);
      EXPECT_GE(event.at - begin, seconds(2));
      ++killed;
    }
  }
  EXPECT_EQ(killed, 2);
  group_.wait_for_gone();
  EXPECT_TRUE(output_.wait_for_end());
}

TEST_F(Stop, WorkerInTheStoppedStateHandlesTheSignal) {
  start({stub({"stopped"})});
  group_->stop(SIGTERM, seconds(60));
  EXPECT_EQ(output_.next_line(), "got 15");
  EXPECT_EQ(group_.wait_for_exit().code, 5);
  group_.wait_for_gone();
}

TEST_F(Stop, AFailureBeforeTheStopIsNotMarked) {
  WorkerCommand other = stub({"pause"});
  other.stdout_path = output_.path();
  group_.start({stub({"exit", "3"}), other});
  const WorkerExit own = group_.wait_for_exit();
  group_->stop(SIGTERM, seconds(60));
  const WorkerExit stopped = group_.wait_for_exit();
  EXPECT_EQ(own.code, 3);
  EXPECT_FALSE(own.stopped_by_us);
  EXPECT_TRUE(stopped.stopped_by_us);
  group_.wait_for_gone();
}

TEST_F(Stop, ForwardSignalsTheWorkersWithoutStoppingThem) {
  const std::string usr1 = std::to_string(SIGUSR1);
  start({stub({"catch", usr1}), stub({"catch", usr1})});
  for (const SignalScope scope : {SignalScope::kGroup, SignalScope::kLeader}) {
    group_->forward(SIGUSR1, scope);
    EXPECT_EQ(output_.next_line(), "got 10");
    EXPECT_EQ(output_.next_line(), "got 10");
  }
  group_->stop(SIGTERM, seconds(60));
  EXPECT_EQ(group_.wait_for_exit().signal, SIGTERM);
  group_.wait_for_gone();
}

TEST_F(Stop, ForwardToOneWorkerDoesNotSignalTheOthers) {
  const std::string usr1 = std::to_string(SIGUSR1);
  start({stub({"catch", usr1}), stub({"pause"})});
  group_->forward(SIGUSR1, SignalScope::kGroup, 0);
  EXPECT_EQ(output_.next_line(), "got 10");
  group_->stop(SIGTERM, seconds(60));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(group_.wait_for_exit().signal, SIGTERM) << "SIGUSR1 would have ended rank 1";
  }
  group_.wait_for_gone();
}

TEST_F(Stop, GroupScopeSignalsTheWorkersChildrenAndLeaderScopeDoesNot) {
  start({stub({"child", std::to_string(SIGUSR1)})});
  group_->forward(SIGUSR1, SignalScope::kGroup);
  EXPECT_EQ(output_.next_line(), "got 10");
  EXPECT_EQ(output_.next_line(), "got 10");
  group_->forward(SIGUSR1, SignalScope::kLeader);
  EXPECT_EQ(output_.next_line(), "got 10");
  group_->stop(SIGTERM, seconds(60), SignalScope::kLeader);
  EXPECT_EQ(group_.wait_for_exit().signal, SIGTERM);
  group_.wait_for_gone();
  EXPECT_EQ(output_.next_line(), std::nullopt) << "the child was signalled";
}

// --- Processes that workers leave ----------------------------------------------------------------

TEST_F(Stop, ExitIsReportedWhileAGrandchildHoldsTheOutput) {
  WorkerCommand daemon = stub({"daemon", "7"});
  WorkerCommand other = stub({"pause"});
  start({daemon, other});
  EXPECT_EQ(group_.wait_for_exit().code, 7);
  EXPECT_FALSE(output_.next_line(os::monotonic_now())) << "the grandchild should keep running";
  group_->stop(SIGTERM, seconds(60));
  group_.wait_for_gone();
  EXPECT_TRUE(output_.wait_for_end());
}

TEST_F(Stop, AProcessThatOutlivesWorkersIsNamedIfTheyHaveSucceeded) {
  group_.start({stub({"daemon", "0"})});
  EXPECT_THAT(
      group_.wait_for(Kind::kNotice).message,
      ::testing::AllOf(::testing::HasSubstr("; killing processes that they left running: pid "),
                       ::testing::HasSubstr(" daemon 0)")));
  group_.wait_for_gone();
  group_.passed.clear();
  group_.start({stub({"daemon", "7"})});
  group_.wait_for_gone();
  for (const WorkerEvent& event : group_.passed) EXPECT_NE(event.kind, Kind::kNotice);
}

// The pid in "…; waiting up to 1 h for processes that they left running: pid 77 (…)".
int pid_in(const std::string& message) {
  EXPECT_THAT(message, ::testing::HasSubstr("; waiting up to 1 h for processes"));
  return std::stoi(message.substr(message.find(": pid ") + 6));
}

TEST(Leftovers, AreAwaitedUntilTheLastOneHasEnded) {
  Group group({.leftover_grace = std::chrono::hours(1)});
  group.start({stub({"leave", "0"})});
  ASSERT_EQ(::kill(pid_in(group.wait_for(Kind::kNotice).message), SIGKILL), 0);
  group.passed.clear();
  group.wait_for_gone();
  EXPECT_THAT(group.passed, ::testing::IsEmpty()) << "nothing was killed";
  EXPECT_TRUE(group.run(stub({"exit", "0"})).succeeded()) << "nothing is left, nothing is awaited";
}

TEST(Leftovers, AreKilledByAStopAndAfterAFailure) {
  Group group({.leftover_grace = std::chrono::hours(1)});
  group.start({stub({"leave", "0"}), stub({"leave", "0"})});
  EXPECT_THAT(group.wait_for(Kind::kNotice).message, ::testing::HasSubstr(" 0) and 1 more"));
  group->stop(SIGTERM, std::chrono::hours(1));
  EXPECT_THAT(group.wait_for(Kind::kNotice).message, ::testing::HasSubstr("; killing processes"));
  group.wait_for_gone();
  EXPECT_EQ(group.run(stub({"leave", "7"})).code, 7);
}

TEST_F(Stop, NextGenerationStartsOnlyWhenThePreviousOneHasEnded) {
  start({stub({"pause"})});
  EXPECT_EQ(group_->start({stub({"exit", "0"})}).code(), StatusCode::kFailedPrecondition);
  group_->stop(SIGTERM, seconds(60));
  group_.wait_for_gone();
  group_.start({stub({"exit", "0"})});
  EXPECT_EQ(group_.wait_for(Kind::kExited).generation, 2u);
  group_.wait_for_gone();
}

TEST_F(Stop, DestroyingTheGroupKillsEverything) {
  start({stub({"ignore", std::to_string(SIGTERM)}), stub({"daemon", "-1"})});
  group_.destroy();
  EXPECT_TRUE(output_.wait_for_end(os::monotonic_now()));
}

// multiprocessing and os.fork() copy the object, and the copy is destroyed at the child's exit.
TEST_F(Stop, CopyInAForkedChildDoesNotAffectTheParentsWorkers) {
  start({stub({"pause"})});
  const pid_t child = ::fork();
  if (child == 0) {
    group_->stop(SIGKILL, Duration::zero());
    group_->forward(SIGKILL);
    const bool refused =
        group_->start({stub({"exit", "0"})}).code() == StatusCode::kFailedPrecondition;
    const bool silent = !group_->next_event(Instant::max());
    group_.destroy();
    ::_exit(refused && silent ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  group_->stop(SIGTERM, seconds(60));
  EXPECT_EQ(group_.wait_for_exit().signal, SIGTERM);
  group_.wait_for_gone();
}

TEST(WorkerGroup, RunsTwoHundredWorkersAtOnce) {
  const ScratchDir dir;
  Fifo output(dir / "out");
  Group group;
  WorkerCommand command = stub({"pause"});
  command.stdout_path = output.path();
  command.env.assign(100, std::string(100, 'A') + "=1");
  group.start(std::vector<WorkerCommand>(200, command));
  std::set<int> pids;
  for (int i = 0; i < 200; ++i) pids.insert(group.wait_for(Kind::kStarted).pid);
  EXPECT_EQ(pids.size(), 200u);
  group->stop(SIGTERM, seconds(60));
  for (int i = 0; i < 200; ++i) EXPECT_TRUE(group.wait_for_exit().stopped_by_us);
  group.wait_for_gone();
  EXPECT_TRUE(output.wait_for_end());
}

}  // namespace
}  // namespace elastic
