#include "host/coordinator/drain_desk.h"

#include <utility>
#include <variant>

namespace elastic::host {

DrainDesk::DrainDesk(os::EventLoop* loop, Sink sink)
    : loop_(loop),
      sink_(std::move(sink)),
      timer_(loop, [this] { feed(core::drain_event::Tick{}); }) {}

void DrainDesk::feed(const core::DrainEvent& event) {
  std::vector<core::DrainAction> actions;
  machine_.step(event, loop_->now(), &actions);
  for (const core::DrainAction& action : actions) execute(action);
  if (const auto deadline = machine_.next_deadline()) {
    timer_.arm(*deadline);
  } else {
    timer_.disarm();
  }
}

void DrainDesk::reset() {
  machine_ = {};
  timer_.disarm();
}

void DrainDesk::execute(const core::DrainAction& action) {
  if (const auto* sent = std::get_if<core::drain_action::Send>(&action)) {
    sink_.send(sent->to, sent->order);
  } else if (const auto* news = std::get_if<core::drain_action::Announce>(&action)) {
    sink_.announce(news->text);
  } else if (const auto* closed = std::get_if<core::drain_action::Close>(&action)) {
    sink_.close(closed->result);
  } else if (std::holds_alternative<core::drain_action::HoldGrowth>(action)) {
    sink_.hold_growth();
  } else {
    sink_.inform(std::get<core::drain_action::Inform>(action));
  }
}

}  // namespace elastic::host
