#pragma once

// The succession of a job's coordinator where a store keeps the record: the machine of
// core/succession/store_keeper.h, its timer, and the thread that calls the store. Loop thread only,
// unless another thread is named.

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "core/succession/store_keeper.h"
#include "elastic/rendezvous_backend.h"
#include "elastic/rendezvous_options.h"
#include "elastic/status.h"
#include "host/succession/job_keeper.h"
#include "os/loop/registration.h"
#include "os/loop/thread.h"
#include "os/loop/wait.h"

namespace elastic::host {

// Of KeeperRead, KeeperWrite and KeeperWait (false: the store has no watch).
using KeeperAnswer = std::variant<Result<std::optional<StoredState>>, Result<StoredWrite>, bool>;

// What the thread uses; shared with the owner. A call of the store may block, or never return: then
// the thread is left to itself.
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

class RecordKeeper final : public JobKeeper {
 public:
  // `address`: receives, once, before any action, the address at which others reach this host as
  // far as the store knows; "": it does not. `loop` outlives the object. REQUIRES: options.backend
  static Result<std::unique_ptr<RecordKeeper>> open(os::EventLoop* loop,
                                                    const RendezvousOptions& options,
                                                    std::function<void(std::string)> address,
                                                    Sink sink);
  ~RecordKeeper() override = default;

  void restart(const reg::LineageId&) override {}  // a store keeps one lineage
  const std::string& address() const override { return no_voter_port_; }
  void describe(succession::SurvivalFacts*) const override {}

  // As in StoreKeeper.
  void set_node(const NodeId& node) { machine_->set_node(node); }
  void set_rank(int rank) { machine_->set_rank(rank); }
  const std::string& coordinator_address() const { return machine_->address(); }
  std::string explain() const { return machine_->explain(); }
  // Gives the role of the coordinator back, if this process has it. `done`: it has it no more.
  void release(std::function<void()> done);

 private:
  RecordKeeper(os::EventLoop* loop, const RendezvousOptions& options, Sink sink);
  void answered(KeeperAnswer answer);
  void settled() override;
  succession::Machine& machine() const override { return *machine_; }

  const std::string no_voter_port_;
  const std::unique_ptr<succession::StoreKeeper> machine_;
  bool was_interrupted_ = false;
  std::function<void()> on_released_;
  std::unique_ptr<KeeperThread> thread_;
};

}  // namespace elastic::host
