#pragma once

// The environment of a worker: the one place where its rank variables are computed, so that
// launchers in C++ and in Python cannot differ.

#include <initializer_list>
#include <string>
#include <vector>

#include "elastic/agent.h"

namespace elastic::core {

// What stays the same over a job's rounds.
struct JobConstants {
  std::string run_id;
  std::string role;
  int max_restarts = 0;
  bool share_store = true;  // false: rank 0's worker hosts the store
};

// The rank variables of one local rank, "NAME=value". `error_file` is where the worker may leave
// the story of its failure. REQUIRES: local_rank is one of round.workers.
std::vector<std::string> rank_variables(const JobConstants& job, const RoundInfo& round,
                                        int local_rank, const std::string& error_file);

// The entries of all lists, each name once: the last list that has it wins, and within a list its
// last entry, at the place of the first. What has no "=" is dropped.
std::vector<std::string> merge_environment(
    std::initializer_list<const std::vector<std::string>*> lists);

}  // namespace elastic::core
