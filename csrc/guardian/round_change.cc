#include "guardian/round_change.h"

#include <algorithm>
#include <utility>

// Theory of operation of a change of rounds. The page's word left_round decides whether a worker
// has left; its message only wakes the guardian. A message that found the socket full is not
// missed: the worker wrote the word before it, and the guardian reads the word after each message
// that it receives.
//
// A worker may leave before the cut, when the loss of a peer gave it an error, and may declare
// itself a member after the cut. So each step compares the last cut with the page, whatever came
// first. A worker that was given a newer round than the cut is not affected by it.

namespace elastic::guardian {

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
