// How long one thing that happens to a large job blocks the loop of its coordinator.
//
//   coordinator_stalls --nodes N
//
// Runs a coordinator with voters=auto on a thread of its own, and N simulated nodes with eight
// ranks each, of which the first ones have a voter port. Prints for each event, when every node has
// received what follows from it: "<event> <ns> <ns> <ns>", the CPU time and the duration of the
// longest iteration of the loop, and its CPU time in all:
//
//   join    all nodes join, and their round begins
//   hang    no rank makes progress: their stacks are collected, and the verdict is sent
//   loss    the session of one node is closed, and a round begins without it
//   leaves  a quarter of the nodes leave at once (1000 of 4096), and a round begins without them
//   growth  as many new nodes join, and a round begins with them

#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "common.h"
#include "core/session/session_wire.h"
#include "core/store/wire.h"
#include "host/coordinator/coordinator_service.h"
#include "host/succession/job_voter.h"
#include "os/loop/event_loop.h"

namespace {

using elastic::session::ClientMessage;
using elastic::session::DecodeStatus;
using elastic::session::ServerMessage;

constexpr const char* kJob = "stalls";
constexpr std::size_t kStoreReplyBytes = 5;  // the replies to PING and CHECK
constexpr int kRanksPerNode = 8;
constexpr std::size_t kVoterPorts = 32;  // more than are probed
constexpr auto kHangLimit = std::chrono::milliseconds(500);
constexpr auto kSettle = std::chrono::seconds(1);
constexpr auto kTimeout = std::chrono::seconds(60);

[[noreturn]] void fail(const elastic::Status& why) {
  std::fprintf(stderr, "%s\n", std::string(why.message()).c_str());
  std::exit(1);
}

template <typename Value>
Value expect(elastic::Result<Value> result) {
  if (!result.ok()) fail(result.status());
  return *std::move(result);
}

std::int64_t thread_cpu_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

// The coordinator on its thread.
class Server {
 public:
  explicit Server(int voters) : voters_(voters), thread_([this] { run(); }) {
    while (port_ == 0) ::usleep(1000);
  }
  ~Server() {
    is_ending_ = true;
    thread_.join();
  }

  std::uint16_t port() const { return static_cast<std::uint16_t>(port_.load()); }

  // What the loop has done since the last report.
  void report(const char* event) {
    std::printf("%s %lld %lld %lld\n", event, static_cast<long long>(longest_cpu_.exchange(0)),
                static_cast<long long>(longest_wall_.exchange(0)),
                static_cast<long long>(cpu_.exchange(0)));
    std::fflush(stdout);
  }

 private:
  void run() {
    const auto loop = expect(elastic::os::EventLoop::create());
    elastic::CoordinatorOptions options;
    options.voters = voters_;
    options.limits.sessions_max = 200'000;
    const auto service = expect(elastic::host::CoordinatorService::open(loop.get(), options));
    port_ = service->port();
    while (!is_ending_) {
      const std::int64_t cpu = thread_cpu_ns();
      const std::int64_t wall = bench::monotonic_ns();
      const bool has_acted = loop->turn();
      if (!has_acted) {
        ::usleep(100);
        continue;
      }
      const std::int64_t used = thread_cpu_ns() - cpu;
      cpu_ += used;
      longest_cpu_ = std::max(longest_cpu_.load(), used);
      longest_wall_ = std::max(longest_wall_.load(), bench::monotonic_ns() - wall);
    }
  }

  const int voters_;
  std::atomic<int> port_ = 0;
  std::atomic<bool> is_ending_ = false;
  std::atomic<std::int64_t> longest_cpu_ = 0;
  std::atomic<std::int64_t> longest_wall_ = 0;
  std::atomic<std::int64_t> cpu_ = 0;
  std::thread thread_;
};

// Each node is on a host of its own.
std::string address_of(std::size_t index) {
  return "127.1." + std::to_string(index / 250) + "." + std::to_string(index % 250 + 1);
}

class Job {
 public:
  Job(std::uint16_t port, std::size_t nodes) : port_(port) {
    settings_.min_nodes = static_cast<int>(nodes / 2);
    settings_.max_nodes = static_cast<int>(nodes);
    settings_.node_timeout = std::chrono::hours(1);  // they send no heartbeats
    settings_.settle = kSettle;
    add(nodes);
  }

  void join() {
    begin(0);
    // The voters are in force when nodes have been told of them.
    await([](const Node& node) { return node.round > 0 && node.num_voters >= 3; });
  }

  void grow(std::size_t count) {
    const std::uint64_t round = nodes_.back()->round;
    const std::size_t first = nodes_.size();
    add(count);
    begin(first);
    await([round](const Node& node) { return node.round > round; });
  }

  void hang() {
    for (const auto& node : nodes_) {
      elastic::hang::NodeProgress progress;
      progress.round = node->round;
      progress.reporting = kRanksPerNode;
      progress.newest = progress.oldest = 100;
      progress.slowest_rank = node->first_rank;
      progress.limit = kHangLimit;
      node->send(progress);
    }
    await([](const Node& node) { return node.has_verdict; });
  }

  void lose_one() {
    const std::uint64_t round = nodes_.back()->round;
    nodes_.pop_back();
    await([round](const Node& node) { return node.round > round; });
  }

  void leave(std::size_t count) {
    const std::uint64_t round = nodes_.back()->round;
    for (std::size_t i = 0; i < count; ++i) {
      Node& node = *nodes_[nodes_.size() - 1 - i];
      node.is_leaving = true;
      node.send(elastic::rdzv::Leave{{}, "its host is needed elsewhere"});
      node.send(elastic::session::Heartbeat{});
    }
    await([round](const Node& node) {
      return node.is_leaving ? node.is_acknowledged : node.round > round;
    });
    nodes_.resize(nodes_.size() - count);
  }

 private:
  struct Node final : elastic::os::FdHandler {
    Node(Job* owner, std::size_t number) : job(*owner), index(number) {
      id = {1, number + 1};
      if (number >= kVoterPorts) return;
      const auto ignore = [](const elastic::succession::Action&) {};
      voter = expect(elastic::host::JobVoter::open(job.loop_.get(),
                                                   {.job_id = kJob,
                                                    .node = id,
                                                    .address = address_of(number),
                                                    .bind_host = address_of(number),
                                                    .node_timeout = job.settings_.node_timeout,
                                                    .store_grace = job.settings_.store_grace},
                                                   ignore));
    }
    ~Node() override {
      watch.reset();
      ::close(fd);
    }

    void begin() {
      fd = bench::connect_to_loopback(job.port_);
      std::string opening;
      elastic::wire::append_validate(&opening);
      elastic::wire::append_ping(&opening, 1);
      elastic::wire::append_list_header(&opening, elastic::wire::Opcode::kCheck, 1);
      elastic::wire::append_bytes(&opening, elastic::session::kReservedKey);
      bench::send_all(fd, opening);
      bench::receive(fd, kStoreReplyBytes);
      std::string bytes(elastic::session::kMagic);
      elastic::session::ClientHello hello;
      hello.job_id = kJob;
      hello.node = id;
      // Nothing listens at port 1.
      hello.succession.emplace();
      hello.succession->voter_address = voter == nullptr ? ":1" : voter->address();
      elastic::session::append(&bytes, ClientMessage(hello));
      elastic::session::append(&bytes, ClientMessage(join_message()));
      bench::send_all(fd, bytes);
      watch = expect(job.loop_->watch(fd, EPOLLIN, this));
    }

    elastic::rdzv::Join join_message() const {
      elastic::rdzv::Join join;
      join.node.id = id;
      join.node.address = address_of(index);
      join.node.name = join.node.address + "_" + std::to_string(index) + "_0";
      join.node.store_port = 29501;
      join.node.local_world_size = kRanksPerNode;
      join.node.highest_round = round;
      join.node.previous_rank = rank;
      join.settings = job.settings_;
      return join;
    }

    void send(const ClientMessage& message) const {
      std::string bytes;
      elastic::session::append(&bytes, message);
      bench::send_all(fd, bytes);
    }

    void on_ready(std::uint32_t) override {
      char bytes[64 << 10];
      const ssize_t got = ::recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) bench::die("the coordinator closed a session");
      received.append(bytes, static_cast<std::size_t>(got));
      std::size_t used = 0;
      while (true) {
        ServerMessage message;
        const auto decoded =
            elastic::session::decode(std::string_view(received).substr(used), &message);
        if (decoded.status == DecodeStatus::kViolation) fail(decoded.error);
        if (decoded.status == DecodeStatus::kNeedMore) break;
        used += decoded.bytes;
        take(message);
      }
      received.erase(0, used);
    }

    void take(const ServerMessage& message) {
      if (const auto* begun = std::get_if<elastic::rdzv::Round>(&message)) {
        round = begun->record->round;
        rank = begun->own.group_rank;
        first_rank = begun->own.base_rank;
      } else if (const auto* ended = std::get_if<elastic::rdzv::Restart>(&message)) {
        if (is_leaving) return;
        send(elastic::rdzv::Gone{{}, ended->round});
        send(join_message());
      } else if (const auto* now = std::get_if<elastic::session::Incumbent>(&message)) {
        num_voters = now->incumbent.voters.size();
      } else if (const auto* asked = std::get_if<elastic::hang::StacksWanted>(&message)) {
        send(stacks(asked->request));
      } else if (const auto* verdict = std::get_if<elastic::hang::Verdict>(&message)) {
        has_verdict = has_verdict || verdict->kind == elastic::hang::Verdict::Kind::kHang;
      } else if (const auto* refused = std::get_if<elastic::rdzv::Refused>(&message)) {
        fail(refused->error);
      } else if (std::holds_alternative<elastic::session::HeartbeatReply>(message)) {
        is_acknowledged = is_leaving;
      }
    }

    // All ranks wait at one place for one that reads its data.
    elastic::hang::NodeStacks stacks(std::uint64_t request) const {
      elastic::hang::NodeStacks all{.request = request, .host = address_of(index), .groups = {}};
      elastic::hang::StackGroup waiting{.ranks = {},
                                        .oldest = 100,
                                        .kind = elastic::hang::StackGroup::Kind::kWaiting,
                                        .label = "in all_reduce (train.py:88)",
                                        .text = std::string(2000, 'x')};
      for (int i = 0; i < kRanksPerNode; ++i) waiting.ranks.push_back(first_rank + i);
      if (index == 7) {
        all.groups.push_back({.ranks = {waiting.ranks.back()},
                              .oldest = 100,
                              .kind = elastic::hang::StackGroup::Kind::kAtWork,
                              .label = "in read_bytes (data.py:26)",
                              .text = std::string(2000, 'y')});
        waiting.ranks.pop_back();
      }
      all.groups.push_back(std::move(waiting));
      return all;
    }

    Job& job;
    const std::size_t index;
    elastic::NodeId id;
    int fd = -1;
    std::unique_ptr<elastic::host::JobVoter> voter;  // null: nothing answers at its voter port
    std::string received;
    std::uint64_t round = 0;
    int rank = -1;
    int first_rank = -1;
    std::size_t num_voters = 0;
    bool has_verdict = false;
    bool is_leaving = false;
    bool is_acknowledged = false;
    elastic::os::Watch watch;
  };

  void add(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      nodes_.push_back(std::make_unique<Node>(this, num_added_++));
    }
  }

  void begin(std::size_t first) {
    for (std::size_t i = first; i < nodes_.size(); ++i) {
      nodes_[i]->begin();
      loop_->turn();
    }
  }

  void await(const std::function<bool(const Node&)>& is_done) {
    const auto end = loop_->read_clock() + kTimeout;
    for (std::size_t i = 0; i < nodes_.size();) {
      if (is_done(*nodes_[i])) {
        ++i;
        continue;
      }
      if (!loop_->turn()) ::usleep(200);
      if (loop_->read_clock() < end) continue;
      std::fprintf(stderr, "node %zu was sent nothing within a minute\n", i);
      std::exit(1);
    }
  }

  const std::uint16_t port_;
  elastic::JobSettings settings_;
  std::unique_ptr<elastic::os::EventLoop> loop_ = expect(elastic::os::EventLoop::create());
  std::vector<std::unique_ptr<Node>> nodes_;
  std::size_t num_added_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  bench::Flags flags(argc, argv);
  const auto nodes = static_cast<std::size_t>(flags.number("nodes", 4096));
  flags.done();
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  Server server(0);
  Job job(server.port(), nodes);
  server.report("start");
  job.join();
  server.report("join");
  job.hang();
  server.report("hang");
  job.lose_one();
  server.report("loss");
  job.leave(nodes * 1000 / 4096);
  server.report("leaves");
  job.grow(nodes * 1000 / 4096);
  server.report("growth");
}
