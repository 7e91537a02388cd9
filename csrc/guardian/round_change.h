#pragma once

// Workers that keep their processes when the round changes. The callers pass the workers, which
// belong to the guardian's loop.

#include <cstdint>
#include <vector>

#include "core/workers/guardian_protocol.h"
#include "elastic/time.h"
#include "guardian/worker.h"

namespace elastic::guardian {

// The guardian's part of a change of rounds in which workers keep their processes: passes the end
// of a round and the next round to the workers, and observes who has left.
class RoundChange {
 public:
  // Call advance() after it.
  void cut(const CutRequest& request);
  // True: the worker has the round. False: it has ended, or cannot be given one.
  bool give(const ContinueRequest& request, std::vector<Worker>* workers, Instant now);
  // Call after messages of workers and after cut(). Returns the marks that are new.
  std::vector<MarkEvent> advance(std::vector<Worker>* workers, Instant now);
  // The workers of the generation are gone.
  void clear() { *this = {}; }

 private:
  std::uint64_t cut_ = 0;  // the round of the last CutRequest plus 1; 0: none
};

}  // namespace elastic::guardian
