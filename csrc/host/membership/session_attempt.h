#pragma once

// One attempt to find a coordinator: looks the endpoint up, connects, and asks who is there.
//
// Loop thread only.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/session/session_machine.h"
#include "elastic/status.h"
#include "os/loop/event_loop.h"
#include "os/net/address.h"
#include "os/net/dialer.h"
#include "os/net/name_lookup.h"
#include "os/net/stream.h"

namespace elastic::host {

class SessionAttempt final : public os::Stream::Handler {
 public:
  using Failure = core::SessionMachine::AttemptFailed;
  using Addresses = std::vector<os::SocketAddress>;

  struct Options {
    std::string host;
    std::uint16_t port = 0;
    // Dialed at once, beside the look-up of `host`. Without it nothing limits the look-up.
    std::optional<os::SocketAddress> last_good = std::nullopt;
    Duration limit{};  // for everything, or for everything behind the look-up
    Duration pace = os::Dialer::kPace;
    Duration node_timeout{};  // the connection's segments are acknowledged within this
  };
  struct Sink {
    // Where to connect to, by what the name has resolved to, or why not; may start the coordinator.
    std::function<std::variant<Addresses, Failure>(const Result<Addresses>&)> route;
    // What would be the matter if nothing more came of it.
    std::function<void(const Status&)> on_delay;
    // Once, never from inside the constructor; must not destroy the attempt. The connection is at
    // the place where a session's magic is expected.
    std::function<void(std::variant<os::DetachedStream, Failure>)> done;
  };

  // `loop` and `group` outlive the attempt.
  SessionAttempt(os::EventLoop* loop, os::StreamGroup* group, Options options, Sink sink);
  SessionAttempt(const SessionAttempt&) = delete;
  SessionAttempt& operator=(const SessionAttempt&) = delete;
  ~SessionAttempt() = default;

  std::size_t on_bytes(std::string_view bytes) override;
  void on_end(os::Stream::End why, int error) override;

 private:
  void on_timer();
  void begin();
  std::unique_ptr<os::Dialer> dial(Addresses addresses, std::unique_ptr<os::Dialer>* which);
  void resolved(const Result<Addresses>& found);
  void dialed(std::unique_ptr<os::Dialer>* which, Result<os::Dialer::Connection> connection);
  void connected(os::Dialer::Connection connection);
  void end_branch(Failure failure);
  void judge_answer(std::string_view unread);
  void fail(Status why, std::optional<int> exit_code = std::nullopt);
  void finish(std::variant<os::DetachedStream, Failure> outcome);

  os::EventLoop* const loop_;
  const Options options_;
  Sink sink_;
  Instant deadline_;
  std::unique_ptr<os::NameLookup> lookup_;
  std::unique_ptr<os::Dialer> shortcut_;  // to the last good address
  std::unique_ptr<os::Dialer> dialer_;    // to what the name resolves to
  bool was_begun_ = false;
  std::string peer_;
  std::string answer_;
  os::EventLoop::Timer timer_;
  os::Stream stream_;  // behind what its handler uses
};

}  // namespace elastic::host
