#include "host/store/reach_probe.h"

#include <utility>

namespace elastic::host {

ReachProbe::ReachProbe(os::EventLoop* loop) : loop_(loop), retry_(loop, [this] { dial(); }) {}

void ReachProbe::begin(const std::string& host, std::uint16_t port, Duration limit, Failed failed) {
  cancel();
  failed_ = std::move(failed);
  deadline_ = add_saturating(loop_->now(), limit);
  auto lookup = os::NameLookup::start(loop_, host, port, [this](const auto& found) {
    if (!found.ok() || found->empty()) return;
    addresses_ = *found;
    retry_.arm(loop_->now());
  });
  if (lookup.ok()) lookup_ = *std::move(lookup);
}

void ReachProbe::cancel() {
  lookup_.reset();
  dialer_.reset();
  retry_.disarm();
}

void ReachProbe::dial() {
  lookup_.reset();
  dialer_ = std::make_unique<os::Dialer>(
      loop_, addresses_, os::Dialer::kPace, deadline_,
      [this](const Result<os::Dialer::Connection>& made) { on_result(made.status()); });
}

// A refusal comes at once, and may be over soon: it is tried again like a lost packet.
void ReachProbe::on_result(const Status& result) {
  dialer_.reset();
  if (result.ok()) return;
  const Instant again = add_saturating(loop_->now(), os::Dialer::kPace);
  if (again < deadline_) {
    retry_.arm(again);
  } else {
    failed_(std::string(result.message()));
  }
}

}  // namespace elastic::host
