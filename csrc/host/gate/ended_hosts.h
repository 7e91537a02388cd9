#pragma once

// The hosts that jobs had excluded which have ended, for the next jobs of their ids: one that is
// excluded again stays away for longer.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/gate/host_memory.h"
#include "elastic/status.h"
#include "elastic/time.h"

namespace elastic::host {

class EndedHosts {
 public:
  // A job has ended. Beyond a limit of jobs it is not kept.
  void keep(const std::string& job, const gate::HostMemory& hosts, Instant now);
  // What a job begins with; it is not kept here any longer.
  gate::HostMemory take(const std::string& job, Instant now);

  // By the ids of jobs, what HostMemory encodes.
  using Stored = std::vector<std::pair<std::string, std::string>>;
  // For the state file.
  Stored stored(Instant now) const;
  // Adds what a state file has.
  Status load(const Stored& stored, Instant now);

 private:
  std::map<std::string, gate::HostMemory> jobs_;
};

}  // namespace elastic::host
