#include "host/store/round_store.h"
#include "os/loop/event_loop.h"

#include <utility>

// Theory of operation. There are up to three kinds of open ports: the one for the next round, the
// one that the current round uses, and those of earlier rounds, which close a second after the last
// worker of their round has ended, so that other clients can finish reading.
//
// A fixed port is opened once. Its store is emptied, and its connections are closed, when the node
// prepares the next round: the new round's workers are not running yet, and those of the old one
// are being stopped. A range in which no other port is free is used in the same way.

namespace elastic::host {
namespace {

constexpr Duration kLinger = std::chrono::seconds(1);

}  // namespace

RoundStore::RoundStore(os::EventLoop* loop, const RoundStoreOptions& options)
    : loop_(loop),
      options_(options),
      refusals_(options.log),
      close_timer_(loop, [this] { close_retired(); }) {}

Result<std::uint16_t> RoundStore::prepare(const std::string& host) {
  if (next_.port != 0) return next_.port;
  if (options_.fixed_port != 0 && current_.port != 0) {
    next_ = reuse_current();
    if (next_.service && options_.is_fenced) next_.service->pause_accepting();
    return next_.port;
  }
  Result<OpenPort> opened = options_.fixed_port == 0 && options_.ports.first != 0
                                ? open_in_range(host)
                                : open(host, options_.fixed_port);
  if (!opened.ok()) return opened.status();
  next_ = *std::move(opened);
  if (next_.service && options_.is_fenced) next_.service->pause_accepting();
  return next_.port;
}

Result<RoundStore::OpenPort> RoundStore::open(const std::string& host, std::uint16_t port) const {
  OpenPort opened;
  if (!options_.is_shared) {
    Result<os::ReservedPort> hold = os::ReservedPort::open(host, port);
    if (!hold.ok()) return hold.status();
    opened.hold = *std::move(hold);
    opened.port = opened.hold.port();
    return opened;
  }
  auto service = StoreService::open(loop_, {.host = host, .port = port, .limits = options_.limits});
  if (!service.ok()) return service.status();
  opened.service = *std::move(service);
  opened.port = opened.service->port();
  return opened;
}

RoundStore::OpenPort RoundStore::reuse_current() {
  if (current_.service) current_.service->reset();
  return std::exchange(current_, {});
}

Result<RoundStore::OpenPort> RoundStore::open_in_range(const std::string& host) {
  const std::uint32_t first = options_.ports.first;
  const std::uint32_t count = options_.ports.last - first + 1U;
  Status fault;
  // Use the ports in turn, so that a late client of an earlier round finds a closed port.
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t offset = (next_in_range_ + i) % count;
    const auto port = static_cast<std::uint16_t>(first + offset);
    // Try ReservedPort first: when StoreService cannot listen it looks for the port's owner, which
    // is slow.
    fault = os::ReservedPort::open(host, port).status();
    if (fault.code() == StatusCode::kUnavailable) continue;
    Result<OpenPort> opened = open(host, port);
    if (opened.ok()) {
      next_in_range_ = offset + 1;
      return opened;
    }
    fault = opened.status();
    if (fault.code() != StatusCode::kUnavailable) return fault;
  }
  if (!retired_.empty()) {  // reuse the port of an earlier round
    OpenPort opened = std::move(retired_.front().opened);
    retired_.pop_front();
    if (opened.service) opened.service->reset();
    return opened;
  }
  if (current_.port != 0) return reuse_current();
  return fault.with_context("no port of " + std::to_string(first) + ":" +
                            std::to_string(options_.ports.last) + " is free");
}

void RoundStore::allow(std::uint64_t round, const std::vector<std::string>& addresses) {
  if (std::exchange(allowed_round_, round) != round) allowed_.clear();
  for (const std::string& address : addresses) {
    if (allowed_.size() == static_cast<std::size_t>(kNodesMax)) return;
    allowed_.insert(address);
  }
}

void RoundStore::open_fence() {
  if (!current_.service || !options_.is_fenced) return;
  const auto fence = std::make_shared<const AddressFence>(std::exchange(allowed_, {}));
  current_.service->fence(
      [fence, this](const auto& remote, const auto& local) {
        return fence->allows(remote, local, loop_->now());
      },
      [this](const std::string& host) {
        refusals_.report(host,
                         "a request to the workers' store was refused: no member of the round was "
                         "seen at this address; if it belongs to one, name it with --local-addr "
                         "there",
                         loop_->now());
      });
  current_.service->resume_accepting();
}

void RoundStore::begin_round(bool is_here) {
  retire_current();
  is_needed_ = is_here && options_.is_shared;
  if (is_here) {
    current_ = std::exchange(next_, {});
    open_fence();
  }
}

std::optional<Instant> RoundStore::first_client() const {
  return current_.service ? current_.service->first_client() : std::nullopt;
}

std::optional<Instant> RoundStore::last_key() const {
  return current_.service ? current_.service->last_key() : std::nullopt;
}

void RoundStore::end_round() {
  is_needed_ = false;
  if (options_.fixed_port == 0) retire_current();
}

void RoundStore::retire_current() {
  if (current_.port == 0) return;
  const Instant close_at = add_saturating(loop_->now(), kLinger);
  retired_.push_back({close_at, std::exchange(current_, {})});
  if (!close_timer_.armed()) close_timer_.arm(close_at);
}

void RoundStore::close_retired() {
  while (!retired_.empty() && retired_.front().close_at <= loop_->now()) retired_.pop_front();
  if (!retired_.empty()) close_timer_.arm(retired_.front().close_at);
}

void RoundStore::close() {
  is_needed_ = false;
  close_timer_.disarm();
  retired_.clear();
  current_ = {};
  next_ = {};
}

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
