#pragma once

// For tests of workers that take part in several rounds: the test acts as the guardian of one.

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "elastic/worker.h"
#include "guardian/channel.h"
#include "guardian/round_change.h"
#include "host/workers/forked_worker.h"

namespace elastic::support {

using guardian::Channel;
using guardian::Mark;
using guardian::MarkEvent;

inline const Instant kNow{std::chrono::seconds(5)};

// The part of a guardian that has one worker.
class Guardian {
 public:
  explicit Guardian(const std::function<int()>& body) : Guardian(Channel::create(), body) {}
  Guardian(Channel channel, const std::function<int()>& body) : process_(&channel, body) {
    workers_.resize(1);
    workers_[0].channel = std::move(channel);
  }
  Channel& channel() { return workers_[0].channel; }
  guardian::Worker& worker() { return workers_[0]; }
  ForkedWorker& process() { return process_; }
  guardian::RoundChange& change() { return change_; }

  void cut(std::uint64_t round) {
    change_.cut({round});
    advance();
  }
  bool give(std::uint64_t round, std::vector<std::string_view> env = {"A=1", "B="}) {
    return change_.give({0, round, std::move(env)}, &workers_, kNow);
  }
  void advance() {
    for (const MarkEvent& mark : change_.advance(&workers_, kNow)) marks_.push_back(mark);
  }
  // Reads messages until the next mark arrives; false: the worker has closed its socket.
  bool next(Mark wanted, std::int64_t step = -1) {
    while (marks_.empty()) {
      const os::WaitLimits limits{.deadline = generous_deadline()};
      if (channel().socket() < 0) return false;
      if (!os::wait_ready(channel().socket(), POLLIN, limits).ok()) return false;
      channel().read_messages();
      advance();
    }
    const MarkEvent found = marks_.front();
    marks_.erase(marks_.begin());
    return found.mark == wanted && found.step == step && found.at == kNow;
  }
  bool is_quiet() {
    channel().read_messages();
    advance();
    return marks_.empty();
  }
  // The worker takes part in its round, and reports steps.
  bool is_at_work() {
    if (!next(Mark::kMember)) return false;
    while (!channel().is_reporting()) {
      if (!is_quiet()) return false;
    }
    return true;
  }
  int exit_code() { return process_.wait(); }

 private:
  std::vector<guardian::Worker> workers_;
  guardian::RoundChange change_;
  std::vector<MarkEvent> marks_;
  ForkedWorker process_;
};

// ---- In the worker.

inline bool join() {
  ::setenv("ELASTIC_ROUND", "3", 1);
  return elastic_worker_open() == 1 && elastic_worker_join_membership() == 1;
}

// The variables, with a comma for each NUL.
inline std::string next_round() {
  static char out[ELASTIC_WORKER_ROUND_BYTES];
  int bytes = 0;
  while (bytes == 0) bytes = elastic_worker_wait_for_round(out, sizeof out, 60'000);
  if (bytes < 0) return "gone";
  std::string text(out, static_cast<std::size_t>(bytes));
  for (char& byte : text) byte = byte == '\0' ? ',' : byte;
  return text;
}

inline std::uint64_t left_round() {
  return __atomic_load_n(&elastic_worker_page_in_use->left_round, __ATOMIC_SEQ_CST);
}
inline void set_left_round(std::uint64_t word) {
  __atomic_store_n(&elastic_worker_page_in_use->left_round, word, __ATOMIC_SEQ_CST);
}

// A worker waits there until the test opens it.
class Gate {
 public:
  Gate() { EXPECT_EQ(::pipe(ends_), 0); }
  void wait() const {
    ::close(ends_[1]);
    char byte = 0;
    while (::read(ends_[0], &byte, 1) < 0) continue;
  }
  void open() const { ::close(ends_[1]); }

 private:
  int ends_[2];
};

inline void wait_until_over() {
  while (elastic_worker_wait_until_over(-1) == 0) continue;
}

}  // namespace elastic::support
