#pragma once

// Kills what a dead guardian has left to this process, the next subreaper above it.

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

#include "elastic/status.h"

namespace elastic::host {

// Which children are orphans of a guardian? Workers and all their descendants are in sessions that
// were made below the guardian: nobody can enter a session, so a child in this process's own
// session is the host's. Nor are those orphans that were children before the guardian started, or
// that run the guardian's program (another group's). A host that starts a child in a new session
// after that must not use this: WorkerGroupOptions::become_subreaper says so.
class OrphanSweep {
 public:
  // Makes this process a subreaper and remembers its children.
  static Result<OrphanSweep> prepare(const std::string& guardian_path);
  // Kills every orphan that is there now and reaps what has ended; what those leave behind comes
  // with the next call. Returns how many there were: 0 means that nothing is left.
  std::size_t kill_once();

 private:
  explicit OrphanSweep(std::string guardian_path) : guardian_path_(std::move(guardian_path)) {}
  bool is_orphan(pid_t pid) const;

  std::string guardian_path_;
  std::vector<pid_t> before_;
};

}  // namespace elastic::host
