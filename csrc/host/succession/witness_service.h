#pragma once

// A witness on a loop that its owner runs: its jobs behind one port.
//
// elastic::Witness runs it on a separate thread. Loop thread only.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/succession/witnessed_job.h"
#include "elastic/witness.h"
#include "host/base/admission.h"
#include "host/succession/voter_links.h"
#include "os/loop/registration.h"

namespace elastic::host {

class WitnessService {
 public:
  static Result<std::unique_ptr<WitnessService>> open(os::EventLoop* loop,
                                                      const WitnessOptions& options);
  WitnessService(const WitnessService&) = delete;
  WitnessService& operator=(const WitnessService&) = delete;
  ~WitnessService() = default;

  // Any thread: both are constant.
  std::uint16_t port() const { return links_.port(); }
  const std::string& host() const { return options_.host; }

 private:
  WitnessService(os::EventLoop* loop, const WitnessOptions& options,
                 std::shared_ptr<Tokens> tokens);
  void on_frame(VoterLinks::ConnectionId from, std::string_view frame);
  struct Entry {
    succession::WitnessedJob job;
    std::string beginner;  // the address whose connection named it first
    std::uint64_t serial = 0;
    Instant due = Instant::max();  // of the job, in due_
  };
  using Jobs = std::map<std::string, Entry, std::less<>>;
  succession::WitnessedJob* find_or_add(const std::string& id, const std::string& beginner);
  bool remove_idle_job(const std::string& beginner);
  void execute(const std::string& id, const std::vector<succession::Action>& actions);
  void on_ended(VoterLinks::ConnectionId connection);
  void tick();
  void stepped(Jobs::iterator job);
  Jobs::iterator remove(Jobs::iterator job);
  void arm();
  void log(const std::string& message) const {
    if (options_.log) options_.log(message);
  }

  os::EventLoop* const loop_;
  const WitnessOptions options_;
  RefusalLog refusals_;
  Jobs jobs_;
  std::set<std::pair<Instant, std::string>> due_;  // a frame costs no visit of all jobs
  std::uint64_t jobs_begun_ = 0;
  VoterLinks links_;
  os::Timer timer_;
};

}  // namespace elastic::host
