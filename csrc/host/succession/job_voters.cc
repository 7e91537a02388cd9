#include "host/succession/job_voters.h"

#include <utility>

#include "core/succession/succession_types.h"
#include "elastic/rendezvous_types.h"
#include "os/base/process.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

SuccessionFeed JobVoters::open(const std::string& job, const std::string& address) {
  auto voter = JobVoter::open(loop_,
                              {.job_id = job,
                               .node = {os::random_seed(), os::random_seed()},
                               .address = "",
                               .bind_host = "",
                               .voters = static_cast<std::size_t>(voters_),
                               // Until the job's first node has joined.
                               .node_timeout = JobSettings().node_timeout,
                               .store_grace = JobSettings().store_grace,
                               .tokens = tokens_},
                              [this, job](const succession::Action& action) {
                                // Not inside the step of the job that caused it.
                                loop_->post([this, job, action, alive = std::weak_ptr(alive_)] {
                                  if (alive.lock() != nullptr) sink_(job, action);
                                });
                              });
  if (!voter.ok()) return {};
  JobVoter* const raw = voter->get();
  auto survival = std::make_unique<SettledLine>(loop_, [this, job](const std::string& text) {
    if (log_) log_("job " + job + ": " + text);
  });
  jobs_[job] = {*std::move(voter), std::move(survival)};
  raw->feed(succession::CoordinatorStarted{address, true});
  return [raw](succession::Event event) { raw->feed(std::move(event)); };
}

void JobVoters::log_survival(const std::string& job) {
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return;
  const JobVoter& voter = *found->second.voter;
  succession::SurvivalFacts facts;
  facts.wants_voters = voters_ != 1;
  if (const auto& incumbent = voter.incumbent()) {
    facts.voters = incumbent->voters.size();
    facts.host = succession::host_of(incumbent->address);
  }
  voter.describe(&facts);
  found->second.survival->set(succession::describe_survival(facts));
}

}  // namespace elastic::host
