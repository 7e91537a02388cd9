#include "guardian/watch.h"

#include <algorithm>
#include <string>

#include "os/process/process_tree.h"

namespace elastic::guardian {
namespace {

bool is_reporting(const Worker& worker) {
  return !worker.ended && worker.channel.valid() && worker.channel.is_reporting();
}

pid_t process_of(const Worker& worker) {
  return worker.channel.valid() && worker.channel.owner() > 0 ? worker.channel.owner() : worker.pid;
}

StacksEvent evidence_of(const Worker& worker, std::string* wait_channel, std::string* text) {
  const os::ProcessWait wait = os::wait_of(process_of(worker));
  *wait_channel = wait.channel;
  StacksEvent event;
  event.id = worker.id;
  event.state = static_cast<std::uint8_t>(wait.state);
  if (worker.channel.valid()) {
    event.step = worker.channel.progress().step;
    if (worker.is_asked) *text = worker.channel.stacks();
  }
  event.wait_channel = *wait_channel;
  event.text = *text;
  return event;
}

}  // namespace

std::optional<Instant> ProgressSampler::next(const std::vector<Worker>& workers) const {
  const bool is_needed =
      last_.reporting > 0 || std::any_of(workers.begin(), workers.end(), is_reporting);
  if (interval_ <= Duration::zero() || !is_needed) return std::nullopt;
  return sampled_ + interval_;
}

std::optional<ProgressEvent> ProgressSampler::take(std::vector<Worker>* workers, Instant now) {
  sampled_ = now;
  ProgressEvent found;
  Instant progressed;
  bool has_changed = false;
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
  last_ = found;
  if (!has_changed) return std::nullopt;
  return found;
}

std::optional<ProgressEvent> ProgressSampler::take_first(std::vector<Worker>* workers,
                                                         Instant now) {
  const bool is_first = std::none_of(workers->begin(), workers->end(), [](const Worker& worker) {
    return !worker.ended && worker.seen_step >= 0;
  });
  return is_first && interval_ > Duration::zero() ? take(workers, now) : std::nullopt;
}

void StackCollector::begin(std::vector<Worker>* workers, Instant now, Duration limit) {
  deadline_ = add_saturating(now, limit);
  for (Worker& worker : *workers) {
    worker.is_asked =
        !worker.ended && worker.channel.valid() && worker.channel.request_stacks(worker.pid);
  }
}

bool StackCollector::advance(const std::vector<Worker>& workers, Instant now, std::string* events) {
  if (!deadline_) return false;
  const bool is_waiting = std::any_of(workers.begin(), workers.end(), [](const Worker& worker) {
    return worker.is_asked && !worker.ended && !worker.channel.has_stacks();
  });
  if (is_waiting && now < *deadline_) return false;
  deadline_.reset();
  for (const Worker& worker : workers) {
    if (worker.ended) continue;
    std::string wait_channel;
    std::string text;
    const StacksEvent event = evidence_of(worker, &wait_channel, &text);
    append_event(events, event);
  }
  append_event(events, StacksDoneEvent{});
  return true;
}

}  // namespace elastic::guardian
