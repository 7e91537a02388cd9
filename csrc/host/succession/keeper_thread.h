#pragma once

// The thread on which the store that keeps a job's record is called: a call may block, or never
// return. Then the thread is left to itself, with everything that it uses.

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "core/succession/kept_machine.h"
#include "elastic/rendezvous_backend.h"
#include "elastic/status.h"
#include "os/loop/detachable_thread.h"
#include "os/loop/event_loop.h"
#include "os/loop/notifier.h"

namespace elastic::host {

// Of KeeperRead, KeeperWrite and KeeperWait (false: the store has no watch).
using KeeperAnswer = std::variant<Result<std::optional<StoredState>>, Result<StoredWrite>, bool>;

// The thread, and what it uses; shared with the owner.
class KeeperRunner {
 public:
  struct Sinks {
    std::function<void(KeeperAnswer)> answer;
    // Once, before the first answer: the address at which other nodes reach this host, as far as
    // the store knows; "": it does not.
    std::function<void(std::string)> address;
  };

  KeeperRunner(os::EventLoop* loop, std::shared_ptr<RendezvousBackend> store, os::Notifier notifier,
               Sinks sinks);
  KeeperRunner(const KeeperRunner&) = delete;
  KeeperRunner& operator=(const KeeperRunner&) = delete;

  void run();  // until stop()
  // Any thread.
  void call(succession::KeeperCall call);
  void interrupt() { store_->interrupt(); }
  void stop();
  // Nothing is posted from now on.
  void abandon();

 private:
  void post(std::function<void()> work);
  KeeperAnswer answer(const succession::KeeperCall& call);

  const std::shared_ptr<RendezvousBackend> store_;
  os::Notifier notifier_;
  std::mutex mutex_;
  os::EventLoop* loop_;                         // guarded; null after abandon()
  Sinks sinks_;                                 // called on the loop
  std::optional<succession::KeeperCall> call_;  // guarded
  bool is_stop_requested_ = false;              // guarded
};

class KeeperThread {
 public:
  // The sinks are called on `loop`, which outlives the object, and not after its end.
  static Result<std::unique_ptr<KeeperThread>> start(os::EventLoop* loop,
                                                     std::shared_ptr<RendezvousBackend> store,
                                                     KeeperRunner::Sinks sinks);
  KeeperThread(const KeeperThread&) = delete;
  KeeperThread& operator=(const KeeperThread&) = delete;
  ~KeeperThread();  // waits for a call that has begun, for a short time

  // One at a time: the next one after the answer.
  void call(succession::KeeperCall call) { runner_->call(std::move(call)); }
  // Ends a KeeperWait early.
  void interrupt() { runner_->interrupt(); }

 private:
  KeeperThread(std::shared_ptr<bool> alive, std::shared_ptr<KeeperRunner> runner,
               os::DetachableThread thread)
      : alive_(std::move(alive)), runner_(std::move(runner)), thread_(std::move(thread)) {}

  const std::shared_ptr<bool> alive_;
  const std::shared_ptr<KeeperRunner> runner_;
  os::DetachableThread thread_;
};

}  // namespace elastic::host
