#pragma once

// The guardian's loop: receives requests, sends events, reaps children.

#include <poll.h>
#include <sys/types.h>

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "core/workers/guardian_protocol.h"
#include "elastic/time.h"
#include "guardian/cleaners.h"
#include "guardian/pages.h"
#include "guardian/round_change.h"
#include "guardian/snapshots.h"
#include "guardian/stop_steps.h"
#include "guardian/template.h"
#include "guardian/worker.h"
#include "os/base/fd.h"
#include "os/process/process_tree.h"

namespace elastic::guardian {

class Guardian {
 public:
  // channel: a non-blocking stream socket to the agent. signals: a signalfd for SIGCHLD. agent: a
  // pidfd of the agent, or invalid if the kernel has no pidfds.
  Guardian(os::UniqueFd channel, os::UniqueFd signals, os::UniqueFd agent);
  // Returns when the agent has died and no process that it started is left.
  void run();
  // After run(): whether the agent has ended, rather than closed its end of the channel in order.
  bool agent_has_ended();

 private:
  void wait();
  // False: poll failed, and any descriptor may be ready.
  bool poll_descriptors();
  void read_requests();
  ssize_t receive(char* bytes, std::size_t size);
  bool handle(const Request& request, std::string_view payload);
  bool start(const StartRequest& request, std::string_view payload);
  void execute(const StartRequest& request, int stream);
  void signal(const SignalRequest& request);
  void cancel_starts(Duration start_timeout);
  void sweep(bool reports_leftovers);
  void report_leftovers();
  // The processes that have outlived the workers. `command`: the storage of the event's text.
  LeftoverEvent find_leftovers(std::string* command);
  void await_leftovers();
  void check_leftovers();
  void agent_lost();

  void collect_messages();
  void change_round(const ContinueRequest& request);
  void report_members();
  void watch_workers();
  void report_snapshots(bool at_once);
  bool settle_snapshots();
  bool is_behind() const;  // the agent does not read its events
  std::optional<Instant> next_sample() const;
  int poll_timeout() const;
  void collect_starts(std::vector<Worker>* processes);
  void remove_failed_starts(std::vector<Worker>* processes);
  void collect_exits(std::vector<Worker>* processes);
  bool resolve_start(Worker* worker);
  void report_failed_start(const Worker& worker, const StartFailure& failure,
                           std::optional<Duration> start_timeout = std::nullopt);
  void release_helpers();
  void reap_orphans();

  void begin_sweep();
  void sweep_once();
  bool kill_workers_and_orphans(Instant looks_until);
  void kill_groups();
  void kill_members(pid_t leader);
  bool reap(pid_t child);
  bool is_swept();
  void finish_sweep();
  // The direct children that a sweep is about: all but the helpers and the cleaners that were left.
  bool list_swept_children();

  // Workers that are to be forked (fork_starts.cc).
  struct ForkStart {
    std::string payload;   // of the request
    os::UniqueFd stream;   // passed with the request; invalid: none
    Worker worker;         // without a pid
    bool is_sent = false;  // to the template
    Instant deadline;      // of the template: until it is ready, then until it answers
    std::vector<SignalRequest> signals;  // received since the request was sent
  };
  void start_template(const StartRequest& request);
  void queue_fork(const StartRequest& request, std::string_view payload, os::UniqueFd stream);
  std::optional<std::size_t> find_fork(std::uint32_t id) const;
  ForkStart take_fork(std::size_t index);
  bool awaits_fork() const;  // a request was sent and is not answered
  std::optional<Instant> fork_deadline() const;
  void send_forks();
  void read_template();
  void adopt(std::uint32_t id, pid_t pid, const os::UniqueFd& release);
  void refuse_fork(std::uint32_t id, const std::string& reason);
  void execute_instead(ForkStart start, const std::string& reason);
  void execute_all_instead(const std::string& reason);
  void report_stopped_start(const Worker& worker);
  void signal_forks(const SignalRequest& request);
  void cancel_forks(Duration start_timeout);
  void stop_forks();
  void extend_forks();
  void expire_forks();
  void kill_late_template();
  void template_ended();

  void send_event(const Event& event);
  void flush();

  os::UniqueFd channel_;
  os::UniqueFd signals_;
  os::UniqueFd agent_;
  const pid_t pid_;

  core::FrameBuffer received_{kFrameLimits};
  std::deque<os::UniqueFd> passed_;  // received with start requests that were not handled yet
  std::string unsent_;
  std::vector<Worker> workers_;  // since the last sweep
  std::vector<Worker> helpers_;  // the running ones
  Template template_;
  bool template_is_ready_ = false;
  bool template_is_late_ = false;  // it was killed because it did not answer
  std::string imported_;           // the module that the template imports
  std::vector<ForkStart> forks_;
  ProgressSampler sampler_;
  StackCollector stacks_;
  StopSteps stop_steps_;
  RoundChange round_change_;
  Snapshots snapshots_;
  bool connected_ = true;         // false: the agent has died
  Instant now_;                   // of the last return from poll
  bool must_poll_again_ = false;  // the next poll does not wait
  std::vector<pollfd> polled_;
  os::ChildrenFile children_file_;
  std::vector<pid_t> children_;

  bool awaits_leftovers_ = false;  // all workers have ended, and a process that they left has not

  // State of the current sweep.
  bool sweeping_ = false;
  bool kill_reported_ = false;
  std::unordered_set<pid_t> killed_;
  bool is_blind_ = false;              // new children are killed without a look at what they are
  std::optional<Instant> group_kill_;  // when kill_groups() follows; nullopt: it was done

  Cleaners cleaners_;
};

}  // namespace elastic::guardian
