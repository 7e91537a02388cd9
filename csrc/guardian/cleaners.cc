#include "guardian/cleaners.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <string_view>

namespace elastic::guardian {
namespace {

// A tracker ends some milliseconds after its last client. This is for a host with a high load.
constexpr Duration kTrackerTime = std::chrono::seconds(1);
constexpr Duration kShmManagerTime = std::chrono::seconds(4);  // it waits two seconds

}  // namespace

std::string command_of(pid_t pid) {
  constexpr std::size_t kBytesMax = 256;
  std::string words;
  if (!os::read_proc_file("/proc/" + std::to_string(pid) + "/cmdline", &words)) return "";
  words.resize(std::min(words.find_last_not_of('\0') + 1, kBytesMax));
  std::replace(words.begin(), words.end(), '\0', ' ');
  return words;
}

bool ends_with_its_parent(const std::string& command) {
  constexpr std::string_view kHelpers[] = {"resource_tracker import main",
                                           "multiprocessing.forkserver", "torch_shm_manager",
                                           "compile_worker"};
  return std::any_of(std::begin(kHelpers), std::end(kHelpers), [&](std::string_view helper) {
    return command.find(helper) != std::string::npos;
  });
}

bool Cleaners::add(pid_t child) {
  const os::Cleaner kind = os::cleaner_of(child);
  if (kind == os::Cleaner::kNone) return false;
  known_.push_back({child, kind, std::nullopt});
  return true;
}

bool Cleaners::is_known(pid_t child) const {
  return std::any_of(known_.begin(), known_.end(),
                     [&](const Cleaner& one) { return one.pid == child; });
}

bool Cleaners::is_left(pid_t child) const {
  return std::any_of(left_.begin(), left_.end(),
                     [&](const Cleaner& one) { return one.pid == child; });
}

void Cleaners::leave(Instant now) {
  for (Cleaner& one : known_) {
    const bool is_tracker = one.kind == os::Cleaner::kTracker;
    if (!one.deadline) one.deadline = now + (is_tracker ? kTrackerTime : kShmManagerTime);
    if (!is_tracker) left_.push_back(one);
  }
  std::erase_if(known_, [](const Cleaner& one) { return one.kind != os::Cleaner::kTracker; });
}

void Cleaners::forget(pid_t child) {
  std::erase_if(known_, [&](const Cleaner& one) { return one.pid == child; });
}

void Cleaners::reap() {
  std::erase_if(left_,
                [](const Cleaner& one) { return ::waitpid(one.pid, nullptr, WNOHANG) != 0; });
}

void Cleaners::expire(Instant now) {
  for (auto* cleaners : {&known_, &left_}) {
    for (Cleaner& one : *cleaners) {
      if (!one.deadline || *one.deadline > now) continue;
      one.deadline = Instant::max();
      ::kill(one.pid, SIGKILL);
    }
  }
}

std::optional<Instant> Cleaners::deadline() const {
  std::optional<Instant> next;
  for (const auto* cleaners : {&known_, &left_}) {
    for (const Cleaner& one : *cleaners) {
      const Instant at = one.deadline.value_or(Instant::max());
      if (at != Instant::max()) next = std::min(next.value_or(at), at);
    }
  }
  return next;
}

}  // namespace elastic::guardian
