#pragma once

// Kills the orphans of a guardian that died, which this process adopts as the next subreaper.

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

#include "elastic/status.h"

namespace elastic::host {

// Which children are orphans of the guardian? All children except these: those in this process's
// own session (workers and their descendants are in sessions created below the guardian, and a
// process cannot enter an existing session), those that existed before the guardian started, and
// those that run the guardian's program (guardians of other groups). So a program that starts a
// child in a new session later must not use this; see WorkerGroupOptions::become_subreaper.
class OrphanSweep {
 public:
  // Makes this process a subreaper and records its children.
  static Result<OrphanSweep> prepare(const std::string& guardian_path);
  // Kills every present orphan and reaps those that have ended. Their own children become orphans
  // for the next call. Returns the orphans found; empty: none is left.
  std::vector<pid_t> kill_once();

 private:
  explicit OrphanSweep(std::string guardian_path) : guardian_path_(std::move(guardian_path)) {}
  bool is_orphan(pid_t pid) const;

  std::string guardian_path_;
  std::vector<pid_t> before_;
};

}  // namespace elastic::host
