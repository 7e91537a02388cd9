#include "host/succession/record_keeper.h"

#include <utility>
#include <variant>

#include "elastic/rendezvous_backends.h"
#include "os/loop/random_seed.h"

namespace elastic::host {

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
    : JobSuccession(loop, std::move(sink)),
      machine_({.store = options.backend->name(),
                .self = {os::random_seed(), os::random_seed()},
                .node_timeout = options.settings.node_timeout,
                .store_grace = options.settings.store_grace},
               os::random_seed(), loop->now()) {}

void RecordKeeper::feed(succession::Event event) {
  run([this, event = std::move(event)](auto* actions) {
    machine_.step(event, loop().now(), actions);
  });
}

void RecordKeeper::answered(KeeperAnswer answer) {
  was_interrupted_ = false;
  run([this, answer = std::move(answer)](auto* actions) {
    const Instant now = loop().now();
    if (const auto* read = std::get_if<Result<std::optional<StoredState>>>(&answer)) {
      machine_.read(*read, now, actions);
    } else if (const auto* written = std::get_if<Result<StoredWrite>>(&answer)) {
      machine_.written(*written, now, actions);
    } else {
      machine_.waited(std::get<bool>(answer), now, actions);
    }
  });
}

void RecordKeeper::settled() {
  if (auto call = machine_.next_call()) thread_->call(*std::move(call));
  if (machine_.must_interrupt() && !std::exchange(was_interrupted_, true)) thread_->interrupt();
  if (on_released_ && machine_.is_released()) std::exchange(on_released_, nullptr)();
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
