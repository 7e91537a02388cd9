#include "elastic/agent.h"

#include <utility>

#include "host/agent/agent_runner.h"
#include "host/base/event_queue.h"
#include "os/base/descriptor_limit.h"
#include "os/base/fork_guard.h"
#include "os/loop/loop_thread.h"
#include "os/loop/notifier.h"
#include "os/net/address.h"

namespace elastic {
namespace {

Status invalid(const std::string& message) { return {StatusCode::kInvalidArgument, message}; }

Status validate(const AgentOptions& options) {
  if (options.workers.empty()) return invalid("an agent needs at least one worker");
  for (std::size_t i = 0; i < options.workers.size(); ++i) {
    if (options.workers[i].argv.empty() || options.workers[i].argv.front().empty()) {
      return invalid("worker " + std::to_string(i) + " has no program");
    }
  }
  if (options.stop_grace < Duration::zero()) return invalid("stop_grace cannot be negative");
  if (options.failure_grace && *options.failure_grace < Duration::zero()) {
    return invalid("failure_grace cannot be negative");
  }
  if (options.inplace_grace && *options.inplace_grace <= Duration::zero()) {
    return invalid("inplace_grace must be greater than 0");
  }
  if (options.inplace_prepare && *options.inplace_prepare <= Duration::zero()) {
    return invalid("inplace_prepare must be greater than 0");
  }
  if (options.exit_barrier_timeout && *options.exit_barrier_timeout < Duration::zero()) {
    return invalid("exit_barrier_timeout cannot be negative");
  }
  if (options.worker_ports.last < options.worker_ports.first) {
    return invalid("worker_ports: the last port is below the first");
  }
  const RendezvousOptions& rendezvous = options.rendezvous;
  if (rendezvous.is_single_node() && rendezvous.settings.min_nodes > 1) {
    return invalid("a job of " + std::to_string(rendezvous.settings.min_nodes) +
                   " nodes needs an endpoint or a backend");
  }
  return rendezvous.settings.validate();
}

}  // namespace

class Agent::Impl {
 public:
  Impl(os::Notifier notifier, std::unique_ptr<os::LoopThread> thread)
      : events_(std::move(notifier)), thread_(std::move(thread)) {}
  ~Impl() {
    if (fork_guard_.is_in_child()) {
      // After fork(): this process lacks the thread, and guardian and workers are the parent's.
      static_cast<void>(node_.release());
      static_cast<void>(thread_.release());
      return;
    }
    thread_->call([this] { node_.reset(); });
  }
  bool is_in_child() const { return fork_guard_.is_in_child(); }

  Status begin(const AgentOptions& options) {
    Status status;
    thread_->call([&] {
      auto node = host::AgentRunner::start(
          &thread_->loop(), options, [this](AgentEvent event) { events_.push(std::move(event)); });
      if (node.ok()) {
        node_ = *std::move(node);
      } else {
        status = node.status();
      }
    });
    return status;
  }

  std::optional<AgentEvent> next_event(Instant deadline, const std::function<bool()>& interrupted) {
    if (is_finished_ || is_in_child()) return std::nullopt;
    std::optional<AgentEvent> event = events_.pop(deadline, interrupted);
    is_finished_ = event && event->kind == AgentEvent::Kind::kFinished;
    return event;
  }

  void request_stop(int signal) {
    if (is_in_child()) return;
    thread_->loop().post([this, signal] { node_->request_stop(signal); });
  }

  void request_drain(int signal, Duration limit) {
    if (is_in_child()) return;
    thread_->loop().post([this, signal, limit] { node_->request_drain(signal, limit); });
  }

  void forward(int signal) {
    if (is_in_child()) return;
    thread_->loop().post([this, signal] { node_->forward(signal); });
  }

  void wake() {
    if (!is_in_child()) events_.wake();
  }

  const AgentResult& result() const { return node_->result(); }

 private:
  // Every node of a job and every worker may connect to this process.
  const os::RaisedDescriptorLimit descriptors_;
  const os::ForkGuard fork_guard_;
  host::EventQueue<AgentEvent> events_;
  bool is_finished_ = false;                 // next_event() returned kFinished
  std::unique_ptr<host::AgentRunner> node_;  // loop thread only, except for a final result
  std::unique_ptr<os::LoopThread> thread_;
};

Result<std::unique_ptr<Agent>> Agent::start(AgentOptions options) {
  if (const Status status = validate(options); !status.ok()) return status;
  // Resolved once, here: the loop resolves no names, and every round has the same address.
  if (options.rendezvous.is_single_node()) {
    std::string& address = options.rendezvous.local_addr;
    const auto found = os::look_up(address.empty() ? "127.0.0.1" : address, options.master_port);
    if (!found.ok()) return found.status().with_context("local_addr");
    address = found->front().host();
  }
  Result<os::Notifier> notifier = os::Notifier::create();
  if (!notifier.ok()) return notifier.status();
  Result<std::unique_ptr<os::LoopThread>> thread = os::LoopThread::start("elastic-agent");
  if (!thread.ok()) return thread.status();
  auto impl = std::make_unique<Impl>(*std::move(notifier), *std::move(thread));
  if (const Status status = impl->begin(options); !status.ok()) return status;
  return std::unique_ptr<Agent>(new Agent(std::move(impl)));
}

Agent::Agent(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Agent::~Agent() = default;

std::optional<AgentEvent> Agent::next_event(Instant deadline,
                                            const std::function<bool()>& interrupted) {
  return impl_->next_event(deadline, interrupted);
}

void Agent::wake() { impl_->wake(); }

void Agent::request_stop(int signal) { impl_->request_stop(signal); }

void Agent::request_drain(int signal, Duration limit) { impl_->request_drain(signal, limit); }

void Agent::forward(int signal) { impl_->forward(signal); }

bool Agent::is_in_child() const { return impl_->is_in_child(); }

const AgentResult& Agent::result() const { return impl_->result(); }

}  // namespace elastic
