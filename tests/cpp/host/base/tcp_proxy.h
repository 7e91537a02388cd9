#pragma once

// A TCP proxy for tests: forwards bytes, holds them back, or resets its connections.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cstdint>
#include <list>
#include <string>
#include <string_view>
#include <thread>

#include "os/base/fd.h"
#include "os/loop/event_loop.h"
#include "os/loop/thread.h"

namespace elastic::support {

class TcpProxy {
 public:
  // Listens on 127.0.0.1 and connects to the same address.
  explicit TcpProxy(std::uint16_t target, os::Clock* clock = os::real_clock())
      : target_(target), thread_(*os::LoopThread::start("test-proxy", clock)) {
    listener_ = make_socket();
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size);
    ::listen(listener_.get(), 64);
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_->call([this] {
      door_ = std::make_unique<Door>(this);
      resume_ = std::make_unique<os::Timer>(&thread_->loop(), [this] { set_stalled(false); });
    });
  }
  ~TcpProxy() {
    thread_->call([this] {
      pipes_.clear();
      resume_.reset();
      door_.reset();
    });
  }
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  std::uint16_t port() const { return port_; }
  // Ends every connection on both sides, with RST.
  void cut() {
    thread_->call([this] { pipes_.clear(); });
  }
  // Forwards what precedes this text, which arrives in one piece, and nothing from then on.
  void hold_before(std::string text) {
    thread_->call([this, &text] { held_text_ = std::move(text); });
  }
  // Forwards everything again, also on new connections.
  void release() {
    thread_->call([this] {
      held_text_.clear();
      set_stalled(false);
    });
  }
  // Forwards nothing for that long, without closing a connection.
  void stall_for(Duration length) {
    thread_->call([this, length] {
      set_stalled(true);
      resume_->arm(thread_->loop().now() + length);
    });
  }

 private:
  static std::uint32_t interest(bool is_stalled) { return is_stalled ? 0U : EPOLLIN; }

  // One direction of a connection.
  class Half final : public os::FdHandler {
   public:
    Half(TcpProxy* proxy, int from, int to) : proxy_(*proxy), from_(from), to_(to) {
      watch_ = *proxy_.thread_->loop().watch(from, interest(proxy_.is_stalled_), this);
    }
    void set_stalled(bool is_stalled) {
      if (watch_.active()) watch_.modify(interest(is_stalled));  // else it has ended
    }
    void on_ready(std::uint32_t events) override {
      if (proxy_.is_stalled_ && (events & EPOLLIN) == 0) {
        watch_.reset();  // broken while stalled: not reported to the other side
        return;
      }
      char bytes[16 << 10];
      const ssize_t got = ::recv(from_, bytes, sizeof bytes, MSG_DONTWAIT);
      if (got > 0) {
        const std::string_view received(bytes, static_cast<std::size_t>(got));
        ::send(to_, bytes, proxy_.hold_from(received), MSG_NOSIGNAL);
      } else {
        watch_.reset();
        ::shutdown(to_, SHUT_WR);
      }
    }

   private:
    TcpProxy& proxy_;
    int from_, to_;
    os::Watch watch_;
  };
  struct Pipe {
    Pipe(TcpProxy* proxy, os::UniqueFd near_end, os::UniqueFd far_end)
        : near(std::move(near_end)),
          far(std::move(far_end)),
          there(proxy, near.get(), far.get()),
          back(proxy, far.get(), near.get()) {
      const linger abort{.l_onoff = 1, .l_linger = 0};
      for (const int fd : {near.get(), far.get()}) {
        ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &abort, sizeof abort);
      }
    }
    os::UniqueFd near, far;
    Half there, back;
  };
  class Door final : public os::FdHandler {
   public:
    explicit Door(TcpProxy* proxy) : proxy_(*proxy) {
      watch_ = *proxy_.thread_->loop().watch(proxy_.listener_.get(), EPOLLIN, this);
    }
    void set_stalled(bool is_stalled) { watch_.modify(interest(is_stalled)); }
    void on_ready(std::uint32_t) override { proxy_.accept(); }

   private:
    TcpProxy& proxy_;
    os::Watch watch_;
  };

  static os::UniqueFd make_socket() {
    os::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int one = 1;  // forward at once, as it was sent
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
  }
  static sockaddr_in loopback(std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  void accept() {
    os::UniqueFd near(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    os::UniqueFd far = make_socket();
    const sockaddr_in address = loopback(target_);
    if (::connect(far.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      return;
    }
    pipes_.emplace_back(this, std::move(near), std::move(far));
  }
  // How many of the bytes are forwarded.
  std::size_t hold_from(std::string_view bytes) {
    const std::size_t end = held_text_.empty() ? bytes.npos : bytes.find(held_text_);
    if (end == bytes.npos) return bytes.size();
    set_stalled(true);
    return end;
  }
  void set_stalled(bool is_stalled) {
    is_stalled_ = is_stalled;
    door_->set_stalled(is_stalled);
    for (Pipe& pipe : pipes_) {
      pipe.there.set_stalled(is_stalled);
      pipe.back.set_stalled(is_stalled);
    }
  }

  const std::uint16_t target_;
  std::uint16_t port_ = 0;
  bool is_stalled_ = false;
  std::string held_text_;
  os::UniqueFd listener_;
  std::unique_ptr<os::LoopThread> thread_;
  std::unique_ptr<Door> door_;
  std::unique_ptr<os::Timer> resume_;
  std::list<Pipe> pipes_;
};

}  // namespace elastic::support
