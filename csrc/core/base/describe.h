#pragma once

// What happened to a worker, in words: who it is, how it ended, and what is left of the restart
// budget. The logs and results of all nodes, a C++ launcher's report and Python's take these texts
// from here. How a process ended is WorkerExit::describe(), whose text is composed here as well.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace elastic::core {

// "0-3,6": the given numbers, which are ascending, with runs as ranges.
std::string ranges_text(const std::vector<std::int32_t>& numbers);
// "rank 3", "7 ranks (0-2,4-7)". REQUIRES: ascending, not empty
std::string describe_ranks(const std::vector<std::int32_t>& ranks);

// `how`: "exited with code 1"; "" names only the worker.
// "rank 3 exited with code 1"
std::string describe_worker(int rank, std::string_view how);
// On another node: "rank 3 on node7 exited with code 1".
std::string describe_worker(int rank, std::string_view node, std::string_view how);
// On this node: "rank 3 (local rank 1, pid 77) exited with code 1"; `pid` <= 0: it has none.
std::string describe_local_worker(int rank, int local_rank, int pid, std::string_view how);
// Before its node has a rank for it: "the worker of local rank 1 exited with code 1".
std::string describe_unranked_worker(int local_rank, std::string_view how);

// The restart budget of a job.
struct RestartBudget {
  int used = 0;
  int allowed = 0;

  bool is_spent() const { return used >= allowed; }
  std::string describe_left() const;   // "2 of 3 restarts left"
  std::string describe_used() const;   // "1 of 3 restarts used", "no restarts allowed"
  std::string describe_spent() const;  // "no restart is allowed", "none of 3 restarts is left"
};

}  // namespace elastic::core
