#pragma once

// A worker for tests of the channel, which act as the guardian.

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <utility>

#include "guardian/channel.h"
#include "host/workers/worker_group_harness.h"
#include "os/loop/wait.h"

namespace elastic::support {

// A forked worker: the descriptors and the variable are those that an executed one would have.
class ForkedWorker {
 public:
  ForkedWorker(guardian::Channel* channel, const std::function<int()>& body) {
    pid_ = ::fork();
    if (pid_ != 0) {
      channel->release_worker_end();
      return;
    }
    ::close(channel->socket());  // an executed worker has only its own end
    std::string variable = channel->variable();
    const std::size_t equals = variable.find('=');
    ::setenv(variable.substr(0, equals).c_str(), variable.c_str() + equals + 1, 1);
    ::_exit(body());
  }
  ForkedWorker(const ForkedWorker&) = delete;
  ForkedWorker& operator=(const ForkedWorker&) = delete;
  ~ForkedWorker() {
    if (pid_ > 0) kill();
  }
  void kill() {
    ::kill(pid_, SIGKILL);
    wait();
  }
  int wait() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

// Reads messages until the worker has opened the channel.
inline bool wait_for_owner(guardian::Channel* channel) {
  while (channel->owner() == 0 && channel->socket() >= 0) {
    const os::WaitLimits limits{.deadline = generous_deadline()};
    if (!os::wait_ready(channel->socket(), POLLIN, limits).ok()) return false;
    channel->read_messages();
  }
  return channel->owner() != 0;
}

}  // namespace elastic::support
