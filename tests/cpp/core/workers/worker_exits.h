#pragma once

// Exits of workers.

#include "elastic/worker_group.h"
#include "support/instant.h"

namespace elastic::core {

inline WorkerExit exited(int code) {
  WorkerExit exit;
  exit.kind = ExitKind::kExited;
  exit.code = code;
  exit.at = support::at(1);
  return exit;
}

inline WorkerExit killed(int signal) {
  WorkerExit exit;
  exit.kind = ExitKind::kSignaled;
  exit.signal = signal;
  exit.at = support::at(1);
  return exit;
}

// After the agent's stop.
inline WorkerExit stopped(WorkerExit exit) {
  exit.stopped_by_us = true;
  return exit;
}

}  // namespace elastic::core
