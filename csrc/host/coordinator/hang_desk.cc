#include "host/coordinator/hang_desk.h"

#include <utility>
#include <variant>

namespace elastic::host {

HangDesk::HangDesk(os::EventLoop* loop, Sink sink)
    : loop_(loop),
      sink_(std::move(sink)),
      timer_(loop, [this] { feed(core::hang_event::Tick{}); }) {}

void HangDesk::feed(const core::HangEvent& event) {
  std::vector<core::HangAnswer> answers;
  watch_.step(event, loop_->now(), &answers);
  for (core::HangAnswer& answer : answers) execute(answer);
  const std::size_t stragglers = watch_.num_stragglers();
  std::optional<std::int32_t> suspect;
  if (const auto hang = watch_.hang()) suspect = hang->suspect;
  const bool is_new = stragglers_ != stragglers || suspect_ != suspect;
  stragglers_ = stragglers;
  suspect_ = suspect;
  if (is_new && sink_.changed) sink_.changed();
  if (const auto deadline = watch_.next_deadline()) {
    timer_.arm(*deadline);
  } else {
    timer_.disarm();
  }
}

void HangDesk::execute(core::HangAnswer& answer) {
  if (const auto* asked = std::get_if<core::hang_action::Ask>(&answer)) {
    sink_.ask(asked->wanted);
  } else if (const auto* published = std::get_if<core::hang_action::Publish>(&answer)) {
    sink_.log(published->verdict.text);
    sink_.publish(published->verdict);
  } else if (const auto* closed = std::get_if<core::hang_action::Close>(&answer)) {
    sink_.close(closed->result);
  } else {
    auto& reply = std::get<core::hang_action::Reply>(answer);
    sink_.reply(reply.observer, std::move(reply.text));
  }
}

}  // namespace elastic::host
