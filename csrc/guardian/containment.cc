#include "guardian/containment.h"

#include <signal.h>
#include <unistd.h>

#include <string>

// Theory of operation. A process that forks and exits, again and again, is another process by the
// time that SIGKILL is sent to the pid that was listed. One that stands still is there to be
// killed, and so are its children; so everything is held first, until a look finds nothing new.
//
// A frozen control group is the better way, since what a process forks while it is moved there is
// born in it. Without one, SIGSTOP does: a fork during which a signal arrives is given up by the
// kernel and begun again after the stop.

namespace elastic::guardian {

Containment::Containment()
    : group_(os::ControlGroup::create_frozen("elastic-guardian-" + std::to_string(::getpid()))) {}

bool Containment::hold(const std::vector<pid_t>& processes) {
  bool any = false;
  for (const pid_t pid : processes) {
    if (!held_.insert(pid).second) continue;
    any = true;
    hold_one(pid);
  }
  return any;
}

void Containment::hold_one(pid_t pid) {
  ::kill(pid, SIGSTOP);  // at once; moving it takes longer
  if (group_) group_->add(pid);
}

void Containment::kill() {
  if (group_) group_->kill();
  for (const pid_t pid : held_) ::kill(pid, SIGKILL);
  held_.clear();  // the kernel may give the pids to others
}

}  // namespace elastic::guardian
