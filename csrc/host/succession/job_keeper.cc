#include "host/succession/job_keeper.h"

#include <utility>

#include "core/base/check.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

JobKeeper::JobKeeper(os::EventLoop* loop, Sink sink)
    : loop_(*loop), sink_(std::move(sink)), timer_(loop, [this] { feed(succession::Tick{}); }) {}

JobKeeper::~JobKeeper() { ELASTIC_DEBUG_CHECK(!is_stepping_); }

void JobKeeper::run(Step step) {
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
  if (const auto deadline = machine().next_deadline()) {
    timer_.arm(*deadline);
  } else {
    timer_.disarm();
  }
}

void JobKeeper::feed(succession::Event event) {
  run([this, event = std::move(event)](auto* actions) {
    machine().step(event, loop_.now(), actions);
  });
}

}  // namespace elastic::host
