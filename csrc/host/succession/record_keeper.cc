#include "host/succession/record_keeper.h"

#include <utility>
#include <variant>

#include "os/base/process.h"
#include "os/loop/event_loop.h"

namespace elastic::host {
namespace {

// How long the end waits for a call of the store. The loop of the owner stands still meanwhile.
constexpr Duration kCallLimit = std::chrono::seconds(1);

}  // namespace

KeeperRunner::KeeperRunner(os::EventLoop* loop, std::shared_ptr<RendezvousBackend> store,
                           os::Notifier notifier, Sinks sinks)
    : store_(std::move(store)),
      notifier_(std::move(notifier)),
      loop_(loop),
      sinks_(std::move(sinks)) {}

void KeeperRunner::call(succession::KeeperCall call) {
  {
    const std::lock_guard lock(mutex_);
    call_ = std::move(call);
  }
  notifier_.notify();
}

void KeeperRunner::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stop_requested_ = true;
  }
  notifier_.notify();
  store_->interrupt();
}

void KeeperRunner::abandon() {
  const std::lock_guard lock(mutex_);
  loop_ = nullptr;
}

void KeeperRunner::post(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  if (loop_ != nullptr) loop_->post(std::move(work));
}

void KeeperRunner::run() {
  bool is_address_known = false;
  while (true) {
    std::optional<succession::KeeperCall> call;
    {
      const std::lock_guard lock(mutex_);
      if (is_stop_requested_) return;
      call = std::exchange(call_, std::nullopt);
    }
    if (!call) {
      (void)notifier_.wait({});
      continue;
    }
    KeeperAnswer reply = answer(*call);
    const auto* read = std::get_if<Result<std::optional<StoredState>>>(&reply);
    if (!is_address_known && read != nullptr && read->ok()) {
      is_address_known = true;
      post([sink = sinks_.address, address = store_->local_address()] { sink(address); });
    }
    post([sink = sinks_.answer, reply = std::move(reply)]() mutable { sink(std::move(reply)); });
  }
}

KeeperAnswer KeeperRunner::answer(const succession::KeeperCall& call) {
  if (const auto* write = std::get_if<succession::KeeperWrite>(&call)) {
    return store_->set_state(write->bytes, write->token);
  }
  if (const auto* wait = std::get_if<succession::KeeperWait>(&call)) {
    return store_->wait_for_change(wait->token, wait->until);
  }
  return store_->get_state();
}

Result<std::unique_ptr<KeeperThread>> KeeperThread::start(os::EventLoop* loop,
                                                          std::shared_ptr<RendezvousBackend> store,
                                                          KeeperRunner::Sinks sinks) {
  auto notifier = os::Notifier::create();
  if (!notifier.ok()) return notifier.status();
  const auto alive = std::make_shared<bool>(true);
  const auto guarded = [&alive](auto sink) {
    return [guard = std::weak_ptr<bool>(alive), sink = std::move(sink)](auto value) {
      if (guard.lock() != nullptr) sink(std::move(value));
    };
  };
  auto runner = std::make_shared<KeeperRunner>(
      loop, std::move(store), *std::move(notifier),
      KeeperRunner::Sinks{.answer = guarded(std::move(sinks.answer)),
                          .address = guarded(std::move(sinks.address))});
  auto thread = os::DetachableThread::start("elastic-keeper", [runner] { runner->run(); });
  if (!thread.ok()) return thread.status();
  return std::unique_ptr<KeeperThread>(
      new KeeperThread(alive, std::move(runner), *std::move(thread)));
}

KeeperThread::~KeeperThread() {
  runner_->stop();
  if (!thread_.join_within(kCallLimit)) runner_->abandon();
}

Result<std::unique_ptr<RecordKeeper>> RecordKeeper::open(os::EventLoop* loop,
                                                         const RendezvousOptions& options,
                                                         std::function<void(std::string)> address,
                                                         Sink sink) {
  std::unique_ptr<RecordKeeper> self(new RecordKeeper(loop, options, std::move(sink)));
  auto thread = KeeperThread::start(
      loop, options.backend,
      {.answer = [raw = self.get()](KeeperAnswer answer) { raw->answered(std::move(answer)); },
       .address = std::move(address)});
  if (!thread.ok()) return thread.status();
  self->thread_ = *std::move(thread);
  self->feed(succession::Tick{});
  return self;
}

RecordKeeper::RecordKeeper(os::EventLoop* loop, const RendezvousOptions& options, Sink sink)
    : JobKeeper(loop, std::move(sink)),
      machine_(std::make_unique<succession::StoreKeeper>(
          succession::StoreKeeper::Settings{.store = options.backend->name(),
                                            .self = {os::random_seed(), os::random_seed()},
                                            .node_timeout = options.settings.node_timeout,
                                            .store_grace = options.settings.store_grace},
          os::random_seed(), loop->now())) {}

void RecordKeeper::answered(KeeperAnswer answer) {
  was_interrupted_ = false;
  run([this, answer = std::move(answer)](auto* actions) {
    const Instant now = loop().now();
    if (const auto* read = std::get_if<Result<std::optional<StoredState>>>(&answer)) {
      machine_->read(*read, now, actions);
    } else if (const auto* written = std::get_if<Result<StoredWrite>>(&answer)) {
      machine_->written(*written, now, actions);
    } else {
      machine_->waited(std::get<bool>(answer), now, actions);
    }
  });
}

void RecordKeeper::settled() {
  if (auto call = machine_->next_call()) thread_->call(*std::move(call));
  if (machine_->must_interrupt() && !std::exchange(was_interrupted_, true)) thread_->interrupt();
  if (on_released_ && machine_->is_released()) std::exchange(on_released_, nullptr)();
}

void RecordKeeper::release(std::function<void()> done) {
  on_released_ = std::move(done);
  feed(succession::Resign{});
}

}  // namespace elastic::host

namespace elastic {

Result<std::string> find_coordinator(RendezvousBackend* store) {
  const auto stored = store->get_state();
  if (!stored.ok()) return stored.status();
  if (!*stored) return Status(StatusCode::kNotFound, store->name() + " has no record of the job");
  const auto record = succession::decode_kept((*stored)->bytes);
  if (!record.ok()) return record.status().with_context(store->name());
  return record->address;
}

}  // namespace elastic
