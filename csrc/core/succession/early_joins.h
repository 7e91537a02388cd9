#pragma once

// The nodes that join a job which is continued from a store, before a node of it is back. Pure.
//
// A job that has crashed leaves its record in the store. A node of the next one of the id must not
// be measured by its settings, nor receive its failure: so it waits until a node of the former job
// has resumed. If none does in time, the next job begins.

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "core/rendezvous/rendezvous_events.h"
#include "core/rendezvous/rendezvous_machine.h"

namespace elastic::succession {

class EarlyJoins {
 public:
  // The record of `machine` was restored from a store. Until when nodes wait, from now on; nullopt:
  // none has to.
  std::optional<Duration> begin(const core::RendezvousMachine& machine);
  bool is_waiting() const { return awaits_resumes_; }

  enum class Verdict : std::uint8_t {
    kEnter,
    kBeginAnew,  // RendezvousMachine::begin_anew with the node's settings; then it enters
    kWait,       // and it gets a progress line
    kKnown,      // it waits already
  };
  Verdict judge(const core::RendezvousMachine& machine, const rdzv::Join& join);
  // A node of the next job resumes as well, if its session was interrupted while it waited.
  Verdict judge(const core::RendezvousMachine& machine, const rdzv::Resume& resume);
  // The time is over. The settings of the job that begins anew; nullopt: no node waits.
  std::optional<JobSettings> time_out();

  void forget(const NodeId& node) { joins_.erase(node); }
  // Those that enter now.
  std::vector<rdzv::Join> take();

 private:
  bool awaits_resumes_ = false;
  bool is_over_ = false;
  std::map<NodeId, rdzv::Join> joins_;
};

}  // namespace elastic::succession
