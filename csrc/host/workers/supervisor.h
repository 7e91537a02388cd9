#pragma once

// Runs the worker-group machine on a loop, connected to a guardian process.
//
// Loop thread only. WorkerGroup runs it on a separate thread; Agent runs it on its own loop.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/frame.h"
#include "core/base/worker_evidence.h"
#include "core/workers/guardian_protocol.h"
#include "core/workers/silent_guardian.h"
#include "core/workers/worker_group.h"
#include "elastic/status.h"
#include "elastic/worker_group.h"
#include "host/workers/guardian_link.h"
#include "os/loop/registration.h"
#include "os/loop/thread.h"
#include "os/process/spawn.h"

namespace elastic::host {

class Supervisor final : private os::FdHandler {
 public:
  // Called on the loop thread for each event, in order. It may call start() and stop(); it must not
  // destroy the supervisor.
  using Sink = std::function<void(const WorkerEvent&)>;

  // Starts the guardian. `loop` outlives the supervisor. `shared`: a descriptor that the guardian
  // holds until no process of the workers is left; -1: none.
  static Result<std::unique_ptr<Supervisor>> create(os::EventLoop* loop,
                                                    const WorkerGroupOptions& options, Sink sink,
                                                    int shared = -1);
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;
  ~Supervisor() override;  // close(), and waits at most five seconds for the guardian to exit

  // As the members of WorkerGroup.
  // `streams`: none, or one for each worker.
  Status start(const std::vector<WorkerCommand>& commands, std::vector<WorkerStream> streams = {});
  void stop(int signal, Duration grace, SignalScope scope = SignalScope::kGroup);
  void forward(int signal, SignalScope scope = SignalScope::kGroup,
               std::optional<int> local_rank = std::nullopt);
  // While workers report steps, reads their progress at this interval, and calls the sink when it
  // has changed. `marks` receives what each worker's channel shows once.
  using ProgressSink = std::function<void(const guardian::ProgressEvent&)>;
  using MarkSink = std::function<void(const guardian::MarkEvent&)>;
  void watch(Duration interval, ProgressSink progress, MarkSink marks);
  // Collects the stacks of the running workers; `done` is called within about `limit`, unless the
  // guardian is lost or stacks are requested again before. The ranks are local.
  using StacksSink = std::function<void(std::vector<core::WorkerEvidence>)>;
  void collect_stacks(Duration limit, StacksSink done);
  // The same without stacks, and with what the workers have worked: no worker is interrupted.
  void measure_work(StacksSink done);
  // `sink` receives the new signatures of the workers' collective operations.
  void on_signatures(StacksSink sink) { signatures_sink_ = std::move(sink); }
  // Passes the request to the guardian, with a descriptor if `passed` is one.
  void request(const guardian::ExtensionRequest& request, os::UniqueFd passed = {});
  // `sink` receives what the guardian reports to extensions.
  using ExtensionSink = std::function<void(const guardian::ExtensionEvent&)>;
  void on_extension(ExtensionSink sink) { extension_sink_ = std::move(sink); }
  // For the workers that run: why they are stopped. Call it before what stops them.
  void set_stop_reason(const std::string& text);
  // The round is over: asks every worker that can take part in a further one (Mark::kMember) to
  // leave it. `marks` of watch() receives Mark::kLeft of each.
  void cut(std::uint64_t round);
  // Gives the workers, which have left their round, a new one: for each of them the variables
  // "NAME=value" that are new or have changed. A worker that has ended is skipped. An error, and no
  // worker receives anything, if the generation does not run, or the lists are invalid.
  Status continue_round(std::uint64_t round, const std::vector<std::vector<std::string>>& env);
  // Calls `done` once: at once, or when the template that imports can fork workers, or never will.
  void when_warm(std::function<void()> done);
  // Runs a program beside the workers, with /dev/null as stdin and `output` as its stdout and
  // stderr: a helper, which the stop of the workers does not reach and which ends with this object.
  // `ended` is called once, unless it is killed or the guardian is lost. `number`: chosen by the
  // caller, and not used by one that runs.
  using HelperSink = std::function<void(const WorkerExit&)>;
  Status start_helper(std::uint32_t number, const WorkerCommand& command, os::UniqueFd output,
                      HelperSink ended);
  // With SIGKILL, and all processes of its group. It is not awaited.
  void kill_helper(std::uint32_t number);
  // True until the generation has ended (kGroupEnded).
  bool running() const { return machine_.live(); }
  // Closes the link: the guardian kills all processes, however long that takes, and exits. Does not
  // wait. No event follows.
  void close();

 private:
  struct ClosingGuardian;

  Supervisor(os::EventLoop* loop, os::Helper helper, std::optional<OrphanSweep> orphans,
             const WorkerGroupOptions& options, Sink sink);
  Status begin();
  void on_ready(std::uint32_t events) override;

  void step(const GroupEvent& event);
  void act(const group_action::StartAll& action);
  void act(const group_action::StartAgain& action);
  void act(const group_action::Signal& action);
  void act(const group_action::CancelStarts& action);
  void act(const group_action::AwaitLeftovers& action);
  void act(const group_action::Sweep& action);
  void act(const group_action::Emit& action);
  void act(const group_action::CloseLink& action);

  template <typename Request>
  void send(const Request& request);
  void flush();
  void read_events();
  void on_event(const guardian::HelloEvent& event);
  void on_event(const guardian::StartedEvent& event);
  void on_event(const guardian::EndedEvent& event);
  void on_event(const guardian::KillSentEvent& event);
  void on_event(const guardian::LeftoverEvent& event);
  void on_event(const guardian::SweptEvent& event);
  void on_event(const guardian::TemplateEvent& event);
  void on_event(const guardian::ProgressEvent& event);
  void on_event(const guardian::MarkEvent& event);
  void on_event(const guardian::StacksEvent& event);
  void on_event(const guardian::StacksDoneEvent& event);
  void on_event(const guardian::SignaturesEvent& event);
  template <typename OfExtension>
  void on_event(const OfExtension& event) {
    if (extension_sink_) extension_sink_(event);
  }

  struct Helper {
    StartOrder order;  // until it runs
    HelperSink ended;  // empty: it was killed
  };
  static bool is_helper(std::uint32_t id) { return id >= guardian::kFirstHelperId; }
  void helper_ended(std::uint32_t id, const WorkerExit& exit);

  void on_template(const WarmTemplate::Reaction& reaction);
  void report_template(const std::string& notice);
  void start_template();
  void judge_silent_guardian();
  void report_starved_guardian();
  void report_silence();
  void lose_guardian(std::string how);
  void sweep_orphans();

  os::EventLoop* const loop_;
  const WorkerGroupOptions options_;
  WarmTemplate template_;
  os::Helper guardian_;
  std::optional<OrphanSweep> orphans_;
  const Sink sink_;
  WorkerGroupMachine machine_;
  std::deque<GroupAction> actions_;
  bool acting_ = false;

  bool connected_ = true;  // false: the guardian has ended, reported or not
  bool greeted_ = false;
  bool broken_ = false;                      // the guardian violated the protocol
  std::vector<StartOrder> start_orders_;     // of the generation
  std::map<std::uint32_t, Helper> helpers_;  // by id
  UnsentRequests unsent_;
  bool waits_to_send_ = false;
  core::FrameBuffer received_{guardian::kFrameLimits};

  ProgressSink progress_sink_;
  MarkSink mark_sink_;
  StacksSink stacks_sink_;
  StacksSink signatures_sink_;
  ExtensionSink extension_sink_;
  std::function<void()> warm_sink_;
  std::vector<core::WorkerEvidence> evidence_;    // of the current request
  std::vector<core::WorkerEvidence> signatures_;  // until the last one was received

  std::optional<core::SilentGuardian> silent_;  // the guardian, and it was not killed yet
  std::optional<WorkerEvent> stuck_;            // what it should have killed, until it has
  std::string loss_;
  std::optional<std::string> guardian_end_;  // how it ended
  Instant orphan_deadline_;
  os::Timer deadline_timer_;
  os::Timer orphan_timer_;
  os::Timer silence_timer_;
  std::shared_ptr<ClosingGuardian> closing_guardian_;
  os::Watch watch_;
  std::optional<os::DetachableThread> closing_;  // waits for the guardian's end
};

}  // namespace elastic::host
