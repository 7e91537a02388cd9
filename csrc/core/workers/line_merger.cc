#include "core/workers/line_merger.h"

#include <algorithm>
#include <utility>

// Theory of operation. Lines wait in a queue. A line of a worker joins the first waiting line with
// the same text that is behind this worker's last line, so that its order is kept; otherwise it is
// appended. Only the front of the queue is passed on.

namespace elastic::core {

void LineMerger::add_worker(int worker) { next_.emplace(worker, 0); }

void LineMerger::remove_worker(int worker) { next_.erase(worker); }

void LineMerger::feed(int worker, std::string_view text, Instant now, const Sink& sink) {
  if (!join(worker, text)) {
    lines_.push_back({std::string(text), {worker}, now});
    bytes_ += text.size();
    next_[worker] = popped_ + lines_.size();
  }
  while (lines_.size() > kLinesMax || bytes_ > kBytesMax) pop(sink);
  advance(now, sink);
}

bool LineMerger::join(int worker, std::string_view text) {
  const std::uint64_t from = std::max(next_[worker], popped_) - popped_;
  for (std::size_t i = static_cast<std::size_t>(from); i < lines_.size(); ++i) {
    Line& line = lines_[i];
    if (line.text != text) continue;
    line.workers.insert(std::upper_bound(line.workers.begin(), line.workers.end(), worker), worker);
    next_[worker] = popped_ + i + 1;
    return true;
  }
  return false;
}

void LineMerger::advance(Instant now, const Sink& sink) {
  while (!lines_.empty() &&
         (is_complete(lines_.front()) || now - lines_.front().since >= kMergeTimeout)) {
    pop(sink);
  }
}

void LineMerger::flush(const Sink& sink) {
  while (!lines_.empty()) pop(sink);
}

std::optional<Instant> LineMerger::next_deadline() const {
  if (lines_.empty()) return std::nullopt;
  return lines_.front().since + kMergeTimeout;
}

// A line also names workers that have ended since, so their number alone does not decide.
bool LineMerger::is_complete(const Line& line) const {
  return line.workers.size() >= next_.size() &&
         std::all_of(next_.begin(), next_.end(), [&line](const auto& awaited) {
           return std::binary_search(line.workers.begin(), line.workers.end(), awaited.first);
         });
}

void LineMerger::pop(const Sink& sink) {
  const Line line = std::move(lines_.front());
  lines_.pop_front();
  ++popped_;
  bytes_ -= line.text.size();
  sink(line.workers, line.text);
}

}  // namespace elastic::core
