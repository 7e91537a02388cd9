// A worker's inherited stderr: the agent passes it on, and reports its last lines with a failure.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <future>

#include "host/agent/agent_harness.h"

namespace elastic {
namespace {

using support::generous_deadline;
using support::options_of;
using support::Pipe;
using support::read_all;
using support::RunningAgent;
using support::ScratchDir;
using support::shell;
using support::Terminal;
using Kind = AgentEvent::Kind;

// Redirects this process's stdout and stderr during its lifetime.
class Redirection {
 public:
  Redirection(int out, int err)
      : out_(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 10)),
        err_(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 10)) {
    ::fflush(stdout);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(err, STDERR_FILENO);
  }
  Redirection(const Redirection&) = delete;
  Redirection& operator=(const Redirection&) = delete;
  ~Redirection() {
    ::fflush(stdout);
    ::dup2(out_.get(), STDOUT_FILENO);
    ::dup2(err_.get(), STDERR_FILENO);
  }

 private:
  os::UniqueFd out_;
  os::UniqueFd err_;
};

// Reads until the last writer has closed the descriptor.
std::string read_to_end(int fd) {
  std::string all;
  char chunk[65536];
  while (true) {
    const ssize_t got = ::read(fd, chunk, sizeof chunk);
    if (got <= 0) return all;
    all.append(chunk, static_cast<std::size_t>(got));
  }
}

os::UniqueFd open_file(const std::string& path) {
  return os::UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
}

AgentResult run_with(int out, int err, AgentOptions options) {
  const Redirection redirection(out, err);
  return support::run(std::move(options));
}

TEST(AgentOutput, TerminalStaysATerminal) {
  Terminal terminal;
  auto shown = std::async(std::launch::async, [&] { return read_to_end(terminal.screen.get()); });
  const AgentResult result =
      run_with(terminal.side.get(), terminal.side.get(),
               options_of({shell("test -t 1 && test -t 2 && stty size <&2; echo a; echo b >&2;"
                                 "(: </dev/tty) 2>/dev/null && echo has a controlling terminal;"
                                 "exit 3")}));
  terminal.side.reset();
  EXPECT_EQ(shown.get(), "33 77\r\na\r\nb\r\n");
  ASSERT_EQ(result.failures.size(), 1u);
  EXPECT_EQ(result.failures[0].stderr_tail, "33 77\na\nb");
}

TEST(AgentOutput, WhatIsNoTerminalStaysNone) {
  const ScratchDir dir;
  const os::UniqueFd err = open_file(dir / "err");
  const Terminal terminal;
  run_with(terminal.side.get(), err.get(),
           options_of({shell("test -t 1 && ! test -t 2 && echo stdout is a terminal >&2")}));
  EXPECT_EQ(read_all(dir / "err"), "stdout is a terminal\n");
}

TEST(AgentOutput, OneFileKeepsTheOrderOfBothStreams) {
  const ScratchDir dir;
  const os::UniqueFd file = open_file(dir / "log");
  run_with(file.get(), file.get(),
           options_of({shell("i=0; while [ $i -lt 500 ]; do echo out $i; echo err $i >&2;"
                             "i=$((i+1)); done")}));
  std::string expected;
  for (int i = 0; i < 500; ++i) {
    expected += "out " + std::to_string(i) + "\nerr " + std::to_string(i) + "\n";
  }
  EXPECT_EQ(read_all(dir / "log"), expected);
}

TEST(AgentOutput, MegabyteBeforeSigkillIsPassedOnWhole) {
  Pipe pipe;
  auto shown = std::async(std::launch::async, [&] { return read_to_end(pipe.reader.get()); });
  const AgentResult result = run_with(
      STDOUT_FILENO, pipe.writer.get(),
      options_of({shell("head -c 1048576 /dev/zero | tr '\\0' x >&2; echo >&2; echo last >&2;"
                        "kill -9 $$")}));
  pipe.writer.reset();
  const std::string all = shown.get();
  EXPECT_EQ(all.size(), 1048576u + 6);
  EXPECT_EQ(all.substr(1048576), "\nlast\n");
  ASSERT_EQ(result.failures.size(), 1u);
  EXPECT_TRUE(result.failures[0].stderr_tail.ends_with("\nlast"));
}

TEST(AgentOutput, AFailureReportHasTheLinesOfAWorkerThatIsNotShown) {
  const ScratchDir dir;
  const os::UniqueFd file = open_file(dir / "log");
  WorkerTemplate hidden = shell("until grep -q shown " + (dir / "log") +
                                "; do sleep 0.01; done; echo out; test -t 2 || echo broken >&2; "
                                "exit 3");
  hidden.stdout_target = hidden.stderr_target = StreamTarget::kDiscard;
  const AgentResult result =
      run_with(file.get(), file.get(), options_of({hidden, shell("echo shown; sleep 1000")}));
  EXPECT_EQ(read_all(dir / "log"), "shown\n");
  ASSERT_EQ(result.failures.size(), 1u);
  EXPECT_EQ(result.failures[0].stderr_tail, "broken");
}

TEST(AgentOutput, WorkerWaitsForASlowConsole) {
  Pipe pipe;
  {
    const Redirection redirection(STDOUT_FILENO, pipe.writer.get());
    RunningAgent agent(options_of({shell("head -c 4194304 /dev/zero >&2")}));
    agent.wait_for(Kind::kWorkerStarted);
    const Instant end = os::monotonic_now() + std::chrono::milliseconds(500);
    while (auto event = agent->next_event(end)) {
      EXPECT_NE(event->kind, Kind::kWorkerExited) << "4 MiB went somewhere";
    }
    auto shown = std::async(std::launch::async, [&] { return read_to_end(pipe.reader.get()); });
    agent.finish();
    agent.destroy();
    pipe.writer.reset();
    ::dup2(STDOUT_FILENO, STDERR_FILENO);
    EXPECT_EQ(shown.get().size(), 4194304u);
  }
}

TEST(AgentOutput, AgentEndsThoughTheTerminalIsNotRead) {
  Terminal terminal;
  const Redirection redirection(terminal.side.get(), terminal.side.get());
  RunningAgent agent(options_of({shell("yes >&2")}));
  agent.wait_for(Kind::kWorkerStarted);
  ASSERT_TRUE(
      os::wait_ready(terminal.screen.get(), POLLIN, {.deadline = generous_deadline()}).ok());
  agent->request_stop(SIGTERM);
  EXPECT_EQ(agent.finish().exit_code, 128 + SIGTERM);
  agent.destroy();
}

// The stream is not copied to a console; the tail reads a file in pieces.
TEST(AgentOutput, LastLineThatAFilterSelectsIsCopied) {
  const ScratchDir dir;
  AgentOptions options = options_of(
      {shell("yes $(printf %01000d 0) | head -n 30000; echo the last", StreamTarget::kFile)});
  options.log_dir = dir / "logs";
  options.run_id = "run";
  options.stdout_filters = {"last"};
  support::run(options);
  std::string selected;
  for (const auto& one : std::filesystem::recursive_directory_iterator(dir / "logs")) {
    if (one.path().filename() == "filtered_stdout.log") selected = read_all(one.path());
  }
  EXPECT_THAT(selected, ::testing::EndsWith("the last\n"));
}

TEST(AgentOutput, WithoutCaptureAWorkerHasTheDescriptorItself) {
  const ScratchDir dir;
  for (const bool is_captured : {true, false}) {
    const os::UniqueFd err = open_file(dir / "err");
    AgentOptions options = options_of({shell("readlink /proc/self/fd/2 >&2; exit 1")});
    options.capture_stderr = is_captured;
    const AgentResult result = run_with(STDOUT_FILENO, err.get(), options);
    const std::string link = read_all(dir / "err");
    EXPECT_EQ(link == (dir / "err") + "\n", !is_captured) << link;
    ASSERT_EQ(result.failures.size(), 1u);
    EXPECT_EQ(result.failures[0].stderr_tail.empty(), !is_captured);
  }
}

}  // namespace
}  // namespace elastic
