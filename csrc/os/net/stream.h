#pragma once

// A non-blocking byte stream over a connected TCP socket: buffers, limits, memory accounting, a
// deadline, and one send for all bytes that are written in a turn.
//
// Only this class reads from and writes to such a socket, on servers and on clients, so it also
// encrypts: with a TLS session the handler sees the same bytes as without. Loop thread only.
// Streams of one owner form a StreamGroup, which outlives them.

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
#include "os/loop/registration.h"
#include "os/net/address.h"
#include "os/net/tls.h"

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

// A connection while it changes its owner: the socket, and the received bytes that were not
// consumed. They were decrypted; with a TLS session that is not established there are none.
struct DetachedStream {
  UniqueFd fd;
  std::string unread = {};
  std::unique_ptr<TlsSession> tls = {};  // null: bytes are sent as they are
};

// Shared by the streams of one owner: limits, budget, and the buffers of the current turn, so that
// an idle stream needs no buffer.
class StreamGroup {
 public:
  // `on_pending`: called at the end of an iteration in which a stream has pending work; must call
  // process_pending(). Empty: process_pending() is called directly. `loop` and `budget` outlive the
  // group.
  StreamGroup(EventLoop* loop, MemoryBudget* budget, const StreamLimits& limits,
              std::function<void()> on_pending = {});
  StreamGroup(const StreamGroup&) = delete;
  StreamGroup& operator=(const StreamGroup&) = delete;

  // At most this many streams send in one iteration, the others in the next ones, so that a message
  // to all streams does not delay reads.
  static constexpr std::size_t kSendersPerIteration = 256;

  // Sends written bytes, handles messages that were held back, and reports closed streams.
  void process_pending() { process(kSendersPerIteration); }
  // The same, but sends nothing that only waits to be sent.
  void process_received() { process(0); }
  // Drops all pending work. Call it before all streams are destroyed.
  void abandon();

 private:
  friend class Stream;
  static constexpr std::size_t kReceiveBytes = 64 << 10;  // maximum of one turn of one stream

  void process(std::size_t senders_max);
  void request_processing(Stream* stream);
  void forget(const Stream* stream);

  EventLoop& loop_;
  MemoryBudget& budget_;
  const StreamLimits limits_;
  const std::unique_ptr<char[]> received_;
  std::string turn_output_;
  std::string decrypted_;            // the plain bytes of the turn
  Stream* turn_ = nullptr;           // the stream whose turn it is
  std::vector<Stream*> pending_;     // each once
  std::vector<Stream*> processing_;  // the current batch of process()
  Timer processing_timer_;
};

class Stream final : public FdHandler {
 public:
  enum class End : std::uint8_t {
    kClosedByPeer,
    kBroken,       // `error` has the cause
    kOutputLimit,  // the peer does not read
    kMemoryLimit,  // the group's budget is exhausted
    kDeadline,
    kTlsFailed,  // tls() has the cause
  };

  // No callback may destroy the stream, except on_closed().
  class Handler {
   public:
    // Consumes complete messages from the beginning of `bytes` and returns their size. The rest is
    // passed again with the bytes that follow.
    virtual std::size_t on_bytes(std::string_view bytes) = 0;
    // The TLS handshake is complete: the peer knows the key. It precedes on_bytes().
    virtual void on_secured() {}
    // The stream is about to send: what was announced by send_soon() is written now.
    virtual void on_sending() {}
    // The turn is complete, and its output was sent as far as the socket accepted it.
    virtual void on_turn_end() {}
    // The stream closed; called once, but not for a call of close(). `error`: an errno, or 0.
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

  // Starts the stream on a connected, non-blocking socket; unread bytes are passed to the handler
  // at the end of the iteration. Call it once. Errors: kResourceExhausted.
  Status start(DetachedStream connection);
  // From here on the stream is encrypted: begins or continues the handshake. Bytes that are written
  // before it is complete are sent after it. REQUIRES: nothing is unsent, and no byte of the peer
  // is unread: in on_bytes(), the session has received them
  void secure(std::unique_ptr<TlsSession> tls);
  // Null: the stream is not encrypted.
  const TlsSession* tls() const { return tls_.get(); }
  // Nothing is unsent, and the peer has not closed as far as is known.
  bool can_detach() const {
    return is_open() && !is_peer_gone_ && !is_draining_ && num_unsent() == 0;
  }
  // Ends the stream and returns its connection, with `unread`, the rest of on_bytes()'s bytes.
  // REQUIRES: can_detach()
  DetachedStream detach(std::string_view unread);

  // Queues bytes, which are sent at the end of the iteration. False: the stream is closed, or was
  // closed by this call (a limit).
  bool write(std::string_view bytes);
  // Calls on_sending() when it is this stream's turn to send, in this iteration or a later one.
  // What many streams are sent does not fill the buffers of all of them at once.
  void send_soon() { request_processing(); }
  // Only inside on_bytes() of this stream: appended bytes are sent at the end of the turn.
  std::string* turn_output() { return &group_.turn_output_; }
  // True: on_bytes() should return, because too much is unsent. It is called again with the rest
  // when the peer has read.
  bool should_pause() const { return num_unsent() + num_turn_bytes() > group_.limits_.pause_bytes; }
  // Sends as many unsent bytes as the socket accepts now.
  void flush();
  std::size_t num_unsent() const {
    return num_queued() + (tls_ == nullptr ? 0 : tls_->output().size());
  }

  // Ends the stream with End::kDeadline at that time unless the deadline is cleared or set again.
  void set_deadline(Instant deadline);
  void clear_deadline() { deadline_.reset(); }

  void close();
  // Handles all bytes received so far, sends the replies, then closes.
  void close_when_drained();
  // Sends the unsent bytes, ignores received ones, and closes when the peer has closed.
  void finish(Instant deadline);
  bool is_open() const { return fd_.valid(); }

  SocketAddress local() const { return local_end(fd_.get()); }
  SocketAddress remote() const { return peer_end(fd_.get()); }
  // Probes a silent peer at this interval, from the first interval on.
  void set_keep_alive(Duration interval);
  // Breaks the connection when sent bytes are not acknowledged within this time.
  void set_user_timeout(Duration timeout);

  // The shortest round trip that the kernel has measured recently; zero: unknown.
  Duration round_trip() const;

  void on_ready(std::uint32_t events) override;

 private:
  friend class StreamGroup;

  // Allocated only while one of the buffers is needed.
  struct Buffers {
    std::string input;        // an incomplete message, or messages that were held back
    std::string output;       // bytes for the socket
    std::size_t sent = 0;     // the number of bytes of `output` that were sent
    std::size_t charged = 0;  // the charge to the budget for both
  };

  bool only_sends() const { return is_open() && !is_held_ && (!is_draining_ || is_drained_); }
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
  // The bytes of `output` that wait to be sent or encrypted.
  std::size_t num_queued() const {
    return buffers_ == nullptr ? 0 : buffers_->output.size() - buffers_->sent;
  }
  bool decrypt(std::string_view* bytes);
  std::size_t encrypt_some(std::string_view bytes);
  void send_records();
  bool charge_records();
  bool charge_tls();
  bool can_send() const;
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
  bool is_held_ : 1 = false;       // the input may begin with a complete message
  bool is_peer_gone_ : 1 = false;  // nothing can be sent; received bytes are still handled
  bool is_draining_ : 1 = false;
  bool is_drained_ : 1 = false;  // the last read found less than it had room for
  bool is_finishing_ : 1 = false;
  bool is_processing_requested_ : 1 = false;
  bool is_ending_ : 1 = false;  // the handler's on_end() runs
  std::unique_ptr<Buffers> buffers_;
  std::unique_ptr<TlsSession> tls_;
  std::size_t records_charged_ = 0;  // the charge to the budget for the session's output
  std::size_t tls_charged_ = 0;      // the charge for the session itself
  std::unique_ptr<Timer> deadline_;
  Watch watch_;  // declared last: destroyed before the members that its handler uses
};

}  // namespace elastic::os
