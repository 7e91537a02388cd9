// Simulates many nodes of one job at a coordinator: sessions that join, receive the round and send
// heartbeats.
//
//   session_load --port N --nodes N [--beat-seconds S --server PID] [--resume-port N]
//
// At most 1,024 nodes are between their connect and their hello at a time: the coordinator closes
// connections whose hello comes late, and here one process does what each node's own would. Prints
// "round <ns>", from the first connect until the last node has received the round. Then, for S
// seconds, each node sends one heartbeat a second, and it prints "beats <number>", "cpu <ns>" of
// the server, "bytes <number>" in both directions, and "window <ns>", the length of the
// measurement. With the variable ELASTIC_TOKEN the sessions are encrypted. Then it prints "memory
// <bytes>", the growth of the server's own memory (RssAnon). Last, with --resume-port, all nodes
// lose their sessions at once and resume at the coordinator at that port, which knows nothing of
// them: "resume <ns>", until the last one is told that it has.

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common.h"
#include "core/session/session_wire.h"
#include "core/store/wire.h"
#include "host/auth/token_list.h"

namespace {

using elastic::session::ClientMessage;
using elastic::session::DecodeStatus;
using elastic::session::ServerMessage;

constexpr std::size_t kStoreReplyBytes = 5;  // the replies to PING and CHECK
constexpr const char* kJob = "load";
constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::size_t kOpeningMax = 1024;

struct Node {
  int fd = -1;
  bool is_session = false;
  std::optional<elastic::core::HeldRound> round = {};
  bool has_resumed = false;
  std::string received;
  std::unique_ptr<elastic::os::TlsSession> tls;  // null: the session is not encrypted
};

class Load {
 public:
  Load(std::uint16_t port, int nodes, const char* token)
      : port_(port), nodes_(static_cast<std::size_t>(nodes)) {
    if (token != nullptr) {
      const auto tokens = elastic::host::TokenList::parse(token);
      if (!tokens.ok()) bench::die("ELASTIC_TOKEN");
      key_ = std::make_unique<elastic::host::TokenList::ClientKey>(*tokens->client_key(kJob));
    }
    epoll_ = bench::check(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
    question_ = store_part(token != nullptr);
  }

  void join() {
    const std::int64_t begin = bench::monotonic_ns();
    while (rounds_ < nodes_.size()) {
      connect_some();
      serve(-1);
    }
    std::printf("round %lld\n", static_cast<long long>(bench::monotonic_ns() - begin));
    std::fflush(stdout);
  }

  void resume(std::uint16_t port) {
    port_ = port;
    const std::int64_t begin = bench::monotonic_ns();
    for (Node& node : nodes_) {
      ::close(node.fd);
      Node next;
      next.round = std::move(node.round);
      node = std::move(next);
    }
    connected_ = 0;
    while (resumed_ < nodes_.size()) {
      connect_some();
      serve(-1);
    }
    std::printf("resume %lld\n", static_cast<long long>(bench::monotonic_ns() - begin));
  }

  void beat(std::int64_t seconds, pid_t server) {
    const std::int64_t begin = bench::monotonic_ns();
    const std::int64_t cpu = bench::cpu_ns(server);
    bytes_ = replies_ = 0;
    std::int64_t sent = 0;
    std::string frame;
    elastic::session::append(&frame, ClientMessage(elastic::session::Heartbeat{}));
    const auto per_second = static_cast<std::int64_t>(nodes_.size());
    for (const std::int64_t total = seconds * per_second; replies_ < total;) {
      const std::int64_t elapsed = bench::monotonic_ns() - begin;
      const std::int64_t due = elapsed / 1000 * per_second / (kSecond / 1000);
      for (; sent < due && sent < total; ++sent) {
        send_message(&nodes_[static_cast<std::size_t>(sent % per_second)], frame);
      }
      serve(1);
    }
    std::printf("beats %lld\ncpu %lld\nbytes %lld\nwindow %lld\n", static_cast<long long>(replies_),
                static_cast<long long>(bench::cpu_ns(server) - cpu), static_cast<long long>(bytes_),
                static_cast<long long>(bench::monotonic_ns() - begin));
  }

 private:
  static std::string store_part(bool has_token) {
    std::string bytes;
    elastic::wire::append_validate(&bytes);
    elastic::wire::append_ping(&bytes, 1);
    elastic::wire::append_list_header(&bytes, elastic::wire::Opcode::kCheck, 1);
    elastic::wire::append_bytes(&bytes, elastic::session::kReservedKey);
    if (!has_token) return bytes;
    elastic::wire::append_list_header(&bytes, elastic::wire::Opcode::kCheck, 1);
    elastic::wire::append_bytes(&bytes, elastic::session::kTokenKey);
    return bytes;
  }

  std::string session_part(std::size_t index) const {
    elastic::rdzv::Join join;
    join.node.id = {1, index + 1};
    join.node.name = "10.0.0.1_" + std::to_string(index) + "_0";
    join.node.address = "127.0.0.1";
    join.node.store_port = 29501;
    join.node.local_world_size = 8;
    join.settings.min_nodes = join.settings.max_nodes = static_cast<int>(nodes_.size());
    join.settings.node_timeout = std::chrono::seconds(30);
    std::string bytes(elastic::session::kMagic);
    elastic::session::append(
        &bytes, ClientMessage(elastic::session::ClientHello{.job_id = kJob, .node = join.node.id}));
    if (const auto& round = nodes_[index].round) {
      elastic::rdzv::Resume resume{.node = join.node,
                                   .settings = join.settings,
                                   .phase = elastic::rdzv::NodePhase::kWorking,
                                   .last = round,
                                   .failure = {}};
      resume.node.highest_round = round->record.round;
      resume.node.previous_rank = round->group_rank;
      elastic::session::append(&bytes, ClientMessage(resume));
    } else {
      elastic::session::append(&bytes, ClientMessage(join));
    }
    return bytes;
  }

  void connect_some() {
    for (; connected_ < nodes_.size() && opening_ < kOpeningMax; ++opening_) {
      connect(connected_++);
      if (connected_ % 64 == 0) serve(0);
    }
  }

  void connect(std::size_t index) {
    Node& node = nodes_[index];
    node.fd =
        bench::check(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), "socket");
    const int one = 1;
    ::setsockopt(node.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port_);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int result =
        ::connect(node.fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
    if (result != 0 && errno != EINPROGRESS) bench::die("connect");
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT;
    event.data.u64 = index;
    bench::check(::epoll_ctl(epoll_, EPOLL_CTL_ADD, node.fd, &event), "epoll_ctl");
  }

  void serve(int timeout_ms) {
    epoll_event events[256];
    const int count = ::epoll_wait(epoll_, events, 256, timeout_ms);
    for (int i = 0; i < count; ++i) {
      const auto index = static_cast<std::size_t>(events[i].data.u64);
      if ((events[i].events & EPOLLOUT) != 0) {  // connected
        send(nodes_[index].fd, question_);
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.u64 = index;
        bench::check(::epoll_ctl(epoll_, EPOLL_CTL_MOD, nodes_[index].fd, &event), "epoll_ctl");
      }
      if ((events[i].events & ~static_cast<unsigned>(EPOLLOUT)) != 0) receive(index);
    }
  }

  void receive(std::size_t index) {
    Node& node = nodes_[index];
    char bytes[4096];
    const ssize_t got = ::recv(node.fd, bytes, sizeof bytes, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) bench::die("the coordinator closed a session");
    bytes_ += got;
    const std::string_view received(bytes, static_cast<std::size_t>(got));
    if (node.tls != nullptr) {
      const bool was_established = node.tls->is_established();
      if (!node.tls->receive(received, &node.received)) bench::die("TLS");
      if (!was_established && node.tls->is_established()) begin_session(index);
    } else {
      node.received.append(received);
    }
    if (!node.is_session) {
      const std::size_t reply_bytes = kStoreReplyBytes + (key_ == nullptr ? 0 : 1);
      if (node.received.size() < reply_bytes) return;
      node.is_session = true;
      node.received.erase(0, reply_bytes);
      if (key_ == nullptr) {
        begin_session(index);
      } else {
        node.tls = *elastic::os::TlsSession::connect(key_->identity, key_->key);
        send(node.fd, std::exchange(node.tls->output(), {}));
      }
    }
    while (take_message(&node)) {
    }
  }

  void begin_session(std::size_t index) {
    send_message(&nodes_[index], session_part(index));
    --opening_;
  }

  bool take_message(Node* node) {
    ServerMessage message;
    const auto decoded = elastic::session::decode(node->received, &message);
    if (decoded.status == DecodeStatus::kViolation) {
      std::fprintf(stderr, "%s\n", std::string(decoded.error.message()).c_str());
      std::exit(1);
    }
    if (decoded.status == DecodeStatus::kNeedMore) return false;
    node->received.erase(0, decoded.bytes);
    if (std::holds_alternative<elastic::session::HeartbeatReply>(message)) ++replies_;
    if (const auto* round = std::get_if<elastic::rdzv::Round>(&message); round && !node->round) {
      node->round = elastic::core::HeldRound{*round->record, round->own.group_rank};
      ++rounds_;
    }
    if (std::holds_alternative<elastic::rdzv::Resumed>(message)) {
      resumed_ += std::exchange(node->has_resumed, true) ? 0 : 1;
    }
    return true;
  }

  void send_message(Node* node, std::string_view bytes) {
    if (node->tls == nullptr) return send(node->fd, bytes);
    if (!node->tls->send(bytes)) bench::die("TLS");
    send(node->fd, node->tls->output());
    node->tls->output().clear();
  }

  void send(int fd, std::string_view bytes) {
    bench::send_all(fd, bytes);  // far smaller than a socket's buffer
    bytes_ += static_cast<std::int64_t>(bytes.size());
  }

  std::uint16_t port_;
  std::vector<Node> nodes_;
  int epoll_ = -1;
  std::string question_;
  std::unique_ptr<elastic::host::TokenList::ClientKey> key_;  // null: no token
  std::size_t connected_ = 0;                                 // the nodes before this one
  std::size_t opening_ = 0;  // of these, those that have not said hello
  std::size_t rounds_ = 0;
  std::size_t resumed_ = 0;
  std::int64_t replies_ = 0;
  std::int64_t bytes_ = 0;
};

long long rss_anon(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) * 1024;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  bench::Flags flags(argc, argv);
  const auto port = static_cast<std::uint16_t>(flags.number("port", 0));
  const auto nodes = static_cast<int>(flags.number("nodes", 4096));
  const std::int64_t seconds = flags.number("beat-seconds", 0);
  const auto server = static_cast<pid_t>(flags.number("server", 0));
  const auto resume_port = static_cast<std::uint16_t>(flags.number("resume-port", 0));
  flags.done();
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  const long long before = server > 0 ? rss_anon(server) : 0;
  Load load(port, nodes, std::getenv("ELASTIC_TOKEN"));
  load.join();
  if (seconds > 0) load.beat(seconds, server);
  if (server > 0) std::printf("memory %lld\n", rss_anon(server) - before);
  if (resume_port > 0) load.resume(resume_port);
}
