// The workers that are started before this node joins. agent_policy.cc has the theory of operation.

#include <csignal>
#include <utility>

#include "core/agent/agent_policy_context.h"
#include "core/base/duration_text.h"

namespace elastic::core {

void AgentPolicy::prepare_group(const RendezvousReady& event, Context* context) {
  participant_.locate(event.name, event.address);
  is_preparing_ = true;
  const auto workers = static_cast<std::size_t>(self().local_world_size);
  capable_.assign(workers, true);  // only those wait for a round
  left_.assign(workers, false);
  deadline_ = add_saturating(context->now, *inplace_prepare_);
  context->act(PrepareGroup{self()});
  report_progress({"starting the workers; this node joins when they wait for their round"},
                  context);
}

void AgentPolicy::join_prepared(Context* context) {
  is_preparing_ = false;
  is_kept_ = true;
  request_join(context);
}

void AgentPolicy::note_prepared_exit(const WorkerExited& event, Context* context) {
  kept_exits_.push_back(event);
  abandon_prepared("the worker of local rank " + std::to_string(event.local_rank) + " " +
                       event.exit.describe() + " before this node had joined",
                   context);
}

void AgentPolicy::abandon_prepared(const std::string& why, Context* context) {
  deadline_.reset();
  if (std::exchange(is_stopping_, true)) return;
  if (!all_ended()) context->act(StopGroup{SIGTERM, failure_grace()});
  context->report(AgentEvent::Kind::kNotice, state_,
                  why + "; the workers are started again with the round");
}

// What they were is forgotten: a failure that repeats is one of the round.
void AgentPolicy::join_unprepared(Context* context) {
  is_preparing_ = is_stopping_ = false;
  ended_ = 0;
  kept_exits_.clear();
  request_join(context);
}

}  // namespace elastic::core
