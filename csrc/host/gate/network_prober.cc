#include "host/gate/network_prober.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/text.h"
#include "core/gate/probe_exchange.h"
#include "host/base/framed_peer.h"
#include "host/succession/voter_links.h"
#include "os/loop/event_loop.h"

// Theory of operation. Connections and frames are those of the voters, with the token and the
// encryption of the job where it has one; gate::ProbeClient and gate::ProbeServer have the rest.
// Connections that this node has opened have answers to its own measurement, and the others have
// questions. The last ones may come from any node of the job: whom it answers is bounded by the
// limits of the links, and what it sends by those of a ProbeServer.

namespace elastic::host {
namespace {

VoterLinkLimits limits() {
  VoterLinkLimits limits;
  limits.connect_timeout = std::chrono::milliseconds(1500);
  limits.greeting_timeout = std::chrono::seconds(2);
  limits.accepted_max = 16;
  limits.unsent_bytes_max = 4 * gate::kProbeWindow;
  limits.buffered_bytes_max = 64 * gate::kProbeWindow;
  return limits;
}

}  // namespace

class NetworkProber::Worker {
 public:
  using Report = std::function<void(const gate::ProbeReport&)>;
  using Log = std::function<void(const std::string&)>;

  Worker(os::EventLoop* loop, const Options& options, std::shared_ptr<Tokens> tokens, Report report,
         Log log)
      : loop_(*loop),
        report_(std::move(report)),
        links_(loop, options.job_id, std::move(tokens), limits(),
               {.on_frame = [this](ConnectionId from, const std::string& address,
                                   std::string_view frame) { on_frame(from, address, frame); },
                .on_lost =
                    [this](const std::string& address, const Status& why) {
                      if (!client_ || address != order_.address) return;
                      client_->lost(std::string(why.message()));
                      follow();
                    },
                .log = std::move(log),
                .on_ended = [this](ConnectionId connection) { servers_.erase(connection); }}),
        deadline_(loop, [this] {
          if (client_) client_->tick(loop_.now());
          follow();
        }) {}

  Status listen(const Options& options) { return links_.listen(options.bind_host, options.ports); }
  std::uint16_t port() const { return links_.port(); }

  void on_order(const gate::ProbeOrder& order) {
    order_ = order;
    client_.emplace(++runs_, std::clamp(order.limit, Duration::zero(), gate::kProbeOrderLimit),
                    loop_.now());
    follow();
  }

 private:
  using ConnectionId = VoterLinks::ConnectionId;

  void on_frame(ConnectionId from, const std::string& address, std::string_view bytes) {
    const auto message = gate::decode_probe(bytes);
    if (!message) return;
    if (address.empty()) {
      for (const std::string& one : servers_[from].receive(*message)) links_.send(from, "", one);
    } else if (client_ && address == order_.address) {
      client_->receive(*message, loop_.read_clock());
      follow();
    }
  }

  void follow() {
    if (!client_) return;
    for (const std::string& one : client_->take()) links_.send(0, order_.address, one);
    if (!client_->result()) return deadline_.arm(*client_->next_deadline());
    deadline_.disarm();
    const gate::ProbeResult result = *client_->result();
    client_.reset();
    report_({.check = order_.check,
             .round = order_.round,
             .has_answered = result.has_answered,
             .bytes_per_second = static_cast<std::uint64_t>(result.bytes_per_second),
             .latency = result.latency,
             .error = core::to_printable(result.error, core::Lines::kOne, gate::kProbeErrorMax)});
  }

  os::EventLoop& loop_;
  const Report report_;
  VoterLinks links_;
  std::map<ConnectionId, gate::ProbeServer> servers_;
  std::uint64_t runs_ = 0;
  gate::ProbeOrder order_;
  std::optional<gate::ProbeClient> client_;
  os::Timer deadline_;
};

NetworkProber::NetworkProber(std::shared_ptr<Sink> sink,
                             std::unique_ptr<os::LoopObject<Worker>> worker)
    : sink_(std::move(sink)), worker_(std::move(worker)) {}
NetworkProber::~NetworkProber() = default;

Result<std::unique_ptr<NetworkProber>> NetworkProber::open(os::EventLoop* loop, Options options,
                                                           Sink sink) {
  auto kept = std::make_shared<Sink>(std::move(sink));
  const std::weak_ptr<Sink> target = kept;
  const auto log = [loop, target](const std::string& text) {
    loop->post([target, text] {
      if (const auto open = target.lock()) open->log(text);
    });
  };
  const auto report = [loop, target](const gate::ProbeReport& one) {
    loop->post([target, one] {
      if (const auto open = target.lock()) open->report(one);
    });
  };
  const auto create = [&](os::EventLoop* own) -> Result<std::unique_ptr<Worker>> {
    auto tokens = open_tokens(options.token, log);
    if (!tokens.ok()) return tokens.status();
    auto made = std::make_unique<Worker>(own, options, *std::move(tokens), report, log);
    if (Status status = made->listen(options); !status.ok()) return status;
    return made;
  };
  auto worker = os::LoopObject<Worker>::start("el-probe", create, loop->clock());
  if (!worker.ok()) return worker.status();
  return std::unique_ptr<NetworkProber>(new NetworkProber(std::move(kept), *std::move(worker)));
}

std::uint16_t NetworkProber::port() const { return worker_->object().port(); }

void NetworkProber::on_order(const gate::ProbeOrder& order) {
  worker_->post([order](Worker& worker) { worker.on_order(order); });
}

}  // namespace elastic::host
