#include "host/membership/shared_state_thread.h"

#include <utility>

#include "elastic/agent.h"
#include "os/loop/clock.h"
#include "os/loop/quiet_thread.h"
#include "os/loop/random_seed.h"
#include "os/net/address.h"
#include "os/net/interfaces.h"

namespace elastic::host {
namespace {

using namespace std::chrono_literals;

// When an outage is first spoken of, and how often from then on.
constexpr Duration kFirstNote = 1s;
constexpr Duration kNoteEvery = 10s;

std::string seconds_text(Duration duration) {
  return std::to_string(std::chrono::ceil<std::chrono::seconds>(duration).count()) + " s";
}

// What is said to nobody else's ears: the node needs no word of it.
std::optional<MembershipEvent> as_event(const RendezvousAction& action) {
  return std::visit(
      [](const auto& one) -> std::optional<MembershipEvent> {
        using Action = std::decay_t<decltype(one)>;
        if constexpr (std::is_same_v<Action, rdzv::Resumed> ||
                      std::is_same_v<Action, rdzv::Superseded>) {
          return std::nullopt;
        } else {
          return one;
        }
      },
      action);
}

}  // namespace

Result<std::unique_ptr<SharedStateThread>> SharedStateThread::start(
    const RendezvousOptions& options, Sink sink, std::function<void()> on_settled) {
  auto notifier = os::Notifier::create();
  if (!notifier.ok()) return notifier.status();
  std::unique_ptr<SharedStateThread> self(
      new SharedStateThread(options, *std::move(notifier), std::move(sink), std::move(on_settled)));
  auto thread = os::start_quiet_thread("elastic-shared", [raw = self.get()] { raw->run(); });
  if (!thread.ok()) return thread.status();
  self->thread_ = *std::move(thread);
  return self;
}

SharedStateThread::SharedStateThread(const RendezvousOptions& options, os::Notifier notifier,
                                     Sink sink, std::function<void()> on_settled)
    : options_(options),
      store_name_(options.backend->name()),
      sink_(std::move(sink)),
      on_settled_(std::move(on_settled)),
      notifier_(std::move(notifier)),
      member_(options.settings, os::random_seed(), os::monotonic_now()) {}

SharedStateThread::~SharedStateThread() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    shall_stop_ = true;
  }
  wake();
  thread_.join();
}

void SharedStateThread::say(const NodeStatement& statement) {
  {
    const std::lock_guard lock(mutex_);
    said_.push_back(statement);
  }
  wake();
}

void SharedStateThread::settle() {
  {
    const std::lock_guard lock(mutex_);
    shall_settle_ = true;
  }
  wake();
}

void SharedStateThread::wake() {
  notifier_.notify();
  options_.backend->interrupt();
}

void SharedStateThread::run() {
  while (take_orders()) {
    if (!is_lost_) look();
    settle_if_possible();
    wait();
  }
}

// False: to stop.
bool SharedStateThread::take_orders() {
  std::vector<NodeStatement> said;
  {
    const std::lock_guard lock(mutex_);
    if (shall_stop_) return false;
    said.swap(said_);
    is_settling_ = shall_settle_;
  }
  for (NodeStatement& statement : said) {
    if (const auto* join = std::get_if<rdzv::Join>(&statement)) self_ = join->node.id;
    has_left_ = std::holds_alternative<rdzv::Leave>(statement);
    std::visit([this](auto& one) { member_.say(std::move(one)); }, statement);
  }
  return true;
}

void SharedStateThread::look() {
  RendezvousBackend& store = *options_.backend;
  const Result<std::optional<StoredState>> stored = store.get_state();
  Instant now = os::monotonic_now();
  if (!stored.ok()) {
    if (!must_give_up(stored.status())) {
      note_outage(stored.status(), now);
      give_up_if_not_ok(member_.could_not_read(stored.status(), now));
    }
    return;
  }
  tell_ready();
  std::vector<RendezvousAction> told;
  Status status = member_.read(*stored, now, &told);
  std::optional<core::SharedWrite> write;
  if (status.ok()) write = member_.propose(now, &told);
  if (write) {
    const Result<StoredWrite> answer = store.set_state(write->bytes, write->token);
    now = os::monotonic_now();
    if (answer.ok()) {
      note_recovery(now);
      status = member_.wrote(*answer, now, &told);
    } else if (!must_give_up(answer.status())) {
      note_outage(answer.status(), now);
      status = member_.write_failed(answer.status(), now);
    }
  } else {
    note_recovery(now);
  }
  waiting_nodes_.store(member_.machine().waiting_nodes(), std::memory_order_relaxed);
  tell(told);
  give_up_if_not_ok(status);
}

// Whether trying again is of no use; then the end has been told.
bool SharedStateThread::must_give_up(const Status& fault) {
  switch (fault.code()) {
    case StatusCode::kUnavailable:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kResourceExhausted: return false;
    case StatusCode::kInvalidArgument:
    case StatusCode::kNotFound: lose(kExitUsage, fault); break;
    case StatusCode::kFailedPrecondition: lose(kExitCoordinatorLost, fault); break;
    case StatusCode::kPeerViolation: lose(kExitRefused, fault); break;
    default: lose(kExitInternal, fault); break;
  }
  return true;
}

void SharedStateThread::give_up_if_not_ok(const Status& status) {
  if (status.ok()) return;
  const bool was_never_there = status.code() == StatusCode::kDeadlineExceeded;
  lose(was_never_there ? kExitJoinTimedOut : kExitCoordinatorLost, status);
}

void SharedStateThread::lose(int exit_code, const Status& why) {
  is_lost_ = true;
  sink_(MembershipLost{exit_code, store_name_ + " rendezvous: " + std::string(why.message())});
}

void SharedStateThread::tell(const std::vector<RendezvousAction>& told) {
  for (const RendezvousAction& action : told) {
    if (auto event = as_event(action)) sink_(*std::move(event));
  }
}

void SharedStateThread::tell_ready() {
  if (std::exchange(was_ready_told_, true)) return;
  sink_(MembershipReady{published_address()});
}

std::string SharedStateThread::published_address() const {
  if (!options_.local_addr.empty()) {
    const auto found = os::look_up(options_.local_addr, 0);
    // A name of this host's own may mean loopback here and something else elsewhere.
    const bool is_usable =
        found.ok() && (options_.settings.max_nodes == 1 || os::parse_address(options_.local_addr) ||
                       !found->front().is_loopback());
    if (is_usable) return found->front().host();
  }
  if (std::string address = options_.backend->local_address(); !address.empty()) return address;
  if (std::string address = os::primary_address(); !address.empty()) return address;
  return "127.0.0.1";
}

void SharedStateThread::note_outage(const Status& cause, Instant now) {
  if (!outage_began_) {
    outage_began_ = now;
    next_note_ = now + kFirstNote;
  }
  if (now < next_note_) return;
  next_note_ = now + kNoteEvery;
  const Duration limit =
      was_ready_told_ ? options_.settings.store_grace : options_.settings.join_timeout;
  sink_(MembershipNote{"the " + store_name_ + " rendezvous cannot be reached for " +
                       seconds_text(now - *outage_began_) + " (" + std::string(cause.message()) +
                       "); giving up after " + seconds_text(limit)});
}

void SharedStateThread::note_recovery(Instant now) {
  if (!outage_began_) return;
  if (now >= *outage_began_ + kFirstNote) {
    sink_(MembershipNote{"the " + store_name_ + " rendezvous is there again after " +
                         seconds_text(now - *outage_began_)});
  }
  outage_began_.reset();
}

void SharedStateThread::settle_if_possible() {
  if (!is_settling_ || was_settled_told_) return;
  if (member_.has_been_told_the_end() && !std::exchange(has_left_, true)) {
    member_.say(rdzv::Leave{self_, "the job is over"});
  }
  if (!is_lost_ && !member_.has_said_all()) return;
  was_settled_told_ = true;
  on_settled_();
}

void SharedStateThread::wait() {
  if (is_lost_) {
    (void)notifier_.wait({});
    return;
  }
  if (is_watched_) {
    is_watched_ = options_.backend->wait_for_change(member_.token(), member_.next_look(true));
  }
  if (!is_watched_) (void)notifier_.wait({.deadline = member_.next_look(false)});
}

}  // namespace elastic::host
