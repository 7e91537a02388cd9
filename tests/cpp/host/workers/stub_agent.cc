// A program with workers, for tests that kill it or its guardian.
//
//   stub_agent <subreaper: 0 or 1> <stdout path of the workers> <worker> [argument]…
//
// Prints a line for each event: kind, pid, message. It also has two children that are not workers:
// one in a separate session, started before the group, and one, started after it, that holds copies
// of the agent's open descriptors. The last line reports whether both still run at the end.

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "elastic/worker_group.h"

namespace {

const char* name_of(elastic::WorkerEvent::Kind kind) {
  switch (kind) {
    case elastic::WorkerEvent::Kind::kStarted: return "started";
    case elastic::WorkerEvent::Kind::kStartDelayed: return "delayed";
    case elastic::WorkerEvent::Kind::kExited: return "exited";
    case elastic::WorkerEvent::Kind::kGroupEnded: return "gone";
    case elastic::WorkerEvent::Kind::kStuck: return "stuck";
    case elastic::WorkerEvent::Kind::kGuardianLost: return "lost";
    case elastic::WorkerEvent::Kind::kNotice: return "notice";
  }
  return "?";
}

pid_t start_child(bool in_own_session) {
  const pid_t agent = ::getpid();
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != agent) ::_exit(0);  // the agent has ended before
  if (in_own_session) ::setsid();
  while (true) ::pause();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const pid_t early = start_child(true);
  elastic::WorkerGroupOptions options;
  options.guardian_path = ELASTIC_TEST_GUARDIAN;
  options.become_subreaper = std::string(argv[1]) == "1";
  auto group = elastic::WorkerGroup::create(options);
  if (!group.ok()) return 3;
  const pid_t late = start_child(false);

  elastic::WorkerCommand command;
  command.argv.assign(argv + 3, argv + argc);
  command.stdout_path = argv[2];
  if (!(*group)->start({command}).ok()) return 4;
  bool lost = false;
  while (!lost) {
    const auto event = (*group)->next_event(elastic::Instant::max());
    if (!event) return 5;
    std::printf("%s %d %s\n", name_of(event->kind), event->pid, event->message.c_str());
    std::fflush(stdout);
    lost = event->kind == elastic::WorkerEvent::Kind::kGuardianLost;
  }
  const bool survived =
      ::waitpid(early, nullptr, WNOHANG) == 0 && ::waitpid(late, nullptr, WNOHANG) == 0;
  std::printf("%s\n", survived ? "children survived" : "a child died");
  return 0;
}
