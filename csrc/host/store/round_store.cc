#include "host/store/round_store.h"

#include <utility>

// Theory of operation. There are up to three kinds of places: the one that the next round may use,
// the one that the present round uses, and those of earlier rounds, which close a second after the
// last worker of their round has ended, so that whoever else reads them is not cut off in
// mid-sentence.
//
// A fixed port has one place. It is emptied, and the connections to it are cut, when the node asks
// for the next round: the new round's workers cannot be there yet, and those of the old one are
// being stopped.

namespace elastic::host {
namespace {

constexpr Duration kAfterlife = std::chrono::seconds(1);

}  // namespace

RoundStore::RoundStore(os::EventLoop* loop, const RoundStoreOptions& options)
    : loop_(loop), options_(options), retirement_(loop, [this] { close_retired(); }) {}

Result<std::uint16_t> RoundStore::prepare(const std::string& host) {
  if (next_.port != 0) return next_.port;
  if (options_.fixed_port != 0 && current_.port != 0) {
    if (current_.service) current_.service->reset();
    next_ = std::exchange(current_, {});
    return next_.port;
  }
  Result<Place> place = options_.fixed_port == 0 && options_.ports.first != 0
                            ? open_in_range(host)
                            : open(host, options_.fixed_port);
  if (!place.ok()) return place.status();
  next_ = *std::move(place);
  return next_.port;
}

Result<RoundStore::Place> RoundStore::open(const std::string& host, std::uint16_t port) const {
  Place place;
  if (!options_.is_shared) {
    Result<os::HeldPort> hold = os::HeldPort::open(host, port);
    if (!hold.ok()) return hold.status();
    place.hold = *std::move(hold);
    place.port = place.hold.port();
    return place;
  }
  auto service = StoreService::open(loop_, {.host = host, .port = port, .limits = options_.limits});
  if (!service.ok()) return service.status();
  place.service = *std::move(service);
  place.port = place.service->port();
  return place;
}

Result<RoundStore::Place> RoundStore::open_in_range(const std::string& host) {
  const std::uint32_t first = options_.ports.first;
  const std::uint32_t count = options_.ports.last - first + 1U;
  Status fault;
  // The ports take turns, so that a late client of an earlier round meets nobody.
  for (std::uint32_t i = 1; i <= count; ++i) {
    const std::uint32_t offset = (last_in_range_ + i) % count;
    const auto port = static_cast<std::uint16_t>(first + offset);
    // Whoever has the port is looked for if it cannot be listened on, which takes its time.
    fault = os::HeldPort::open(host, port).status();
    if (fault.code() == StatusCode::kUnavailable) continue;
    Result<Place> place = open(host, port);
    if (place.ok()) {
      last_in_range_ = offset;
      return place;
    }
    fault = place.status();
    if (fault.code() != StatusCode::kUnavailable) return fault;
  }
  if (!retired_.empty()) {  // what we keep ourselves is given up first
    Place place = std::move(retired_.front().place);
    retired_.pop_front();
    if (place.service) place.service->reset();
    return place;
  }
  return fault.with_context("no port of " + std::to_string(first) + ":" +
                            std::to_string(options_.ports.last) + " is free");
}

void RoundStore::begin_round(bool is_here) {
  retire_current();
  is_needed_ = is_here && options_.is_shared;
  if (is_here) current_ = std::exchange(next_, {});
}

void RoundStore::end_round() {
  is_needed_ = false;
  if (options_.fixed_port == 0) retire_current();
}

void RoundStore::retire_current() {
  if (current_.port == 0) return;
  const Instant close_at = add_saturating(loop_->now(), kAfterlife);
  retired_.push_back({close_at, std::exchange(current_, {})});
  if (!retirement_.armed()) retirement_.arm(close_at);
}

void RoundStore::close_retired() {
  while (!retired_.empty() && retired_.front().close_at <= loop_->now()) retired_.pop_front();
  if (!retired_.empty()) retirement_.arm(retired_.front().close_at);
}

void RoundStore::close() {
  is_needed_ = false;
  retirement_.disarm();
  retired_.clear();
  current_ = {};
  next_ = {};
}

}  // namespace elastic::host
