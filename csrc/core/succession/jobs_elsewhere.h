#pragma once

// The jobs that a process does not coordinate: where it sends their nodes, and which nodes it
// admits. Pure.
//
// What is known of such a job expires, so that the next job of its id can begin here: a coordinator
// that runs elsewhere announces itself every kAnnounceInterval, and a job that has ended does not.

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "core/register/register_types.h"
#include "core/succession/meeting.h"
#include "core/succession/succession_types.h"
#include "elastic/time.h"

namespace elastic::succession {

class JobsElsewhere {
 public:
  // `own`: the job of the agent in whose process this is; "": a separate program. The process ends
  // with that job, so what is known of it does not expire.
  explicit JobsElsewhere(std::string own = {}) : own_(std::move(own)) {}

  // A coordinator has announced itself. Returns the one to which nodes are sent from now on.
  // REQUIRES: this process does not coordinate the job
  const Incumbent& announced(const std::string& job, const Incumbent& by, Instant now);
  // This process has lost the job. Without a known successor, one may announce itself soon.
  void lost(const std::string& job, const std::optional<Incumbent>& successor, Instant now);
  // The own job is coordinated elsewhere, or will be here: its nodes are sent to this coordinator.
  // Without an address they continue their search.
  void set_own(const Incumbent& incumbent) { own_incumbent_ = incumbent; }
  bool has_own() const { return own_incumbent_.has_value(); }
  // This process coordinates the job now.
  void remove(const std::string& job);

  // nullptr: no coordinator elsewhere is known. An empty job id selects the only one.
  const Incumbent* find(std::string_view job, Instant now);
  // How long a job that begins here now completes no round below max_nodes: a successor that this
  // process does not know may announce itself.
  Duration hold(std::string_view job, Instant now) const;

  struct Hello {
    std::string job;
    // Of the job with several voters in which the node is; nullopt: it is in none.
    std::optional<reg::LineageId> lineage;
  };
  struct Here {
    bool is_coordinated = false;  // the job, by this process
    std::optional<reg::LineageId> lineage = {};
    bool is_standby = false;  // this process begins no job
  };
  // nullopt: the node is admitted. Otherwise it is sent to that coordinator; without an address it
  // continues its search: only the voters of its lineage name a coordinator.
  std::optional<Incumbent> answer(const Hello& hello, const Here& here, Instant now);

 private:
  struct Entry {
    Incumbent incumbent;  // term 0: unknown
    Instant until;
  };
  void expire(Instant now);

  const std::string own_;
  std::optional<Incumbent> own_incumbent_;
  std::map<std::string, Entry, std::less<>> all_;
};

}  // namespace elastic::succession
