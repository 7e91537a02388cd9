// The program elastic-coordinator: its signals, exit codes and log lines. What follows its end for
// jobs is tested with real agents, in tests/python/process.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "host/coordinator/session_test_client.h"
#include "os/base/fd.h"

extern char** environ;

namespace elastic::host {
namespace {

using testing::HasSubstr;

// The program, killed with the object.
class Program {
 public:
  explicit Program(const std::vector<std::string>& arguments) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    errors_.reset(ends[0]);
    os::UniqueFd write_end(ends[1]);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    std::vector<std::string> words = {ELASTIC_TEST_COORDINATOR};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    EXPECT_EQ(::posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ), 0);
    ::posix_spawn_file_actions_destroy(&actions);
  }
  ~Program() {
    if (pid_ <= 0) return;
    send(SIGKILL);
    wait();
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Reads lines until one contains this text. Returns that line, or all lines if none does.
  std::string line_with(const std::string& text) {
    std::string all;
    std::string line;
    char byte = 0;
    pollfd readable{errors_.get(), POLLIN, 0};
    while (::poll(&readable, 1, 60'000) == 1 && ::read(errors_.get(), &byte, 1) == 1) {
      if (byte != '\n') {
        line += byte;
        continue;
      }
      if (line.find(text) != std::string::npos) return line;
      all += line + "\n";
      line.clear();
    }
    ADD_FAILURE() << "it wrote no line with '" << text << "':\n" << all;
    return all;
  }
  std::uint16_t port() {
    const std::string line = line_with("listening on ");
    return static_cast<std::uint16_t>(std::stoi(line.substr(line.rfind(':') + 1)));
  }
  void send(int signal) { ::kill(pid_, signal); }
  // The exit code; 128 + n for signal n.
  int wait() {
    int status = 0;
    const pid_t pid = std::exchange(pid_, -1);
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
  os::UniqueFd errors_;
};

std::string bind_to(std::uint16_t port) { return "--bind=127.0.0.1:" + std::to_string(port); }

TEST(CoordinatorProgram, EndsInOrderOnSigtermAndSigint) {
  for (const int signal : {SIGTERM, SIGINT}) {
    Program program({bind_to(0)});
    program.port();
    program.send(signal);
    EXPECT_EQ(program.wait(), 0);
    EXPECT_THAT(program.line_with("received SIG"),
                HasSubstr(signal == SIGTERM ? "SIGTERM" : "SIGINT"));
  }
}

TEST(CoordinatorProgram, ReportsInvalidArguments) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{}, "--bind is missing"},
      {{"--bind"}, "--bind needs a value"},
      {{"--bind", "host:port"}, "--bind host:port: not HOST:PORT"},
      {{"--bind", "::1:5"}, "--bind ::1:5: not HOST:PORT"},
      {{"--bind", "h:70000"}, "--bind h:70000: not HOST:PORT"},
      {{"--port", "5"}, "unknown argument --port"},
  };
  for (const auto& [arguments, message] : cases) {
    Program program(arguments);
    program.line_with(message);
    EXPECT_EQ(program.wait(), 2) << message;
  }
}

TEST(CoordinatorProgram, ReportsWhyItCannotListen) {
  Program first({bind_to(0)});
  Program second({bind_to(first.port())});
  EXPECT_THAT(second.line_with("cannot listen"), HasSubstr("in use by pid ")) << "who has the port";
  EXPECT_EQ(second.wait(), 73);
}

TEST(CoordinatorProgram, LogsTheEventsOfAJob) {
  Program program({bind_to(0)});
  const std::uint16_t port = program.port();
  JobSettings settings = nnodes(1, 2);
  SessionClient one(port, 1), two(port, 2);
  one.join(settings);
  two.join(settings);
  program.line_with("job job: 127.0.0.1_1_0 at 127.0.0.1:");
  EXPECT_THAT(program.line_with("round 0 is complete"),
              HasSubstr("2 nodes, world size 2, master 127.0.0.1 port 20001"));
  two.raw().reset();
  program.line_with("127.0.0.1_2_0 is lost: its session was closed");
  program.line_with("round 0 ends: 127.0.0.1_2_0 was lost");
  JobResult result;
  result.outcome = JobOutcome::kClosed;
  result.message = "enough";
  one.send_message(rdzv::Close{{}, result});
  program.line_with("the job is closed: it was closed: enough");
}

}  // namespace
}  // namespace elastic::host
