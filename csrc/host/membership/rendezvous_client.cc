#include "elastic/rendezvous_client.h"

#include <algorithm>
#include <deque>
#include <future>
#include <utility>

#include "elastic/agent.h"
#include "host/membership/membership_factory.h"
#include "host/membership/node_identity.h"
#include "host/store/round_store.h"
#include "os/base/fork_guard.h"
#include "os/loop/clock.h"
#include "os/loop/loop_thread.h"
#include "os/loop/notifier.h"

// Theory of operation. The seat lives on a loop thread: it hears what the membership tells, and
// says what follows from it and from what the caller asks for. Callers look at it from there, too;
// one that waits is woken after each change and looks again.
//
// A round that has come when nobody asked for it any more is kept for the next call. Should it end
// before that, no worker of it was ever started here, and the seat joins the next one by itself.

namespace elastic {
namespace {

constexpr std::size_t kNotesMax = 256;

Status error_of(const host::MembershipLost& lost) {
  switch (lost.exit_code) {
    case kExitJoinTimedOut: return {StatusCode::kDeadlineExceeded, lost.sentence};
    case kExitRefused:
    case kExitUsage: return {StatusCode::kInvalidArgument, lost.sentence};
    default: return {StatusCode::kUnavailable, lost.sentence};
  }
}

}  // namespace

class RendezvousClient::Impl {
 public:
  Impl(RendezvousClientOptions options, os::Notifier changed,
       std::unique_ptr<os::LoopThread> thread)
      : options_(std::move(options)),
        changed_(std::move(changed)),
        thread_(std::move(thread)),
        node_(host::new_node(options_.rendezvous)),
        store_(&thread_->loop(),
               {.fixed_port = options_.store_port, .ports = {}, .limits = options_.store_limits}),
        parting_(&thread_->loop(), [this] { part(); }) {
    node_.local_world_size = options_.local_world_size;
    node_.role = options_.role;
    node_.stop_grace = node_.failure_grace = options_.stop_grace;
  }
  ~Impl() {
    on_loop([this] {
      membership_.reset();
      parting_.disarm();
      store_.close();
    });
  }

  bool is_in_child() const { return fork_guard_.is_in_child(); }
  // Runs `work` on the loop thread; in a forked child there is none, and nothing happens.
  template <typename Work>
  bool on_loop(Work work) const {
    if (is_in_child()) return false;
    thread_->call(work);
    return true;
  }

  Status begin();
  Result<RendezvousRound> next_rendezvous(Instant deadline,
                                          const std::function<bool()>& interrupted);
  Status late() const;
  int waiting_nodes() const;
  bool is_closed() const;
  std::optional<JobResult> result() const;
  void set_closed(const JobResult& result);
  bool leave(const std::string& reason, Duration limit);
  std::string address() const;
  std::vector<std::string> take_notes();

 private:
  enum class Place : std::uint8_t {
    kOutside,  // has not joined, or is not known any more
    kJoined,
    kGiven,  // a round has come that nobody has taken yet
    kInRound,
  };

  // Loop thread only.
  void ask();
  void join();
  void leave_round();
  void begin_to_leave(const std::string& reason, Duration limit);
  void part();
  void hear(const host::MembershipEvent& event);
  void on(const host::MembershipReady& ready);
  void on(const host::MembershipNote& note) { add_note(note.sentence); }
  void on(const host::MembershipCoordinatorLog&) {}  // a library has no log
  void on(const host::MembershipLost& lost);
  void on(const rdzv::Round& round);
  void on(const rdzv::Restart& restart);
  void on(const rdzv::Waiting& waiting);
  void on(const rdzv::Evicted& evicted);
  void on(const rdzv::Refused& refused) { fail(refused.error); }
  void on(const rdzv::TimedOut& timed_out) {
    fail(Status(StatusCode::kDeadlineExceeded, timed_out.sentence));
  }
  void on(const rdzv::Closed& closed);
  void on(const rdzv::RoundOver& over);
  void fail(const Status& why);
  void add_note(const std::string& sentence);
  std::optional<Result<RendezvousRound>> take_outcome();

  // Constant after construction.
  const RendezvousClientOptions options_;
  const os::ForkGuard fork_guard_;

  os::Notifier changed_;  // any thread
  const std::unique_ptr<os::LoopThread> thread_;

  // Loop thread only.
  NodeInfo node_;
  Place place_ = Place::kOutside;
  bool is_asked_ = false;  // somebody has asked for a round
  bool is_ready_ = false;
  std::uint64_t round_ = 0;
  RendezvousRound given_;  // kGiven, kInRound
  bool is_over_ = false;   // the round that was taken, for others
  Status error_;           // why there is no round; the next call tries again
  Status end_;             // as error_, for ever
  std::string waiting_for_;
  bool is_closed_ = false;
  std::optional<JobResult> result_;
  std::deque<std::string> notes_;
  std::string bind_host_;
  host::RoundStore store_;
  std::unique_ptr<host::Membership> membership_;
  bool is_leaving_ = false;
  std::string parting_reason_;
  Instant parting_deadline_;
  std::function<void()> on_parted_;
  os::EventLoop::Timer parting_;
};

Status RendezvousClient::Impl::begin() {
  Status status;
  thread_->call([&] {
    auto membership =
        host::open_membership(&thread_->loop(), options_.rendezvous, options_.run_id,
                              [this](const host::MembershipEvent& event) { hear(event); });
    if (membership.ok()) {
      membership_ = *std::move(membership);
    } else {
      status = membership.status();
    }
  });
  return status;
}

// ---- The caller's side.

Result<RendezvousRound> RendezvousClient::Impl::next_rendezvous(
    Instant deadline, const std::function<bool()>& interrupted) {
  if (!on_loop([this] { ask(); })) {
    return Status(StatusCode::kFailedPrecondition, "the client belongs to the parent process");
  }
  const os::WaitLimits limits{.deadline = deadline, .interrupted = &interrupted};
  while (true) {
    std::optional<Result<RendezvousRound>> outcome;
    on_loop([&] { outcome = take_outcome(); });
    if (outcome) return *std::move(outcome);
    const Status waited = changed_.wait(limits);
    if (waited.code() == StatusCode::kDeadlineExceeded) return late();
    if (!waited.ok()) return waited;
  }
}

Status RendezvousClient::Impl::late() const {
  std::string message = "no round in time";
  on_loop([&] {
    if (!waiting_for_.empty()) message += ": " + waiting_for_;
  });
  return {StatusCode::kDeadlineExceeded, std::move(message)};
}

int RendezvousClient::Impl::waiting_nodes() const {
  int count = 0;
  on_loop([&] { count = std::max(membership_->waiting_nodes(), is_over_ ? 1 : 0); });
  return count;
}

bool RendezvousClient::Impl::is_closed() const {
  bool is_closed = false;
  on_loop([&] { is_closed = is_closed_; });
  return is_closed;
}

std::optional<JobResult> RendezvousClient::Impl::result() const {
  std::optional<JobResult> result;
  on_loop([&] { result = result_; });
  return result;
}

void RendezvousClient::Impl::set_closed(const JobResult& result) {
  on_loop([&] {
    is_closed_ = true;
    membership_->say(rdzv::Close{node_.id, result});
  });
}

bool RendezvousClient::Impl::leave(const std::string& reason, Duration limit) {
  const Instant deadline = add_saturating(os::monotonic_now(), limit);
  std::promise<void> parted;
  const bool is_here = on_loop([&] {
    if (is_leaving_) {
      parted.set_value();
      return;
    }
    on_parted_ = [&parted] { parted.set_value(); };
    begin_to_leave(reason, limit);
  });
  if (!is_here) return false;
  parted.get_future().wait();
  return os::monotonic_now() < deadline;
}

std::string RendezvousClient::Impl::address() const {
  std::string address;
  on_loop([&] { address = node_.address; });
  return address;
}

std::vector<std::string> RendezvousClient::Impl::take_notes() {
  std::vector<std::string> notes;
  on_loop([&] {
    notes.assign(notes_.begin(), notes_.end());
    notes_.clear();
  });
  return notes;
}

// ---- The loop's side: what is said.

std::optional<Result<RendezvousRound>> RendezvousClient::Impl::take_outcome() {
  if (is_leaving_) return Status(StatusCode::kFailedPrecondition, "this node has left");
  if (!end_.ok()) return end_;
  if (!error_.ok()) return std::exchange(error_, Status());
  if (place_ != Place::kGiven) return std::nullopt;
  place_ = Place::kInRound;
  return given_;
}

void RendezvousClient::Impl::ask() {
  if (!end_.ok() || is_leaving_) return;
  is_asked_ = true;
  error_ = Status();
  if (place_ == Place::kInRound) leave_round();
  if (place_ == Place::kOutside) join();
}

void RendezvousClient::Impl::leave_round() {
  membership_->say(rdzv::Gone{node_.id, round_});
  place_ = Place::kOutside;
  is_over_ = false;
}

void RendezvousClient::Impl::join() {
  if (!is_ready_ || place_ == Place::kJoined) return;
  const Result<std::uint16_t> port = store_.prepare(bind_host_);
  if (!port.ok()) {
    fail(port.status());
    return;
  }
  node_.store_port = *port;
  place_ = Place::kJoined;
  membership_->say(rdzv::Join{node_, options_.rendezvous.settings});
}

void RendezvousClient::Impl::begin_to_leave(const std::string& reason, Duration limit) {
  is_leaving_ = true;
  changed_.notify();
  parting_reason_ = reason;
  parting_deadline_ = add_saturating(thread_->loop().now(), limit);
  // Others may still be reading the last round's store; that they do not is told to who is there.
  const bool is_awaited =
      result_ && place_ == Place::kInRound && store_.is_needed() && given_.record.nodes > 1;
  if (is_awaited) {
    membership_->say(rdzv::Gone{node_.id, round_});
    parting_.arm(add_saturating(thread_->loop().now(), limit / 2));
  } else {
    part();
  }
}

void RendezvousClient::Impl::part() {
  membership_->say(rdzv::Leave{node_.id, parting_reason_});
  membership_->drain(parting_deadline_ - thread_->loop().now(), [this] {
    if (const auto parted = std::exchange(on_parted_, nullptr)) parted();
  });
}

// ---- What is heard.

void RendezvousClient::Impl::hear(const host::MembershipEvent& event) {
  std::visit([this](const auto& one) { on(one); }, event);
}

void RendezvousClient::Impl::on(const host::MembershipReady& ready) {
  bind_host_ = host::store_host(options_.rendezvous, ready.address);
  node_.address = ready.address;
  node_.name = host::name_of_node(ready.address);
  is_ready_ = true;
  if (is_asked_) join();
}

void RendezvousClient::Impl::on(const host::MembershipLost& lost) {
  if (place_ != Place::kInRound) place_ = Place::kOutside;
  store_.end_round();
  is_over_ = true;
  end_ = error_of(lost);
  changed_.notify();
}

void RendezvousClient::Impl::on(const rdzv::Round& round) {
  place_ = Place::kGiven;
  round_ = round.record->round;
  node_.highest_round = std::max(node_.highest_round, round_);
  node_.previous_rank = round.own.group_rank;
  store_.begin_round(round.own.group_rank == 0);
  given_ = {*round.record, round.own};
  waiting_for_.clear();
  changed_.notify();
}

void RendezvousClient::Impl::on(const rdzv::Restart& restart) {
  node_.highest_round = std::max(node_.highest_round, restart.round);
  if (place_ == Place::kInRound) {
    is_over_ = true;
    return;
  }
  if (place_ == Place::kGiven) leave_round();
  place_ = Place::kOutside;
  join();
}

void RendezvousClient::Impl::on(const rdzv::Waiting& waiting) {
  waiting_for_ = waiting.sentence;
  add_note(waiting.sentence);
}

void RendezvousClient::Impl::on(const rdzv::Evicted& evicted) {
  node_.highest_round = std::max(node_.highest_round, evicted.round);
  add_note("this node was evicted: " + evicted.reason);
  // With workers, these come first: until the caller asks for the next round it has them.
  is_over_ = place_ == Place::kInRound;
  place_ = Place::kOutside;
  if (!is_over_) join();
}

void RendezvousClient::Impl::on(const rdzv::Closed& closed) {
  is_closed_ = is_over_ = true;
  result_ = *closed.result;
  const std::string& why = closed.result->message;
  end_ = Status(StatusCode::kAborted, "the job is closed" + (why.empty() ? "" : ": " + why));
  changed_.notify();
}

void RendezvousClient::Impl::on(const rdzv::RoundOver& over) {
  if (over.round != round_) return;
  store_.end_round();
  if (parting_.armed()) parting_.arm(thread_->loop().now());
}

void RendezvousClient::Impl::fail(const Status& why) {
  place_ = Place::kOutside;
  error_ = why;
  changed_.notify();
}

void RendezvousClient::Impl::add_note(const std::string& sentence) {
  if (notes_.size() >= kNotesMax) notes_.pop_front();
  notes_.push_back(sentence);
}

// ---- The public class.

RendezvousClient::RendezvousClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RendezvousClient::~RendezvousClient() {
  // The loop thread does not exist in a forked child, so there is nobody to stop and join.
  if (impl_->is_in_child()) static_cast<void>(impl_.release());
}

Result<std::unique_ptr<RendezvousClient>> RendezvousClient::start(RendezvousClientOptions options) {
  if (Status fault = options.rendezvous.settings.validate(); !fault.ok()) return fault;
  if (options.local_world_size < 1 || options.local_world_size > kLocalWorldSizeMax) {
    return Status(StatusCode::kInvalidArgument,
                  "local_world_size: must be 1 to " + std::to_string(kLocalWorldSizeMax));
  }
  Result<os::Notifier> notifier = os::Notifier::create();
  if (!notifier.ok()) return notifier.status();
  Result<std::unique_ptr<os::LoopThread>> thread = os::LoopThread::start("elastic-rdzv");
  if (!thread.ok()) return thread.status();
  auto impl = std::make_unique<Impl>(std::move(options), *std::move(notifier), *std::move(thread));
  if (Status status = impl->begin(); !status.ok()) return status;
  return std::unique_ptr<RendezvousClient>(new RendezvousClient(std::move(impl)));
}

Result<RendezvousRound> RendezvousClient::next_rendezvous(
    Instant deadline, const std::function<bool()>& interrupted) {
  return impl_->next_rendezvous(deadline, interrupted);
}
int RendezvousClient::waiting_nodes() const { return impl_->waiting_nodes(); }
bool RendezvousClient::is_closed() const { return impl_->is_closed(); }
std::optional<JobResult> RendezvousClient::result() const { return impl_->result(); }
void RendezvousClient::set_closed(const JobResult& result) { impl_->set_closed(result); }
bool RendezvousClient::leave(const std::string& reason, Duration limit) {
  return impl_->leave(reason, limit);
}
std::string RendezvousClient::address() const { return impl_->address(); }
std::vector<std::string> RendezvousClient::take_notes() { return impl_->take_notes(); }

}  // namespace elastic
