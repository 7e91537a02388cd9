#pragma once

// One client of a store server: bytes from its socket to the table, replies back.
//
// Loop thread only. A connection never destroys itself: closed() becomes true, and the service,
// which owns it, is asked by request_settle() to come by at the end of the iteration.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/memory_budget.h"
#include "core/store/store.h"
#include "core/store/wire.h"
#include "elastic/status.h"
#include "elastic/store_options.h"
#include "elastic/store_server.h"
#include "os/base/fd.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

class StorePeer;

// Written by the loop thread alone, read by any: a number each, so that no reader stops the loop.
class Counter {
 public:
  std::uint64_t get() const { return value_.load(std::memory_order_relaxed); }
  void set(std::uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  void add(std::uint64_t more) { set(get() + more); }

 private:
  std::atomic<std::uint64_t> value_ = 0;
};

// What the connections of one service share.
struct StoreContext {
  StoreContext(const StoreLimits& store_limits, std::uint64_t seed)
      : limits(store_limits),
        budget(limits.total_bytes_max),
        table(limits, &budget, seed),
        received(std::make_unique<char[]>(kReceiveBytes)) {}

  // A turn reads this much of one connection, then it is the next one's.
  static constexpr std::size_t kReceiveBytes = 64 << 10;

  const StoreLimits limits;
  MemoryBudget budget;
  StoreTable table;

  // Scratch of the turn that is being served, so that idle connections hold no buffers.
  const std::unique_ptr<char[]> received;
  std::string replies;
  std::vector<StoreTable::Waiter*> released;

  // Connections that have something to do at the end of the iteration, each once.
  std::vector<StorePeer*> unsettled;
  std::function<void()> on_unsettled;  // called when the first of them is added

  Counter connections, connections_total, connections_rejected, requests, keys, bytes;
  // A store beside a coordinator: takes the socket of a connection that has begun to speak the
  // session protocol (core/session/session_wire.h), and what was read of it. Called from inside of
  // that connection's handler. Empty: the store is only a store.
  std::function<void(os::UniqueFd fd, std::string_view unread)> on_session;

  // Brings those of the counters up to date that the table and the budget know.
  void publish() {
    keys.set(table.num_keys());
    bytes.set(budget.used());
  }
};

class StorePeer final : public os::EventLoop::FdHandler, public StoreTable::Waiter {
 public:
  // `context` and `loop` outlive the connection.
  static Result<std::unique_ptr<StorePeer>> create(StoreContext* context, os::EventLoop* loop,
                                                   os::UniqueFd fd);
  StorePeer(const StorePeer&) = delete;
  StorePeer& operator=(const StorePeer&) = delete;
  ~StorePeer() override;

  // A turn: reads once, serves what has arrived, sends once.
  void on_ready(std::uint32_t events) override;
  // The end of an iteration in which this asked for it: sends what others' requests have left here,
  // or serves requests that were held back.
  void settle();
  // Serves what has arrived until now, then closes.
  void drain();
  bool closed() const { return !fd_.valid(); }

  std::size_t index = 0;  // in the service's list

 private:
  StorePeer(StoreContext* context, os::UniqueFd fd)
      : context_(*context), fd_(std::move(fd)), decoder_(context->limits) {}

  void receive();
  void serve_held();
  std::size_t serve(std::string_view bytes);
  bool is_coordinator_check(const wire::Request& request) const;
  void hand_over(std::string_view unread);
  void release_others();
  void wake();
  void flush();
  std::size_t send_some(std::string_view bytes);
  void finish_turn();
  void reject();
  void close();
  void request_settle();

  std::size_t unsent() const { return output_.size() - sent_; }
  bool paused() const;
  bool append(std::string* buffer, std::string_view bytes);
  void release(std::string* buffer);

  StoreContext& context_;
  os::UniqueFd fd_;
  std::uint32_t interest_ = 0;
  std::string input_;        // the frame that has not arrived whole, and requests held back
  std::string output_;       // replies that the socket has not taken
  std::size_t sent_ = 0;     // bytes of output_ that it has
  std::size_t charged_ = 0;  // taken from the budget for the two
  bool held_ = false;        // input_ may begin with a whole request
  bool peer_gone_ = false;   // nothing can be sent any more; what has arrived is still served
  bool draining_ = false;
  bool drained_ = false;  // the last read found less than it had room for
  bool settle_requested_ = false;
  bool found_coordinator_ = false;  // it asked, and may begin a session
  wire::RequestDecoder decoder_;
  os::EventLoop::Watch watch_;  // behind what its handler uses
};

}  // namespace elastic::host
