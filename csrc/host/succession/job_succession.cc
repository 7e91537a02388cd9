#include "host/succession/job_succession.h"

namespace elastic::host {

JobSuccession::JobSuccession(os::EventLoop* loop, Sink sink)
    : loop_(*loop), sink_(std::move(sink)), timer_(loop, [this] { feed(succession::Tick{}); }) {}

void JobSuccession::run(Step step) {
  steps_.push_back(std::move(step));
  if (std::exchange(is_stepping_, true)) return;
  while (!steps_.empty()) {
    const Step next = std::move(steps_.front());
    steps_.pop_front();
    std::vector<succession::Action> actions;
    next(&actions);
    for (const succession::Action& action : actions) execute(action);
  }
  is_stepping_ = false;
  settled();
  if (const auto deadline = next_deadline()) {
    timer_.arm(*deadline);
  } else {
    timer_.disarm();
  }
}

}  // namespace elastic::host
