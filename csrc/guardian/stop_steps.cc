#include "guardian/stop_steps.h"

#include <algorithm>

// Theory of operation of an agreed step. A worker stores its step and then reads the tentative
// word; the guardian stores the tentative word and then reads the step, all sequentially
// consistent. So a worker whose step is still below the tentative one has not read the old word for
// any later step, and waits there. A worker at or above it may have passed, and the proposal is
// refused. The word stays until the next proposal, so that the worker does not run further ahead.

namespace elastic::guardian {
namespace {

using Order = drain::Order::Kind;
using Reply = drain::Reply::Kind;

}  // namespace

std::optional<drain::StopStepEvent> StopSteps::handle(const drain::StopStepRequest& request,
                                                      std::vector<Worker>* workers) {
  proposal_ = request.proposal;
  if (request.kind == Order::kAsk) return ask(*workers);
  if (request.kind == Order::kCommit) {
    for (Worker& worker : *workers) {
      if (worker.takes_part) worker.channel.commit_stop();
    }
    is_committed_ = true;
    awaited_ = -1;
    is_reached_ = is_ended_ = false;
    return std::nullopt;
  }
  is_committed_ = is_passed_ = false;
  const bool is_tentative = request.kind == Order::kTentative;
  awaited_ = -1;
  for (Worker& worker : *workers) {
    if (!worker.channel.valid()) continue;
    worker.takes_part = is_tentative && !worker.ended && worker.channel.own_step() >= 0;
    worker.channel.set_tentative_stop(worker.takes_part ? request.step : ELASTIC_WORKER_NO_STEP);
  }
  if (!is_tentative) return std::nullopt;
  drain::StopStepEvent reply = ask(*workers);
  // Only workers that take part: one that reports its first step now is left out.
  const bool is_passed = std::any_of(workers->begin(), workers->end(), [&](const Worker& worker) {
    return worker.takes_part && !worker.ended && worker.channel.own_step() >= request.step;
  });
  reply.kind = is_passed ? Reply::kRefused : Reply::kAccepted;
  if (!is_passed && request.reports_waiting) awaited_ = request.step;
  return reply;
}

drain::StopStepEvent StopSteps::ask(const std::vector<Worker>& workers) const {
  drain::StopStepEvent reply;
  reply.proposal = proposal_;
  for (const Worker& worker : workers) {
    if (worker.ended || !worker.channel.valid()) continue;
    const std::int64_t step = worker.channel.own_step();
    if (step < 0) continue;
    reply.oldest = reply.reporting.empty() ? step : std::min(reply.oldest, step);
    reply.newest = std::max(reply.newest, step);
    reply.reporting.push_back(worker.id);
  }
  return reply;
}

std::int64_t StopSteps::stop_step(const Worker& worker) const {
  return is_committed_ && worker.takes_part ? worker.channel.stopped_at() : ELASTIC_WORKER_NO_STEP;
}

std::optional<drain::StopStepEvent> StopSteps::advance(const std::vector<Worker>& workers) {
  drain::StopStepEvent event;
  event.proposal = proposal_;
  if (awaited_ >= 0 && all_wait(workers)) {
    awaited_ = -1;
    event.kind = Reply::kWaiting;
    return event;
  }
  if (awaited_ >= 0 && !is_passed_ && has_passed(workers)) {
    is_passed_ = true;
    event = ask(workers);
    event.kind = Reply::kRefused;
    return event;
  }
  if (!is_committed_ || is_ended_) return std::nullopt;
  bool has_ended = true;
  for (const Worker& worker : workers) {
    if (!worker.takes_part) continue;
    const std::int64_t step = stop_step(worker);
    // A rank that has stopped at the step has passed all of them, however it ends then.
    if (step < 0 && !(worker.ended && worker.succeeded)) return std::nullopt;
    has_ended = has_ended && worker.ended;
    if (step < 0) continue;  // it had finished before the step
    event.first_stop = event.stopped == 0 ? step : std::min(event.first_stop, step);
    event.last_stop = std::max(event.last_stop, step);
    ++event.stopped;
  }
  if (is_reached_ && !has_ended) return std::nullopt;
  is_reached_ = true;
  is_ended_ = has_ended;
  event.kind = has_ended ? Reply::kEnded : Reply::kReached;
  return event;
}

bool StopSteps::all_wait(const std::vector<Worker>& workers) const {
  return std::all_of(workers.begin(), workers.end(), [this](const Worker& worker) {
    if (!worker.takes_part) return true;
    return worker.ended ? worker.succeeded : worker.channel.waits_at() >= awaited_;
  });
}

// A worker that stores a later step and does not wait calls should_stop() at few steps, or nowhere.
bool StopSteps::has_passed(const std::vector<Worker>& workers) const {
  return std::any_of(workers.begin(), workers.end(), [this](const Worker& worker) {
    return worker.takes_part && !worker.ended && worker.channel.own_step() > awaited_ &&
           worker.channel.waits_at() < awaited_;
  });
}

// A committed step stays: a worker that reaches it stops as agreed.
void StopSteps::withdraw(std::vector<Worker>* workers) {
  awaited_ = -1;
  if (is_committed_) return;
  for (Worker& worker : *workers) {
    if (!worker.takes_part) continue;
    worker.takes_part = false;
    if (worker.channel.is_member()) continue;
    worker.channel.set_tentative_stop(ELASTIC_WORKER_NO_STEP);
  }
}

void StopSteps::clear() { *this = {}; }

}  // namespace elastic::guardian
