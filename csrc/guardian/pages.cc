#include "guardian/pages.h"

#include <algorithm>
#include <string>
#include <utility>

#include "os/process/process_tree.h"

// Theory of operation of an agreed step. A worker stores its step and then reads the tentative
// word; the guardian stores the tentative word and then reads the step, all sequentially
// consistent. So a worker whose step is still below the tentative one has not read the old word for
// any later step, and waits there. A worker at or above it may have passed, and the proposal is
// refused. The word stays until the next proposal, so that the worker does not run further ahead.

// Theory of operation of a change of rounds. The page's word left_round decides whether a worker
// has left; its message only wakes the guardian. A message that found the socket full is not
// missed: the worker wrote the word before it, and the guardian reads the word after each message
// that it receives.
//
// A worker may leave before the cut, when the loss of a peer gave it an error, and may declare
// itself a member after the cut. So each step compares the last cut with the page, whatever came
// first. A worker that was given a newer round than the cut is not affected by it.

namespace elastic::guardian {
namespace {

using Order = drain::Order::Kind;
using Reply = drain::Reply::Kind;

bool is_reporting(const Worker& worker) {
  return !worker.ended && worker.channel.valid() && worker.channel.is_reporting();
}

pid_t process_of(const Worker& worker) {
  return worker.channel.valid() && worker.channel.owner() > 0 ? worker.channel.owner() : worker.pid;
}

bool is_watching(const Worker& worker) {
  return !worker.ended && worker.channel.valid() && worker.channel.is_watching();
}

// What the texts of an event refer to.
struct EvidenceTexts {
  std::string wait_channel, text, collectives, groups;
};

StacksEvent evidence_of(const Worker& worker, const os::ProcessWork& work, EvidenceTexts* texts) {
  const os::ProcessWait wait = os::wait_of(process_of(worker));
  texts->wait_channel = wait.channel;
  StacksEvent event;
  event.id = worker.id;
  event.state = static_cast<std::uint8_t>(wait.state);
  if (worker.channel.valid()) {
    event.step = worker.channel.progress().step;
    if (worker.is_asked) texts->text = worker.channel.stacks();
    texts->collectives = worker.channel.collectives();
    texts->groups = worker.channel.groups();
  }
  event.cpu = work.cpu;
  event.io_bytes = work.io_bytes;
  event.is_at_work = work.is_at_work;
  event.polling_threads = work.polling_threads;
  event.wait_channel = texts->wait_channel;
  event.text = texts->text;
  event.collectives = texts->collectives;
  event.groups = texts->groups;
  return event;
}

}  // namespace

std::optional<Instant> ProgressSampler::next(const std::vector<Worker>& workers) const {
  const bool is_needed = last_.reporting > 0 || last_.waiting > 0 ||
                         std::any_of(workers.begin(), workers.end(), [](const Worker& worker) {
                           return is_reporting(worker) || is_watching(worker);
                         });
  if (interval_ <= Duration::zero() || !is_needed) return std::nullopt;
  return sampled_ + interval_;
}

std::optional<ProgressEvent> ProgressSampler::take(std::vector<Worker>* workers, Instant now) {
  sampled_ = now;
  ProgressEvent found;
  Instant progressed;
  bool has_changed = false;
  std::optional<Instant> waits_since;
  for (const Worker& worker : *workers) {
    const auto since = is_watching(worker) ? worker.channel.waits_since() : std::nullopt;
    if (!since) continue;
    waits_since = std::min(waits_since.value_or(*since), *since);
    ++found.waiting;
  }
  for (Worker& worker : *workers) {
    if (!is_reporting(worker)) continue;
    const WorkerProgress progress = worker.channel.progress();
    if (progress.step < 0) continue;
    if (progress.step != worker.seen_step || progress.sections != worker.seen_sections) {
      worker.seen_step = progress.step;
      worker.seen_sections = progress.sections;
      worker.progressed = now;
      has_changed = true;
    }
    const bool is_slowest =
        found.reporting == 0 || progress.step < found.oldest ||
        (progress.step == found.oldest && now - worker.progressed > found.slowest_idle);
    if (is_slowest) {
      found.oldest = progress.step;
      found.slowest = worker.id;
      found.slowest_idle = now - worker.progressed;
    }
    found.newest = std::max(found.newest, progress.step);
    found.section_limit = std::max(found.section_limit, progress.section_limit);
    progressed = std::max(progressed, worker.progressed);
    ++found.reporting;
  }
  has_changed = has_changed || found.reporting != last_.reporting;
  if (found.reporting > 0) found.idle = now - progressed;
  if (waits_since) found.waited = std::max(now - *waits_since, Duration::zero());
  found.has_advanced = has_changed;
  const bool waits_since_another = std::exchange(waits_since_, waits_since) != waits_since;
  const bool waits_anew = found.waiting != last_.waiting || waits_since_another;
  last_ = found;
  if (!has_changed && !waits_anew) return std::nullopt;
  return found;
}

std::optional<ProgressEvent> ProgressSampler::take_first(std::vector<Worker>* workers,
                                                         Instant now) {
  const bool is_first = std::none_of(workers->begin(), workers->end(), [](const Worker& worker) {
    return !worker.ended && worker.seen_step >= 0;
  });
  return is_first && interval_ > Duration::zero() ? take(workers, now) : std::nullopt;
}

void take_signatures(std::vector<Worker>* workers, std::string* events) {
  bool is_settled = true;
  std::vector<Worker*> changed;
  for (Worker& worker : *workers) {
    if (!is_watching(worker)) continue;
    const std::uint32_t sequence = worker.channel.signatures_sequence();
    is_settled &= std::exchange(worker.seen_signatures, sequence) == sequence;
    if (worker.sent_signatures != sequence) changed.push_back(&worker);
  }
  if (!is_settled) return;
  for (Worker* const worker : changed) {
    worker->sent_signatures = worker->seen_signatures;
    const std::string text = worker->channel.signatures();
    const std::string groups = worker->channel.groups();
    append_event(events, SignaturesEvent{worker->id, worker == changed.back(), text, groups});
  }
}

void set_stop_reason(std::vector<Worker>* workers, std::string_view text) {
  for (Worker& worker : *workers) {
    if (!worker.ended && worker.channel.valid()) worker.channel.set_stop_reason(text);
  }
}

void StackCollector::begin(std::vector<Worker>* workers, Instant now,
                           const StacksRequest& request) {
  deadline_ = add_saturating(now, request.limit);
  measures_ = request.measures_work;
  for (Worker& worker : *workers) {
    worker.is_asked = !request.measures_work && !worker.ended && worker.channel.valid() &&
                      worker.channel.request_stacks(worker.pid);
  }
}

bool StackCollector::advance(const std::vector<Worker>& workers, Instant now, std::string* events) {
  if (!deadline_) return false;
  const bool is_waiting = std::any_of(workers.begin(), workers.end(), [](const Worker& worker) {
    return worker.is_asked && !worker.ended && !worker.channel.has_stacks();
  });
  if (is_waiting && now < *deadline_) return false;
  deadline_.reset();
  std::vector<os::ProcessWork> works(workers.size());
  if (measures_) {
    std::vector<pid_t> pids;
    for (const Worker& worker : workers) pids.push_back(worker.ended ? -1 : worker.pid);
    works = os::work_of(pids);
  }
  for (std::size_t i = 0; i < workers.size(); ++i) {
    if (workers[i].ended) continue;
    EvidenceTexts texts;
    append_event(events, evidence_of(workers[i], works[i], &texts));
  }
  append_event(events, StacksDoneEvent{});
  return true;
}

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

void RoundChange::cut(const CutRequest& request) { cut_ = std::max(cut_, request.round + 1); }

bool RoundChange::give(const ContinueRequest& request, std::vector<Worker>* workers, Instant now) {
  Worker* const worker = find_worker(workers, request.id);
  if (worker == nullptr || worker->ended) return false;
  if (!worker->channel.valid() || !worker->channel.is_member()) return false;
  worker->seen_step = ELASTIC_WORKER_NO_STEP;
  worker->progressed = now;
  worker->takes_part = false;
  worker->given = request.round + 1;
  return worker->channel.send_round(request.round, request.env);
}

std::vector<MarkEvent> RoundChange::advance(std::vector<Worker>* workers, Instant now) {
  std::vector<MarkEvent> marks;
  for (Worker& worker : *workers) {
    if (worker.ended || !worker.channel.valid()) continue;
    const Channel& channel = worker.channel;
    if (!channel.is_member()) {
      worker.known_member = 0;
      worker.cut_sent = 0;
      continue;
    }
    // Another process may have opened the channel and joined since the last look.
    if (std::exchange(worker.known_member, channel.owner()) != channel.owner()) {
      worker.cut_sent = 0;
      marks.push_back({worker.id, Mark::kMember, now});
    }
    if (worker.given == 0 && channel.waits_for_first_round() &&
        std::exchange(worker.left, ELASTIC_WORKER_NO_ROUND) != ELASTIC_WORKER_NO_ROUND) {
      marks.push_back({worker.id, Mark::kLeft, now});
    }
    if (cut_ == 0 || cut_ < worker.given || worker.left == cut_) continue;
    if (channel.has_left(cut_ - 1)) {
      worker.left = cut_;
      marks.push_back({worker.id, Mark::kLeft, now, channel.own_step()});
    } else if (std::exchange(worker.cut_sent, cut_) != cut_) {
      // If it cannot be sent, the worker does not leave, and the agent stops it as any other.
      worker.channel.send_cut(cut_ - 1);
    }
  }
  return marks;
}

}  // namespace elastic::guardian
