#pragma once

// The state machine of a node's template process: when it is started again, which workers it forks,
// and the notices about it. Pure, not thread-safe.

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "core/workers/guardian_protocol.h"
#include "elastic/worker_group.h"

namespace elastic {

class WarmTemplate {
 public:
  // The next start of a process; further ones are started at most this often after it was killed.
  static constexpr int kRenewalsMax = 8;

  struct Reaction {
    bool starts = false;  // the owner starts the template process
    std::string notice;   // for the log; "": none
  };

  // With `is_wanted`, the owner starts the process at once.
  explicit WarmTemplate(bool is_wanted) : state_(is_wanted ? State::kImporting : State::kNone) {}

  // How the next generation is started. Importing once and forking is faster than importing in
  // each of several workers, so they wait for the process; a single worker does not.
  guardian::StartKind begin_generation(std::size_t workers);
  // Whether it will fork workers, or say that it cannot.
  bool is_importing() const { return state_ == State::kImporting; }
  Reaction on(const guardian::TemplateEvent& event);
  // The process has ended, or could not be started.
  Reaction on_end(const WorkerExit& exit);

 private:
  enum class State : std::uint8_t { kNone, kImporting, kReady, kUnfit, kStale };

  State state_;
  std::string imported_;  // the module that it imports
  std::set<std::string> left_out_;
  int renewals_ = 0;
  bool is_reported_ = false;  // why workers of this generation were executed
};

}  // namespace elastic
