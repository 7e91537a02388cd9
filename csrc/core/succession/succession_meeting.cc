// Announcements of an elected coordinator at the endpoints, and what it meets there (R8).

#include <string>

#include "core/succession/meeting.h"
#include "core/succession/succession_machine.h"

namespace elastic::succession {

// Nodes that start after the election know the endpoints only.
void Machine::announce_at_endpoints() {
  announce_at_ = add_saturating(now_, kAnnounceInterval);
  // The nodes of a job that has ended are not to be joined by those of the next one.
  if (has_majority_ && !has_result()) emit(AnnounceAtEndpoints{*incumbent_});
}

bool Machine::has_result() const {
  const auto& known = register_.known();
  return known && known->is_in_force && known->record.content.is_result;
}

void Machine::on(const EndpointsAreHere&) { announce_at_.reset(); }

void Machine::on(const Met& event) {
  if (!is_started_ || has_result()) return;
  // An operator has replaced this lineage, which has no majority: its nodes keep their workers.
  if (may_change(event.incumbent.replaces)) return follow(event.incumbent);
  if (event.incumbent.node == settings_.self.node) return;  // a process directs nodes here
  const bool is_named = register_.known() || first_term_ > 1;
  switch (meet(is_named ? incumbent_ : std::nullopt, event.incumbent)) {
    case Meeting::kSame:
    case Meeting::kOurs: break;
    case Meeting::kLater:
      follow(event.incumbent);
      // Two nodes were asked to take the job over, and the other one was asked later.
      if (!register_.known()) stop_service("another node runs the coordinator of the job");
      break;
    case Meeting::kTheirs: dissolve(event.incumbent); break;
  }
}

void Machine::dissolve(const Incumbent& by) {
  emit(Log{"the job runs already, with the coordinator at " + by.address + " (term " +
           std::to_string(by.term) + "): the nodes of this coordinator join it there"});
  end_service();
  is_dissolved_ = true;
  emit(Displaced{by});
}

}  // namespace elastic::succession
