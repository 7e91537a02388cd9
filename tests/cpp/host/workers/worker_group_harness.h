#pragma once

// For tests with real workers: a group, a FIFO that workers write to, a scratch directory.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "elastic/worker_group.h"
#include "os/base/fd.h"
#include "os/loop/clock.h"
#include "os/loop/wait.h"

namespace elastic::support {

inline Instant generous_deadline() { return os::monotonic_now() + std::chrono::seconds(60); }

class ScratchDir {
 public:
  ScratchDir() {
    std::string name = ::testing::TempDir() + "elastic-XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;
  ~ScratchDir() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline std::string read_all(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    reader.reset(ends[0]);
    writer.reset(ends[1]);
  }
  os::UniqueFd reader;
  os::UniqueFd writer;
};

// A terminal of 33 rows and 77 columns.
struct Terminal {
  Terminal() {
    screen.reset(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
    EXPECT_EQ(::unlockpt(screen.get()), 0);
    char name[64];
    EXPECT_EQ(::ptsname_r(screen.get(), name, sizeof name), 0);
    side.reset(::open(name, O_RDWR | O_NOCTTY | O_CLOEXEC));
    const winsize size{33, 77, 0, 0};
    EXPECT_EQ(::ioctl(side.get(), TIOCSWINSZ, &size), 0);
  }
  os::UniqueFd screen;
  os::UniqueFd side;
};

// -1: there is no such process.
inline int parent_of(int pid) {
  std::istringstream stat(read_all("/proc/" + std::to_string(pid) + "/stat"));
  std::string number, name, state;
  int parent = -1;
  stat >> number >> name >> state >> parent;
  return parent;
}

// A FIFO as the workers' stdout. Its end shows that every process that held it has ended, including
// descendants of the workers.
class Fifo {
 public:
  explicit Fifo(std::string path) : path_(std::move(path)) {
    EXPECT_EQ(::mkfifo(path_.c_str(), 0600), 0);
    fd_.reset(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  }
  const std::string& path() const { return path_; }

  // The next line; nullopt when all writers have ended, or when none arrives in time.
  std::optional<std::string> next_line(Instant deadline = generous_deadline()) {
    while (true) {
      const std::size_t end = bytes_.find('\n');
      if (end != std::string::npos) {
        std::string line = bytes_.substr(0, end);
        bytes_.erase(0, end + 1);
        return line;
      }
      if (!os::wait_ready(fd_.get(), POLLIN, {.deadline = deadline}).ok()) return std::nullopt;
      char chunk[512];
      const ssize_t got = ::read(fd_.get(), chunk, sizeof chunk);
      if (got <= 0) {
        ended_ = got == 0;
        return std::nullopt;
      }
      bytes_.append(chunk, static_cast<std::size_t>(got));
    }
  }

  // Whether every writer has ended by the deadline.
  bool wait_for_end(Instant deadline = generous_deadline()) {
    while (next_line(deadline)) continue;
    return ended_;
  }

 private:
  std::string path_;
  os::UniqueFd fd_;
  std::string bytes_;
  bool ended_ = false;
};

inline WorkerCommand stub(std::vector<std::string> arguments) {
  WorkerCommand command;
  command.argv = {ELASTIC_TEST_STUB_WORKER};
  command.argv.insert(command.argv.end(), arguments.begin(), arguments.end());
  return command;
}

class Group {
 public:
  Group() : Group(WorkerGroupOptions()) {}
  explicit Group(WorkerGroupOptions options) {
    options.guardian_path = ELASTIC_TEST_GUARDIAN;
    auto group = WorkerGroup::create(options);
    EXPECT_TRUE(group.ok()) << group.status().message();
    if (group.ok()) group_ = std::move(*group);
  }
  WorkerGroup* operator->() { return group_.get(); }

  void start(std::vector<WorkerCommand> commands) {
    const Status status = group_->start(std::move(commands));
    ASSERT_TRUE(status.ok()) << status.message();
  }

  // The next event of this kind; earlier events are stored in `passed`.
  WorkerEvent wait_for(WorkerEvent::Kind kind) {
    while (auto event = group_->next_event(generous_deadline())) {
      if (event->kind == kind) return *event;
      passed.push_back(*event);
      if (event->kind == WorkerEvent::Kind::kGuardianLost) break;  // it is the last one
    }
    std::string others;
    for (const WorkerEvent& event : passed) {
      others += "\n  kind " + std::to_string(static_cast<int>(event.kind)) + ", pid " +
                std::to_string(event.pid) + ": " + event.message;
    }
    ADD_FAILURE() << "no event of kind " << static_cast<int>(kind) << ", but:" << others;
    return {};
  }
  WorkerExit wait_for_exit() { return wait_for(WorkerEvent::Kind::kExited).exit; }
  void wait_for_gone() { wait_for(WorkerEvent::Kind::kGroupEnded); }

  // Starts one worker and waits until its group has ended.
  WorkerExit run(WorkerCommand command) {
    start({std::move(command)});
    const WorkerExit exit = wait_for_exit();
    wait_for_gone();
    return exit;
  }

  void destroy() { group_.reset(); }

  std::vector<WorkerEvent> passed;

 private:
  std::unique_ptr<WorkerGroup> group_;
};

}  // namespace elastic::support
