#pragma once

// Runs a command of the user for each host that a job excludes: for a scheduler, a taint, a ticket.

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "core/gate/host_memory.h"
#include "elastic/time.h"
#include "os/loop/registration.h"

namespace elastic::host {

inline constexpr Duration kExcludeCommandLimit = std::chrono::seconds(60);
inline constexpr int kExcludeCommandsMax = 8;  // at a time; further ones are logged, and not run

// Each runs in a session of its own, started by a thread of its own, since the execution of a
// program can block; after the limit its process group is killed. Loop thread only.
class ExcludeCommand {
 public:
  // `command`: for sh -c; "": none is run. `log` is called on the loop.
  ExcludeCommand(os::EventLoop* loop, std::string command, std::function<void(std::string)> log,
                 Duration limit = kExcludeCommandLimit);
  ExcludeCommand(const ExcludeCommand&) = delete;
  ExcludeCommand& operator=(const ExcludeCommand&) = delete;
  ~ExcludeCommand();  // those that run go on until the limit, or the end of this process

  void run(const std::string& job, const gate::Excluded& host);

 private:
  struct Shared {
    std::mutex mutex;
    os::EventLoop* loop = nullptr;  // guarded; null: the object is gone
    std::function<void(std::string)> log;
    int running = 0;  // on the loop
  };

  const std::string command_;
  const Duration limit_;
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace elastic::host
