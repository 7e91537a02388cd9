#pragma once

// The succession machines of jobs whose agents all run in other processes. They propose records and
// have no voter port. Loop thread only.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/succession/succession_events.h"
#include "host/base/settled_line.h"
#include "host/base/tokens.h"
#include "host/succession/job_keeper.h"
#include "host/succession/job_voter.h"
#include "os/loop/registration.h"

namespace elastic::host {

class JobVoters {
 public:
  using Sink = std::function<void(const std::string& job, const succession::Action&)>;

  // `sink` is called from the loop, never inside of a feed. `loop` outlives the object.
  JobVoters(os::EventLoop* loop, int voters, std::shared_ptr<Tokens> tokens,
            std::function<void(std::string_view)> log, Sink sink)
      : loop_(loop),
        voters_(voters),
        tokens_(std::move(tokens)),
        log_(std::move(log)),
        sink_(std::move(sink)) {}
  JobVoters(const JobVoters&) = delete;
  JobVoters& operator=(const JobVoters&) = delete;

  // A machine for the job, whose coordinator listens at this address.
  SuccessionFeed open(const std::string& job, const std::string& address);
  void close(const std::string& job) { jobs_.erase(job); }
  // Logs what the job survives, when that has changed and settled.
  void log_survival(const std::string& job);

 private:
  struct Job {
    std::unique_ptr<JobVoter> voter;
    std::unique_ptr<SettledLine> survival;
  };

  os::EventLoop* const loop_;
  const int voters_;
  const std::shared_ptr<Tokens> tokens_;
  const std::function<void(std::string_view)> log_;
  const Sink sink_;
  std::map<std::string, Job, std::less<>> jobs_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace elastic::host
