// The part of the guardian that finds the processes which have outlived the workers.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "guardian/guardian.h"
#include "os/loop/clock.h"

namespace elastic::guardian {
namespace {

// How long the end of a process that is just ending is awaited, since its children are not ours
// yet.
constexpr Duration kEndingTime = std::chrono::milliseconds(200);
constexpr useconds_t kListingPauseUs = 200;

}  // namespace

void Guardian::report_leftovers() {
  const bool is_any_running = std::any_of(workers_.begin(), workers_.end(),
                                          [](const Worker& worker) { return !worker.ended; });
  if (is_any_running || awaits_fork()) return;
  std::string command;
  const LeftoverEvent event = find_leftovers(&command);
  if (event.count > 0) send_event(event);
}

void Guardian::await_leftovers() {
  now_ = os::monotonic_now();
  std::string command;
  LeftoverEvent event = find_leftovers(&command);
  event.is_awaited = true;
  awaits_leftovers_ = event.count > 0;
  send_event(event);
}

// When a child has ended. Its own children are ours by then.
void Guardian::check_leftovers() {
  if (!awaits_leftovers_) return;
  std::string command;
  if (find_leftovers(&command).count > 0) return;
  awaits_leftovers_ = false;
  send_event(LeftoverEvent{.is_awaited = true, .command = {}});
}

LeftoverEvent Guardian::find_leftovers(std::string* command) {
  LeftoverEvent event;
  // The children of a listed process that is just ending are not listed yet.
  const Instant limit = now_ + kEndingTime;
  bool is_complete = false;
  while (!is_complete && list_swept_children()) {
    event.count = 0;
    is_complete = true;
    for (const pid_t child : children_) {
      const bool is_worker = std::any_of(workers_.begin(), workers_.end(),
                                         [&](const Worker& one) { return one.pid == child; });
      if (is_worker) continue;
      std::string words = command_of(child);
      const bool has_gone = ::waitpid(child, nullptr, WNOHANG) == child;
      if (has_gone || words.empty()) {
        is_complete = false;
        continue;
      }
      if (ends_with_its_parent(words)) continue;
      if (event.count++ > 0) continue;
      event.pid = child;
      *command = std::move(words);
    }
    if (is_complete || os::monotonic_now() >= limit) break;
    ::usleep(kListingPauseUs);
  }
  event.command = *command;
  return event;
}

}  // namespace elastic::guardian
