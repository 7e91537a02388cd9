#pragma once

// The environment of a worker: the one place where its rank variables are computed, so that
// launchers in C++ and in Python cannot differ.

#include <cstddef>
#include <initializer_list>
#include <string>
#include <vector>

#include "elastic/agent.h"

namespace elastic::core {

// Values that are constant over a job's rounds.
struct JobConstants {
  std::string run_id;
  std::string role;
  int max_restarts = 0;
  bool share_store = true;        // false: rank 0's worker hosts the store
  bool changes_in_place = false;  // workers may be kept when the members change
};

// The rank variables of one local rank, "NAME=value". `error_file` is the path to which the worker
// may write its error. REQUIRES: local_rank is one of round.workers.
std::vector<std::string> rank_variables(const JobConstants& job, const RoundInfo& round,
                                        int local_rank, const std::string& error_file);

// The variables of a worker that is started before its first round, and gets the others with it.
std::vector<std::string> unranked_variables(const JobConstants& job, int local_rank,
                                            std::size_t workers, const std::string& error_file);

// The entries that do not name a rank or a round: a launcher may have inherited such entries.
std::vector<std::string> without_ranks(const std::vector<std::string>& environment);

// Merges the lists: each name occurs once, at the position of its first entry and with the value of
// its last one; later lists override earlier ones. Entries without "=" are dropped.
std::vector<std::string> merge_environment(
    std::initializer_list<const std::vector<std::string>*> lists);

}  // namespace elastic::core
