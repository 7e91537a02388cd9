#include "host/gate/ended_hosts.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>

#include "os/loop/clock.h"

namespace elastic::host {
namespace {

constexpr std::size_t kJobsMax = 256;

std::int64_t epoch(Instant now) { return os::wall_time(now) - now.time_since_epoch().count(); }

bool is_needed(gate::HostMemory& hosts, Instant now) {
  hosts.expire(now);
  return hosts.has_been_excluded();
}

}  // namespace

void EndedHosts::keep(const std::string& job, const gate::HostMemory& hosts, Instant now) {
  for (auto one = jobs_.begin(); one != jobs_.end();) {
    one = is_needed(one->second, now) ? std::next(one) : jobs_.erase(one);
  }
  gate::HostMemory kept = hosts;
  if (is_needed(kept, now) && jobs_.size() < kJobsMax) jobs_[job] = std::move(kept);
}

gate::HostMemory EndedHosts::take(const std::string& job, Instant now) {
  gate::HostMemory hosts;
  if (auto kept = jobs_.extract(job); !kept.empty()) hosts = std::move(kept.mapped());
  hosts.set_epoch(epoch(now));
  return hosts;
}

EndedHosts::Stored EndedHosts::stored(Instant now) const {
  Stored all;
  for (auto [job, hosts] : jobs_) {
    if (is_needed(hosts, now)) all.push_back({job, hosts.encode(now)});
  }
  return all;
}

Status EndedHosts::load(const Stored& stored, Instant now) {
  for (const auto& [job, bytes] : stored) {
    gate::HostMemory hosts;
    hosts.set_epoch(epoch(now));
    if (!hosts.decode(bytes, now)) {
      return {StatusCode::kPeerViolation, "the state is damaged"};
    }
    keep(job, hosts, now);
  }
  return {};
}

}  // namespace elastic::host
