#pragma once

// A non-blocking byte stream over a connected TCP socket: buffers, limits, memory accounting, a
// deadline, and one send per turn for all that is written in it.
//
// This class alone reads from and writes to such a socket, on servers and on clients, so encryption
// belongs here. Loop thread only. Streams of one owner form a StreamGroup, which outlives them.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/memory_budget.h"
#include "elastic/status.h"
#include "elastic/time.h"
#include "os/base/fd.h"
#include "os/loop/event_loop.h"
#include "os/net/address.h"

namespace elastic::os {

class Stream;

struct StreamLimits {
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  // A stream with more unsent bytes than this ends.
  std::size_t output_bytes_max = kNone;
  // While more bytes than this are unsent, nothing is read.
  std::size_t pause_bytes = kNone;
  // Buffers of at most this size are kept when they are empty.
  std::size_t kept_bytes = 0;
};

// A connection between two owners: the socket, and what was received and not consumed.
struct DetachedStream {
  UniqueFd fd;
  std::string unread = {};
};

// What the streams of one owner share: limits, budget, and buffers of the turn that is served now,
// so that an idle stream holds no buffer.
class StreamGroup {
 public:
  // `on_settle`: called at the end of an iteration in which a stream asked for it; must call
  // settle(). Empty: settle() is called directly. `loop` and `budget` outlive the group.
  StreamGroup(EventLoop* loop, MemoryBudget* budget, const StreamLimits& limits,
              std::function<void()> on_pending = {});
  StreamGroup(const StreamGroup&) = delete;
  StreamGroup& operator=(const StreamGroup&) = delete;

  // Sends what was written, serves what was held back, reports closed streams.
  void process_pending();
  // Settles nothing of what is pending: before all streams are destroyed.
  void abandon();

 private:
  friend class Stream;
  static constexpr std::size_t kReceiveBytes = 64 << 10;  // read in one turn of one stream

  void request_processing(Stream* stream);
  void forget(const Stream* stream);

  EventLoop& loop_;
  MemoryBudget& budget_;
  const StreamLimits limits_;
  const std::unique_ptr<char[]> received_;
  std::string turn_output_;
  Stream* turn_ = nullptr;           // the stream that is served now
  std::vector<Stream*> pending_;     // each once
  std::vector<Stream*> processing_;  // the batch that settle() works on
  EventLoop::Timer processing_timer_;
};

class Stream final : public EventLoop::FdHandler {
 public:
  enum class End : std::uint8_t {
    kClosedByPeer,
    kBroken,       // `error` says why
    kOutputLimit,  // the peer does not read
    kMemoryLimit,  // the group's budget is exhausted
    kDeadline,
  };

  // No callback may destroy the stream, except on_closed().
  class Handler {
   public:
    // Consumes whole messages from the beginning of `bytes` and returns their size. The rest is
    // offered again with what follows it.
    virtual std::size_t on_bytes(std::string_view bytes) = 0;
    // Everything of a turn is done and sent, as far as the socket took it.
    virtual void on_turn_end() {}
    // The stream closed itself; called once, and never for close(). `error`: an errno, or 0.
    virtual void on_end(End why, int error) = 0;
    // At the end of the iteration in which the stream closed. May destroy it.
    virtual void on_closed() {}

   protected:
    ~Handler() = default;
  };

  Stream(StreamGroup* group, Handler* handler) : group_(*group), handler_(*handler) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() override;

  // Starts to serve a connected, non-blocking socket; unread bytes are offered at the end of the
  // iteration. Once. Errors: kResourceExhausted.
  Status start(DetachedStream connection);
  // Nothing is unsent, and as far as is known the peer is there.
  bool can_detach() const {
    return is_open() && !is_peer_gone_ && !is_draining_ && num_unsent() == 0;
  }
  // Gives the connection away, with `unread` of what on_bytes() was offered. REQUIRES: can_detach()
  DetachedStream detach(std::string_view unread);

  // Sent at the end of the iteration. False: the stream is or was now closed.
  bool write(std::string_view bytes);
  // Inside on_bytes() of this stream: what is appended is sent at the end of the turn.
  std::string* turn_output() { return &group_.turn_output_; }
  // So much is unsent that on_bytes() should return; the rest is offered when the peer has read.
  bool should_pause() const { return num_unsent() + num_turn_bytes() > group_.limits_.pause_bytes; }
  // Sends now what the socket takes.
  void flush();
  std::size_t num_unsent() const {
    return buffers_ == nullptr ? 0 : buffers_->output.size() - buffers_->sent;
  }

  // Ends the stream with End::kDeadline unless it is cleared or set again.
  void set_deadline(Instant deadline);
  void clear_deadline() { deadline_.reset(); }

  void close();
  // Serves what has arrived until now and sends what that yields, then closes.
  void close_when_drained();
  // Sends what is unsent, ignores what arrives, and closes when the peer has closed.
  void finish(Instant deadline);
  bool is_open() const { return fd_.valid(); }

  SocketAddress local() const { return local_end(fd_.get()); }
  SocketAddress remote() const { return peer_end(fd_.get()); }
  // Probes a silent peer at this interval, from the first interval on.
  void set_keep_alive(Duration interval);
  // Breaks the connection when sent bytes are not acknowledged for so long.
  void set_user_timeout(Duration timeout);

  // The shortest that the kernel has measured lately; zero if it has not.
  Duration round_trip() const;

  void on_ready(std::uint32_t events) override;

 private:
  friend class StreamGroup;

  // Only of a stream in which something waits.
  struct Buffers {
    std::string input;        // the message that has not arrived whole, or what was held back
    std::string output;       // what the socket has not taken
    std::size_t sent = 0;     // bytes of `output` that it has
    std::size_t charged = 0;  // taken from the budget for both
  };

  void process_pending();
  void receive();
  void serve_input();
  std::size_t offer(std::string_view bytes);
  void end_turn();
  void end(End why, int error);
  bool paused() const { return !is_peer_gone_ && num_unsent() > group_.limits_.pause_bytes; }
  std::size_t num_turn_bytes() const {
    return group_.turn_ == this ? group_.turn_output_.size() : 0;
  }
  std::size_t send_some(std::string_view bytes);
  bool keep(std::string Buffers::*which, std::string_view bytes);
  void release(std::string Buffers::*which);
  void free_buffers();
  void request_processing();

  StreamGroup& group_;
  Handler& handler_;
  UniqueFd fd_;
  bool is_writing_ : 1 = false;    // EPOLLOUT is watched
  bool is_reading_ : 1 = true;     // EPOLLIN is
  bool is_held_ : 1 = false;       // the input may begin with a whole message
  bool is_peer_gone_ : 1 = false;  // nothing can be sent; what has arrived is still served
  bool is_draining_ : 1 = false;
  bool is_drained_ : 1 = false;  // the last read found less than it had room for
  bool is_finishing_ : 1 = false;
  bool is_processing_requested_ : 1 = false;
  std::unique_ptr<Buffers> buffers_;
  std::unique_ptr<EventLoop::Timer> deadline_;
  EventLoop::Watch watch_;  // behind what its handler uses
};

}  // namespace elastic::os
