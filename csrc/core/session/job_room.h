#pragma once

// How many jobs a process coordinates. Pure.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "elastic/status.h"

namespace elastic::core {

struct JobHere {
  std::string id;
  std::string beginner;  // the address of the client whose hello began it; "": this process
  std::uint64_t serial;  // in the order in which they began
  bool is_idle;          // no node has joined, and it may be removed
};

// Makes room for one more job of this beginner: nothing is in the way (""), or the idle job that is
// to be removed, or an error. Without a token any process can begin jobs: one address may use a
// quarter of the limit.
Result<std::string> make_room(const std::vector<JobHere>& jobs, std::size_t jobs_max,
                              const std::string& beginner, bool needs_token);

}  // namespace elastic::core
