#include "guardian/pages.h"

#include <algorithm>
#include <string>
#include <utility>

#include "os/process/process_tree.h"

namespace elastic::guardian {
namespace {

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

}  // namespace elastic::guardian
