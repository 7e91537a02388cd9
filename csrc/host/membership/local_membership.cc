#include "host/membership/local_membership.h"

#include <type_traits>
#include <utility>
#include <variant>

#include "host/coordinator/job_facts.h"

// Theory of operation. A statement of the node is an event of the machine; the machine's answers
// are queued and delivered in the loop's next iteration, in order, so the agent is never called
// from inside its own call.
//
// The machine's timers run only while the node waits for a round, which a restart may delay
// (restart_backoff). At other times a timer could only declare the only node lost; while the node
// waits, a heartbeat before each tick prevents that.

namespace elastic::host {
namespace {

JobSettings for_one_node(JobSettings settings) {
  settings.min_nodes = settings.max_nodes = 1;
  settings.static_ranks = false;
  return settings;
}

}  // namespace

LocalMembership::LocalMembership(os::EventLoop* loop, Options options, Sink sink)
    : loop_(loop),
      id_(std::move(options.job_id)),
      sink_(std::move(sink)),
      job_(for_one_node(std::move(options.settings)), loop->now(), Duration::zero()),
      hangs_(loop, hang_sink()),
      drain_(loop, drain_sink()),
      observers_(loop, observed_job()),
      delivery_(loop, [this] { deliver(); }),
      tick_(loop, [this] { tick(); }) {
  if (!options.observer_socket.empty()) listen(options.observer_socket);
  receive(MembershipReady{std::move(options.address)});
}

LocalMembership::~LocalMembership() {
  observers_.end("the job has ended");
  sessions_.reset();
}

HangDesk::Sink LocalMembership::hang_sink() {
  return {.ask = [this](const auto& wanted) { receive(wanted); },
          .publish = [this](const auto& verdict) { receive(verdict); },
          .reply = [this](std::uint64_t asked,
                          std::string text) { observers_.reply(asked, std::move(text)); },
          .log = [](std::string_view) {},
          .close =
              [this](const JobResult& result) {
                step(rdzv::Close{node_, result});
              },
          .changed =
              [this] {
                const auto hang = hangs_.hang();
                history_.hangs(hang ? std::optional(hang->progressed) : std::nullopt, loop_->now());
                observers_.job_changed();
              }};
}

DrainDesk::Sink LocalMembership::drain_sink() {
  return {.send = [this](const NodeId&, const drain::Order& order) { receive(order); },
          .announce =
              [this](const std::string& text) {
                receive(drain::News{text});
                observers_.job_changed();
              },
          .close =
              [this](const JobResult& result) {
                step(rdzv::Close{node_, result});
              },
          .inform = [this](const auto& answer) { observers_.reply(answer); },
          .hold_growth = [] {}};
}

ObserverDesk::Job LocalMembership::observed_job() {
  return {.source = {.facts = [this] { return facts(); },
                     .nodes =
                         [this] {
                           std::vector<ObservedNode> nodes = describe_nodes(job_, loop_->now());
                           // It is in this process and sends no heartbeats.
                           for (ObservedNode& node : nodes) node.silence = Duration::zero();
                           return nodes;
                         },
                     .watch_workers = [this](bool is_on) { receive(MembershipWatch{is_on}); }},
          .request_stacks =
              [this](std::uint64_t number) { hangs_.feed(core::hang_event::Requested{number}); },
          .request_drain = [this](const session::RequestDrain& request,
                                  std::uint64_t number) -> std::optional<std::string> {
            if (job_.phase() == RendezvousPhase::kClosed) return "no round of the job runs";
            if (request.node) return "the job has one node, which cannot leave alone";
            drain_.feed(core::drain_event::Noticed{request.notice, number});
            return std::nullopt;
          }};
}

ObservedJob LocalMembership::facts() {
  ObservedJob job = describe_job(&job_, history_, hangs_, drain_, loop_->now());
  job.id = id_;
  job.coordinator = sessions_->incarnation();
  job.incumbent = CoordinatorInfo{
      .address = "unix:" + sessions_->path(), .lineage = {}, .term = 1, .voters = {}};
  return job;
}

// Without the socket the job runs all the same.
void LocalMembership::listen(const std::string& path) {
  auto sessions = LocalObservers::open(loop_, path, id_, &observers_);
  if (sessions.ok()) {
    sessions_ = *std::move(sessions);
  } else {
    receive(MembershipCoordinatorLog{"elastic-launch status cannot show the job: " +
                                     std::string(sessions.status().message())});
  }
}

void LocalMembership::changed() {
  history_.update(job_.phase(), job_.record(), loop_->now());
  observers_.job_changed();
}

void LocalMembership::send(const NodeStatement& statement) {
  RendezvousEvent event =
      std::visit([](const auto& one) { return RendezvousEvent(one); }, statement);
  if (auto* join = std::get_if<rdzv::Join>(&event)) {
    join->settings = job_.settings();
    waiting_ = node_ = join->node.id;
    name_ = join->node.name;
  }
  if (const auto* failed = std::get_if<rdzv::Failed>(&event)) {
    history_.worker_failed(name_, *failed);
  } else if (const auto* gone = std::get_if<rdzv::Gone>(&event)) {
    history_.workers_ended(gone->round, loop_->now());
  } else if (const auto* done = std::get_if<rdzv::Done>(&event)) {
    history_.workers_ended(done->round, loop_->now());
  }
  step(event);
}

void LocalMembership::send_workers(const WorkerReport& report) {
  if (observers_.watches_workers()) observers_.on_report(node_, report);
}

void LocalMembership::observe(const hang::NodeProgress& progress) {
  const bool has_steps = progress.reporting > 0;
  if (has_steps && history_.progressed(progress.round, loop_->now())) observers_.job_changed();
  hangs_.feed(core::hang_event::Progressed{node_, progress});
  drain_.feed(core::drain_event::Progressed{node_, progress});
}

void LocalMembership::observe(const hang::NodeStacks& stacks) {
  hangs_.feed(core::hang_event::StacksReceived{node_, stacks});
}

void LocalMembership::observe(const hang::RankFinished& finished) {
  hangs_.feed(core::hang_event::Finished{finished});
}

void LocalMembership::observe(const drain::Reply& reply) {
  drain_.feed(core::drain_event::Replied{node_, reply});
  if (drain_.is_reached()) hangs_.feed(core::hang_event::Ended{});
}

void LocalMembership::request_drain(const drain::Notice& notice) {
  drain_.feed(core::drain_event::Noticed{notice});
}

void LocalMembership::tick() {
  step(rdzv::Heartbeat{*waiting_});
  if (waiting_) step(rdzv::Tick{});
}

void LocalMembership::step(const RendezvousEvent& event) {
  std::vector<RendezvousAction> actions;
  job_.step(event, loop_->now(), &actions);
  for (RendezvousAction& action : actions) {
    std::visit(
        [this](auto& one) {
          using Action = std::decay_t<decltype(one)>;
          constexpr bool is_answer =
              std::is_same_v<Action, rdzv::Round> || std::is_same_v<Action, rdzv::Closed>;
          if (is_answer) waiting_.reset();
          if constexpr (std::is_same_v<Action, rdzv::Round>) {
            hangs_.feed(core::hang_event::Began{node_, one.record->round});
            drain_.feed(core::drain_event::Began{node_, one.record->round});
          }
          if constexpr (std::is_same_v<Action, rdzv::Restart> ||
                        std::is_same_v<Action, rdzv::Closed>) {
            hangs_.feed(core::hang_event::Ended{});
          }
          if constexpr (std::is_same_v<Action, rdzv::Restart>) {
            history_.round_ends(one, loop_->now());
            drain_.feed(core::drain_event::Ended{});
          }
          if constexpr (std::is_same_v<Action, rdzv::Closed>) {
            drain_.feed(core::drain_event::Over{});
          }
          // There is no session to resume, and the agent knows its round.
          if constexpr (std::is_constructible_v<MembershipEvent, Action>) receive(std::move(one));
        },
        action);
  }
  changed();
  const auto deadline = waiting_ ? job_.next_deadline() : std::nullopt;
  if (deadline) {
    tick_.arm(*deadline);
  } else {
    tick_.disarm();
  }
}

void LocalMembership::receive(MembershipEvent event) {
  received_.push_back(std::move(event));
  delivery_.arm(loop_->now());
}

void LocalMembership::deliver() {
  // Events that are added while these are delivered wait for the next iteration.
  for (std::size_t left = received_.size(); left > 0; --left) {
    const MembershipEvent event = std::move(received_.front());
    received_.pop_front();
    sink_(event);
  }
  if (received_.empty() && drained_) std::exchange(drained_, {})();
}

void LocalMembership::drain(Duration /*limit*/, std::function<void()> done) {
  observers_.end("the job has ended");
  drained_ = std::move(done);
  delivery_.arm(loop_->now());
}

}  // namespace elastic::host
