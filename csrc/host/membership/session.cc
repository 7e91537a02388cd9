#include "host/membership/session.h"

#include <utility>

#include "core/base/join_address.h"
#include "core/base/text.h"
#include "elastic/agent.h"
#include "host/base/admission.h"
#include "host/base/loopback_name.h"
#include "os/base/process.h"
#include "os/loop/event_loop.h"
#include "os/net/address.h"

// Theory of operation. Every callback becomes an event of the machine, whose actions are executed
// in order. Messages are handled one by one, so that the node has received each of them before the
// machine sees the next. A statement that the node makes while it receives something follows the
// actions that led to it; it only adds to the connection's output, which is sent at the end of the
// iteration.
//
// A new connection may be opened while an old one is silent. The old one is closed after the first
// messages of the new one were sent, so the coordinator never sees the node without a session.

namespace elastic::host {
namespace {

// A coordinator that reads nothing is replaced or given up before this is full.
constexpr std::size_t kUnsentBytesMax = 4 << 20;

std::string endpoint_text(const RendezvousOptions& options) {
  if (options.backend != nullptr) return options.backend->name();
  return core::join_address(options.endpoint_host, options.endpoint_port);
}

std::vector<std::string> texts_of(const std::vector<Endpoint>& endpoints) {
  std::vector<std::string> texts;
  texts.reserve(endpoints.size());
  for (const Endpoint& one : endpoints) texts.push_back(core::join_address(one.host, one.port));
  return texts;
}

// Where a coordinator is looked for, as messages show it.
std::vector<std::string> places_of(const RendezvousOptions& options) {
  if (options.backend != nullptr) return {endpoint_text(options)};
  return texts_of(endpoints_of(options));
}

MembershipEvent event_of(session::StoreClients message) {
  return MembershipStoreClients{message.round, std::move(message.addresses)};
}
MembershipEvent event_of(session::WatchWorkers message) { return MembershipWatch{message.is_on}; }
template <typename OfExtension>
MembershipEvent event_of(OfExtension message) {
  return message;
}

}  // namespace

Result<std::unique_ptr<Session>> Session::open(os::EventLoop* loop,
                                               const RendezvousOptions& options,
                                               const std::string& run_id, Sink sink,
                                               std::uint16_t liveness_port) {
  if (run_id.size() > session::kJobIdBytesMax) {
    return Status(StatusCode::kInvalidArgument,
                  "run_id: longer than " + std::to_string(session::kJobIdBytesMax) + " bytes");
  }
  if (!core::is_printable(run_id, core::Lines::kOne)) {
    return Status(StatusCode::kInvalidArgument,
                  "run_id: not printable UTF-8; use letters, digits and punctuation");
  }
  std::unique_ptr<Session> self(new Session(loop, options, run_id, std::move(sink), liveness_port));
  auto tokens = open_tokens(
      options.token, [raw = self.get()](const std::string& line) { raw->log_progress(line); });
  if (!tokens.ok()) return tokens.status();
  self->tokens_ = *std::move(tokens);
  if (Status status = self->begin(); !status.ok()) return status;
  return self;
}

Session::Session(os::EventLoop* loop, const RendezvousOptions& options, const std::string& run_id,
                 Sink sink, std::uint16_t liveness_port)
    : loop_(loop),
      options_(options),
      liveness_port_(liveness_port),
      run_id_(run_id),
      endpoints_(endpoints_of(options)),
      sink_(std::move(sink)),
      machine_(options.settings, places_of(options), os::random_seed()),
      secret_{os::random_seed(), os::random_seed()},
      hosting_(
          loop, options, run_id, endpoint_text(options),
          [this](const std::string& message) { log_progress(message); },
          [this](const std::string& line) { notify(MembershipCoordinatorLog{line}); }),
      succession_(make_succession_part(
          loop, options, run_id, &hosting_,
          {.move = [this](const std::string& address) { feed(Machine::CoordinatorMoved{address}); },
           .displace = [this](const std::string& address,
                              const std::string& reason) { join_elsewhere(address, reason); },
           .log = [this](const std::string& message) { log_progress(message); },
           .log_detail =
               [this](const std::string& message) { notify(MembershipCoordinatorLog{message}); },
           .coordinator = [this](const MembershipCoordinator& now) { notify(now); },
           .lost =
               [this](int exit_code, const std::string& reason) {
                 feed(Machine::CoordinatorExpired{reason, exit_code});
               }})),
      route_(endpoints_.size()),
      connections_(std::make_shared<PeerGroup>(loop, kUnsentBytesMax, 2 * kUnsentBytesMax)),
      stall_watch_(loop, [this](const auto& stall) { feed(Machine::ClockGap{stall.late}); }),
      timer_(loop, [this] { on_timer(); }) {}

Session::~Session() {
  // The final messages are sent first, so that a node that leaves does not look like a crashed one.
  if (link_ != nullptr) link_->flush();
}

Status Session::begin() {
  if (options_.local_addr.empty()) return begin_succession();
  auto lookup = os::NameLookup::start(loop_, options_.local_addr, 0,
                                      [this](const auto& found) { local_address_found(found); });
  if (!lookup.ok()) return lookup.status();
  local_lookup_ = *std::move(lookup);
  return {};
}

void Session::local_address_found(const Result<std::vector<os::SocketAddress>>& found) {
  if (!found.ok()) {
    notify(MembershipLost{kExitUsage, "local_addr: " + std::string(found.status().message())});
    return;
  }
  local_address_ = found->front().host();
  const Status status = begin_succession();
  if (!status.ok()) notify(MembershipLost{kExitInternal, std::string(status.message())});
}

Status Session::begin_succession() {
  const auto address = [this](const std::string& known) {
    if (local_address_.empty()) local_address_ = known;
    if (local_address_.empty()) local_address_ = os::primary_address();
    if (local_address_.empty()) local_address_ = "127.0.0.1";
    return local_address_;
  };
  return succession_->begin({.tokens = tokens_, .address = address, .ready = [this] { search(); }});
}

void Session::search() {
  std::vector<Machine::Action> actions;
  machine_.begin(loop_->now(), &actions);
  carry_out(std::move(actions));
}

void Session::feed(const Machine::Event& event) {
  std::vector<Machine::Action> actions;
  machine_.step(event, loop_->now(), &actions);
  carry_out(std::move(actions));
}

void Session::carry_out(std::vector<Machine::Action> actions) {
  const bool is_outer = actions_.run(std::move(actions), [this](Machine::Action& action) {
    std::visit([this](auto& one) { execute(std::move(one)); }, action);
  });
  if (!is_outer) return;
  if (const auto next = machine_.next_deadline()) {
    timer_.arm(*next);
  } else {
    timer_.disarm();
  }
}

void Session::execute(Machine::Connect action) {
  if (link_ != nullptr) succession_->session_silent(machine_.settings());
  start_attempt(action);
}

void Session::execute(Machine::Disconnect action) {
  if (action.is_loss) succession_->session_closed(machine_.settings(), link_->round_trip());
  link_->close();
  retire(connections_, std::move(link_));
}

void Session::execute(Machine::SendReport action) {
  std::visit([this](auto& one) { link_->send(std::move(one)); }, action.report);
}

void Session::execute(Machine::Lost action) {
  if (link_ != nullptr) link_->close();
  notify(MembershipLost{action.exit_code, action.message});
}

void Session::execute(Machine::EndCoordinator action) {
  if (!hosting_.is_host()) return feed(Machine::EndStepDone{});
  hosting_.drain(action.limit, {action.reason, action.gave_up},
                 [this] { feed(Machine::EndStepDone{}); });
}

void Session::execute(Machine::ReleaseRecord) {
  succession_->release([this] { feed(Machine::EndStepDone{}); });
}

// ---- Connections.

// What the session waits for may have changed since the attempt was delayed.
void Session::on_timer() {
  if (route_.awaits_record()) feed(Machine::AttemptDelayed{succession_->why_unrecorded()});
  feed(Machine::Tick{});
}

void Session::start_attempt(const Machine::Connect& connect) {
  // It begins when the record names a coordinator (CoordinatorMoved).
  const bool begins =
      route_.begin(connect.endpoint, connect.address, succession_->recorded_address());
  if (!begins) return feed(Machine::AttemptDelayed{succession_->why_unrecorded()});
  const std::string& address = route_.address();
  const auto moved = address.empty() ? std::nullopt : os::parse_address_and_port(address);
  const Endpoint& endpoint =
      endpoints_[connect.endpoint < endpoints_.size() ? connect.endpoint : 0];
  std::optional<os::SocketAddress> last_good = moved;
  // The coordinator may have moved to this process since.
  if (!moved && !hosting_.is_serving()) last_good = route_.last_good();
  attempt_ = std::make_unique<SessionAttempt>(
      connections_.get(),
      SessionAttempt::Options{.host = moved ? moved->host() : endpoint.host,
                              .port = moved ? moved->port() : endpoint.port,
                              .last_good = last_good,
                              .limit = machine_.attempt_limit(),
                              .pace = machine_.attempt_pace(os::Dialer::kPace),
                              .node_timeout = machine_.settings().node_timeout,
                              .tokens = tokens_,
                              .job_id = run_id_},
      SessionAttempt::Sink{
          .route = [this, is_moved = moved.has_value(),
                    port = endpoint.port](const auto& found) -> SessionAttempt::Route {
            if (is_moved && found.ok()) {
              const bool is_here = options_.backend != nullptr && hosting_.is_serving();
              return is_here ? hosting_.own_addresses() : *found;
            }
            auto route =
                route_.is_further() ? hosting_.route_further(found, port) : route_first(found);
            if (auto* const addresses = std::get_if<SessionAttempt::Addresses>(&route)) {
              *addresses = route_.order(std::move(*addresses));
            }
            return route;
          },
          .on_delay = [this](const Status& so_far) { feed(Machine::AttemptDelayed{so_far}); },
          .done = [this](auto outcome) { attempt_done(std::move(outcome)); }});
}

void Session::attempt_done(std::variant<os::DetachedStream, SessionAttempt::Failure> outcome) {
  const std::string peer = attempt_->peer();
  retire(connections_, std::move(attempt_));
  if (auto* failure = std::get_if<SessionAttempt::Failure>(&outcome)) {
    route_.failed(peer, failure->why.code() == StatusCode::kPeerViolation);
    // Nothing listens there, or something else does: the record is old.
    if (options_.backend != nullptr && (failure->is_foreign || os::is_refusal(failure->why))) {
      succession_->coordinator_absent(route_.address(), false);
    }
    failure->has_others =
        route_.has_untried() || (options_.backend != nullptr && failure->is_foreign);
    if (!machine_.was_connected() && !machine_.is_final(*failure)) {
      failure->why = hosting_.explain(failure->why);
    }
    feed(*failure);
    return;
  }
  install(std::get<os::DetachedStream>(std::move(outcome)));
}

void Session::install(os::DetachedStream connection) {
  const os::SocketAddress peer = os::peer_end(connection.fd.get());
  auto link = SessionLink::open(connections_.get(), std::move(connection),
                                {.on_message = [this](const auto& message) { on_message(message); },
                                 .on_lost = [this](const Status& why) { on_lost(why); }});
  if (!link.ok()) {
    feed(Machine::AttemptFailed{link.status(), std::nullopt});
    return;
  }
  std::unique_ptr<SessionLink> old = std::exchange(link_, *std::move(link));
  link_peer_ = peer;
  route_.connected(peer);
  hosting_.fix_role();
  counts_ = {};
  const bool is_first = !machine_.was_connected();
  succession_->session_connected();
  feed(Machine::Connected{});
  link_->flush();
  old.reset();
  if (is_first) notify(MembershipReady{published_address(), hosting_.is_host()});
}

// Nodes that try a further endpoint of this host are directed to the coordinator.
void Session::stand_by() {
  if (std::exchange(has_stood_by_, true) || hosting_.is_host()) return;
  for (std::size_t i = succession_->is_enabled() ? 0 : 1; i < endpoints_.size(); ++i) {
    const auto use = [this, i](const auto& found) {
      if (i == 0) return hosting_.stand_by_first(found, local_address_);
      hosting_.stand_by(found, endpoints_[i].port, local_address_);
    };
    auto lookup = os::NameLookup::start(loop_, endpoints_[i].host, endpoints_[i].port, use);
    if (lookup.ok()) endpoint_lookups_.push_back(*std::move(lookup));
  }
}

void Session::on_lost(const Status& why) {
  succession_->session_closed(machine_.settings(), link_->round_trip());
  retire(connections_, std::move(link_));
  feed(Machine::ConnectionLost{why});
}

// ---- Messages.

void Session::send(const core::NodeStatement& statement) {
  if (const auto* join = std::get_if<rdzv::Join>(&statement)) {
    rdzv::Join with_host = *join;
    with_host.node.hosts_coordinator = hosting_.is_serving();
    succession_->introduce(with_host.node, machine_.settings());
    feed(Machine::Submit{with_host});
  } else {
    feed(Machine::Submit{statement});
  }
}

void Session::drain(Duration limit, std::function<void()> done) {
  on_drained_ = std::move(done);
  succession_->end();
  feed(Machine::End{limit, run_id_});
}

void Session::introduce(const core::NodeInfo& node) {
  succession_->introduce(node, machine_.settings());
  feed(Machine::Introduce{node.id});
}

void Session::execute(Machine::SendHello action) {
  session::ClientHello hello{.capabilities = session::kOpensPorts,
                             .term = action.term,
                             .job_id = run_id_,
                             .node = action.node,
                             .secret = secret_,
                             .attempt = action.attempt};
  succession_->complete(&hello);
  if (endpoints_.size() > 1) hello.endpoints = texts_of(endpoints_);
  if (liveness_port_ != 0) hello.liveness_port = liveness_port_;
  link_->send(hello);
}

void Session::execute(Machine::Send action) {
  std::visit(
      [this](auto& one) {
        if constexpr (std::is_constructible_v<session::ClientMessage, decltype(one)>) {
          link_->send(std::move(one));
        }
      },
      action.event);
}

void Session::on_message(const session::ServerMessage& message) {
  std::vector<Machine::Action> actions;
  machine_.receive(message, loop_->now(), &actions);
  carry_out(std::move(actions));
}

void Session::execute(Machine::CoordinatorFound action) {
  route_.found(link_peer_);
  note_host(action.host_job);
  succession_->session_opened(action.incarnation, action.term, coordinator_address());
  hosting_.note_coordinator(link_peer_.text());
  stand_by();
}

void Session::execute(Machine::CoordinatorNamed action) {
  const std::string& address = action.it.incumbent.address;
  if (!address.empty()) hosting_.note_coordinator(address);
  succession_->informed(action.it.incumbent);
}

void Session::execute(Machine::Directed action) {
  const std::string address =
      succession_->sent_elsewhere(action.to.incumbent, action.was_coordinator);
  succession_->coordinator_absent(link_peer_.text(), true);
  if (address.empty()) route_.misdirected();
  feed(Machine::CoordinatorMoved{address});
}

void Session::execute(Machine::PortsWanted action) {
  link_->send(succession_->open_ports(action.request.coordinator));
}

void Session::execute(Machine::JobCounts action) {
  counts_ = action.counts;
  succession_->set_spares(counts_.spare_nodes);
}

void Session::execute(Machine::Inform action) {
  notify(std::visit([](auto& one) { return event_of(std::move(one)); }, action.message));
}

// The job of this node has dissolved.
void Session::join_elsewhere(const std::string& address, const std::string& reason) {
  log_progress("this node joins the job elsewhere: " + reason);
  feed(Machine::Displaced{address, reason});
}

// A coordinator of this job may begin here when the one in another job's agent has ended.
std::variant<Hosting::Addresses, Hosting::Failure> Session::route_first(
    const Result<Hosting::Addresses>& found) {
  const bool was_host = hosting_.is_host();
  auto route = hosting_.route(found, route_.may_host());
  if (!was_host && hosting_.is_host()) succession_->hosting_began();
  return route;
}

// A coordinator in another job's agent.
void Session::note_host(const std::optional<std::string>& job) {
  if (!job) return;
  hosting_.release_role();
  if (std::exchange(host_job_noted_, *job) == *job) return;
  log_progress(
      "the coordinator at " + endpoint_text(options_) + " runs in an agent of job " + *job +
      ": when that agent ends in order, a node of job " + run_id_ +
      " runs its coordinator, and when it is killed, an agent of this job on its host, if there "
      "is one; use another endpoint to keep the jobs apart");
}

void Session::execute(Machine::Deliver action) {
  std::visit(
      [this](const auto& one) {
        if constexpr (std::is_constructible_v<MembershipEvent, decltype(one)>) notify(one);
        if constexpr (std::is_same_v<std::decay_t<decltype(one)>, rdzv::Round>) {
          succession_->round_started(*one.record, one.own.group_rank);
        } else if constexpr (std::is_same_v<std::decay_t<decltype(one)>, rdzv::Closed>) {
          succession_->job_ended();
        }
      },
      action.action);
}

// ---- The address at which others reach this node.

std::string Session::published_address() const {
  if (!local_address_.empty()) return local_address_;
  if (!link_->local().is_loopback() || is_loopback_name(options_.endpoint_host)) {
    return link_->local().host();
  }
  // The endpoint is on this host, and its name resolves to another address on other hosts.
  const std::string primary = os::primary_address();
  return primary.empty() ? link_->local().host() : primary;
}

std::string Session::coordinator_address() const {
  return hosting_.is_serving() ? hosting_.address(published_address()) : link_peer_.text();
}

}  // namespace elastic::host
