#include "core/gate/host_memory.h"

#include <algorithm>

#include "core/base/fields.h"
#include "core/base/text.h"

namespace elastic::gate {
namespace {

std::string one_line(std::string_view text, std::size_t limit) {
  return core::to_printable(text, core::Lines::kOne, limit);
}

Duration exclusion(int times) {
  constexpr int kDoublings = 5;  // more than a day
  return std::min(kLongestExclusion, kFirstExclusion * (1 << std::clamp(times - 1, 0, kDoublings)));
}

}  // namespace

std::string describe(const HostAction& action) {
  if (const auto* one = std::get_if<Excluded>(&action)) {
    return "host " + one->host + " is excluded for " + core::duration_text(one->duration) + ": " +
           one->why;
  }
  const auto& one = std::get<Readmitted>(action);
  return "host " + one.host + " is no longer excluded: " + one.why;
}

void HostMemory::step(const HostEvent& event, Instant now, std::vector<HostAction>* actions) {
  std::visit([&](const auto& one) { on(one, now, actions); }, event);
}

void HostMemory::on(const Exclude& event, Instant now, std::vector<HostAction>* actions) {
  if (event.host.empty()) return;
  Host& host = remember(event.host, event.why, now);
  if (host.until && now - host.since < kSameFault) return;
  host.times = std::min(host.times + 1, kTimesMax);
  host.why = host.notes.back().text;
  host.since = now;
  const Duration duration = exclusion(host.times);
  host.until = add_saturating(now, duration);
  ++version_;
  const std::string name = one_line(event.host, kHostBytesMax);
  actions->push_back(Excluded{name, duration, host.why, evidence(name), host.times});
}

// Who readmits a host has mended it: the next exclusion is a first one.
void HostMemory::on(const Readmit& event, Instant, std::vector<HostAction>* actions) {
  const auto found = hosts_.find(event.host);
  if (found == hosts_.end()) return;
  const bool was_excluded = found->second.until.has_value();
  hosts_.erase(found);
  if (!was_excluded) return;
  ++version_;
  actions->push_back(Readmitted{event.host, event.by});
}

void HostMemory::on(const Finding& event, Instant now, std::vector<HostAction>* actions) {
  const std::string what = "check " + event.check + ": " + to_string(event.verdict) +
                           (event.reason.empty() ? "" : ": " + event.reason);
  if (event.verdict == Verdict::kBad) return on(Exclude{event.host, what}, now, actions);
  // Every good check of every node is not worth a place.
  if (event.verdict == Verdict::kUnknown || hosts_.contains(event.host)) {
    remember(event.host, what, now);
  }
}

void HostMemory::on(const Expire&, Instant now, std::vector<HostAction>* actions) {
  for (auto one = hosts_.begin(); one != hosts_.end();) {
    Host& host = one->second;
    if (host.until && now >= *host.until) {
      host.known_at = *host.until;
      host.until.reset();
      ++version_;
      actions->push_back(Readmitted{one->first, "its time is over"});
    }
    const bool is_forgotten = !host.until && now - host.known_at >= kForgottenAfter;
    one = is_forgotten ? hosts_.erase(one) : std::next(one);
  }
}

HostMemory::Host& HostMemory::remember(const std::string& name, const std::string& note,
                                       Instant now) {
  const auto [found, is_new] = hosts_.try_emplace(one_line(name, kHostBytesMax));
  if (is_new && hosts_.size() > kHostsMax) make_room(found->first);
  Host& host = found->second;
  host.notes.push_back({one_line(note, kNoteBytesMax), now});
  if (host.notes.size() > kNotesMax) host.notes.erase(host.notes.begin());
  host.known_at = now;
  return host;
}

// The host that was not excluded, and of which nothing was heard for longest; else the one that is
// excluded for the shortest time.
void HostMemory::make_room(const std::string& added) {
  const auto value = [](const Host& host) {
    return std::pair(host.until.has_value(), host.until.value_or(host.known_at));
  };
  auto least = hosts_.end();
  for (auto one = hosts_.begin(); one != hosts_.end(); ++one) {
    if (one->first == added) continue;
    if (least == hosts_.end() || value(one->second) < value(least->second)) least = one;
  }
  if (least->second.until) {
    ++version_;
    pending_.push_back(Readmitted{least->first, "too many hosts are excluded"});
  }
  hosts_.erase(least);
}

const HostMemory::Host* HostMemory::find_excluded(std::string_view host) const {
  const auto found = hosts_.find(host);
  return found == hosts_.end() || !found->second.until ? nullptr : &found->second;
}

std::vector<Exclusion> HostMemory::excluded(Instant now) const {
  std::vector<Exclusion> all;
  for (const auto& [name, host] : hosts_) {
    if (!host.until) continue;
    all.push_back({name, std::max(*host.until - now, Duration::zero()), host.why, host.times});
  }
  return all;
}

std::vector<Found> HostMemory::found(Instant now, std::size_t limit) const {
  std::vector<Found> all;
  for (const auto& [name, host] : hosts_) {
    for (auto note = host.notes.rbegin(); note != host.notes.rend(); ++note) {
      if (all.size() == limit) return all;
      all.push_back({name, note->text, now - note->at});
    }
  }
  return all;
}

std::string HostMemory::evidence(std::string_view host) const {
  std::string lines;
  const auto found = hosts_.find(host);
  if (found == hosts_.end()) return lines;
  const std::vector<Note>& notes = found->second.notes;
  for (auto note = notes.rbegin(); note != notes.rend(); ++note) lines += note->text + "\n";
  return lines;
}

std::string HostMemory::why_excluded(std::string_view host) const {
  const Host* const found = find_excluded(host);
  return found == nullptr ? "" : found->why;
}

void HostMemory::exclude(const std::string& host, const std::string& why, Instant now) {
  on(Exclude{host, why}, now, &pending_);
}

bool HostMemory::has_been_excluded() const {
  return std::ranges::any_of(hosts_, [](const auto& one) { return one.second.times > 0; });
}

bool HostMemory::expire(Instant now) {
  const std::uint64_t before = version_;
  on(Expire{}, now, &pending_);
  return version_ != before;
}

Instant HostMemory::next_expiry() const {
  Instant next = Instant::max();
  for (const auto& [name, host] : hosts_) next = std::min(next, host.until.value_or(next));
  return next;
}

// A host as bytes: durations, and of the end also the time of day.
struct HostMemory::Codec {
  template <typename Visitor>
  static void past(Visitor& v, Instant& at, Instant now) {
    Duration age{};
    if constexpr (Visitor::kIsWriter) age = std::max(now - at, Duration::zero());
    v.duration(age);
    v.check(age >= Duration::zero());
    if constexpr (!Visitor::kIsWriter) at = now - age;
  }

  template <typename Visitor>
  static void visit(Visitor& v, Host& host, Instant now, std::int64_t epoch) {
    v.list(host.notes, kNotesMax, [&](Note& note) {
      v.text(note.text, kNoteBytesMax);
      past(v, note.at, now);
    });
    v.number(host.times);
    v.check(host.times >= 0 && host.times <= kTimesMax);
    v.text(host.why, kNoteBytesMax);
    past(v, host.since, now);
    past(v, host.known_at, now);
    std::optional<Duration> left;
    std::int64_t ends = 0;  // nanoseconds since 1970; 0: unknown
    if constexpr (Visitor::kIsWriter) {
      if (host.until) left = std::max(*host.until - now, Duration::zero());
      if (host.until && epoch != 0) ends = epoch + host.until->time_since_epoch().count();
    }
    v.optional(left, [&](Duration& value) { v.duration(value); });
    v.number(ends);
    if constexpr (!Visitor::kIsWriter) {
      if (!left) return;
      Duration rest = std::clamp(*left, Duration::zero(), kLongestExclusion);
      const std::int64_t today = epoch + now.time_since_epoch().count();
      // A clock that is wrong does not make it longer.
      if (epoch != 0 && ends > 0 && today > 0) {
        rest = std::clamp(Duration(ends - today), Duration::zero(), rest);
      }
      host.until = now + rest;
    }
  }
};

std::string HostMemory::encode(Instant now) const {
  std::string bytes;
  if (hosts_.empty()) return bytes;
  core::FieldWriter writer(&bytes);
  Hosts copy = hosts_;
  writer.list(copy, kHostsMax, [&](auto& one) {
    std::string name = one.first;
    writer.name(name, kHostBytesMax);
    Codec::visit(writer, one.second, now, epoch_);
  });
  return bytes;
}

bool HostMemory::decode(std::string_view bytes, Instant now) {
  std::vector<std::pair<std::string, Host>> read;
  if (!bytes.empty()) {
    core::FieldReader reader(bytes);
    reader.list(read, kHostsMax, [&](auto& one) {
      reader.name(one.first, kHostBytesMax);
      Codec::visit(reader, one.second, now, epoch_);
    });
    if (!reader.ok()) return false;
  }
  hosts_.clear();
  for (auto& one : read) hosts_.insert(std::move(one));
  ++version_;
  return true;
}

}  // namespace elastic::gate
