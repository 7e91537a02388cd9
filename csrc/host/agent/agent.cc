#include "elastic/agent.h"

#include <utility>

#include "host/agent/agent_runner.h"
#include "host/base/event_thread.h"
#include "os/base/process.h"
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
  for (const NodeCheck& check : options.node_checks) {
    if (check.argv.empty() || check.argv.front().empty()) {
      return invalid("the check " + check.name + " has no program");
    }
  }
  if (options.node_check_timeout <= Duration::zero()) {
    return invalid("node_check_timeout must be greater than 0");
  }
  if (options.worker_ports.last < options.worker_ports.first) {
    return invalid("worker_ports: the last port is below the first");
  }
  // Other nodes get it cut: two roles with one beginning would be one role.
  if (options.role.size() > kNodeTextBytesMax) {
    return invalid("role: longer than " + std::to_string(kNodeTextBytesMax) + " bytes");
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
  // Every node of a job and every worker may connect to this process.
  const os::RaisedDescriptorLimit descriptors;
  std::unique_ptr<host::EventThread<host::AgentRunner, AgentEvent>> thread;
  bool is_finished = false;  // next_event() returned kFinished
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
  auto impl = std::make_unique<Impl>();
  auto thread = host::EventThread<host::AgentRunner, AgentEvent>::start(
      "elastic-agent", [&](os::EventLoop* loop, std::function<void(AgentEvent)> sink) {
        return host::AgentRunner::start(loop, options, std::move(sink));
      });
  if (!thread.ok()) return thread.status();
  impl->thread = *std::move(thread);
  return std::unique_ptr<Agent>(new Agent(std::move(impl)));
}

Agent::Agent(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Agent::~Agent() = default;

std::optional<AgentEvent> Agent::next_event(Instant deadline,
                                            const std::function<bool()>& interrupted) {
  if (impl_->is_finished) return std::nullopt;
  std::optional<AgentEvent> event = impl_->thread->next_event(deadline, interrupted);
  impl_->is_finished = event && event->kind == AgentEvent::Kind::kFinished;
  return event;
}

void Agent::wake() { impl_->thread->wake(); }

void Agent::request_stop(int signal) {
  impl_->thread->post([signal](host::AgentRunner& node) { node.request_stop(signal); });
}

void Agent::request_drain(int signal, Duration limit) {
  impl_->thread->post([=](host::AgentRunner& node) { node.request_drain(signal, limit); });
}

void Agent::advise(std::uint64_t round, int local_rank, std::optional<FailureAdvice> advice) {
  impl_->thread->post([=, advice = std::move(advice)](host::AgentRunner& node) {
    node.advise(round, local_rank, advice);
  });
}

void Agent::forward(int signal) {
  impl_->thread->post([signal](host::AgentRunner& node) { node.forward(signal); });
}

bool Agent::is_in_child() const { return impl_->thread->is_in_child(); }

const AgentResult& Agent::result() const { return impl_->thread->object().result(); }

}  // namespace elastic
