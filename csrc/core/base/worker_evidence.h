#pragma once

// What the guardian knows of a worker that makes no progress.
//
// Plain values.

#include <cstdint>
#include <string>

#include "elastic/time.h"

namespace elastic::core {

struct WorkerEvidence {
  std::int32_t rank = 0;
  std::int64_t step = -1;         // -1: none
  char state = '?';               // as in /proc/<pid>/stat: R, S, D, T, …
  std::string wait_channel = {};  // of the kernel; "": unknown
  std::string text = {};          // of faulthandler; "": none
  // As elastic_worker_watch_collectives() publishes them; "": none.
  std::string collectives = {};
  std::string groups = {};
  std::string signatures = {};  // worker/collective_blocks.h
  // What the worker and its children have worked since they began, where it was measured.
  Duration cpu{};
  std::uint64_t io_bytes = 0;
  bool is_at_work = false;  // one of them runs, or waits for a disk
  int polling_threads = 0;  // that use time also when nothing happens
};

}  // namespace elastic::core
