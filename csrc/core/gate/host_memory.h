#pragma once

// What a job remembers of hosts: what was found on them, and which are excluded until when. A host
// is excluded for an hour, twice as long each further time, and at most for a day.
//
//   gate::HostMemory hosts;
//   std::vector<gate::HostAction> actions;
//   hosts.step(gate::Exclude{"n7", "an operator: fan"}, now, &actions);
//
// Pure: (event, now) to actions. `now` never decreases. The rendezvous asks through core::HostGate,
// and its rules exclude through it; take_actions() has what followed from that.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/gate/finding.h"
#include "core/rendezvous/host_gate.h"
#include "elastic/time.h"

namespace elastic::gate {

inline constexpr Duration kFirstExclusion = std::chrono::hours(1);
inline constexpr Duration kLongestExclusion = std::chrono::hours(24);
// Of one fault there are several witnesses: further exclusions of the host count as the same one.
inline constexpr Duration kSameFault = std::chrono::minutes(1);
// A host that is not excluded is forgotten this long after the last that is known of it.
inline constexpr Duration kForgottenAfter = std::chrono::hours(24);
inline constexpr std::size_t kHostsMax = 256;  // further ones replace those that matter least
inline constexpr std::size_t kNotesMax = 4;    // of one host: the newest
inline constexpr std::size_t kNoteBytesMax = 255;
inline constexpr int kTimesMax = 64;

// ---- Events.

struct Exclude {
  std::string host;
  std::string why;  // one phrase, with who says it
};
struct Readmit {
  std::string host;
  std::string by;
};
// A bad finding excludes its host. Finding: finding.h
struct Expire {};
using HostEvent = std::variant<Exclude, Readmit, Finding, Expire>;

// ---- Actions: for messages, and for what the owner runs.

struct Excluded {
  std::string host;
  Duration duration{};
  std::string why;
  std::string evidence;  // what was found on the host, newest first, one line each
  int times = 1;         // that it was excluded, with this one

  bool operator==(const Excluded&) const = default;
};
struct Readmitted {
  std::string host;
  std::string why;  // "its time is over"

  bool operator==(const Readmitted&) const = default;
};
using HostAction = std::variant<Excluded, Readmitted>;

std::string describe(const HostAction& action);  // one sentence, for logs

// A host that is excluded now.
struct Exclusion {
  std::string host;
  Duration left{};
  std::string why;
  int times = 1;

  bool operator==(const Exclusion&) const = default;
};

// What was found on a host: by a check, by a rule, or by an operator.
struct Found {
  std::string host;
  std::string text;
  Duration age{};

  bool operator==(const Found&) const = default;
};

class HostMemory final : public core::HostGate {
 public:
  void step(const HostEvent& event, Instant now, std::vector<HostAction>* actions);
  // The same, with the actions for take_actions().
  void feed(const HostEvent& event, Instant now) { step(event, now, &pending_); }
  // Of feed(), and of what the calls of HostGate caused, since the last call.
  std::vector<HostAction> take_actions() { return std::exchange(pending_, {}); }
  // Not 0. Changes with each exclusion and its end.
  std::uint64_t version() const { return version_; }

  std::vector<Exclusion> excluded(Instant now) const;  // by host
  bool is_excluded(std::string_view host) const { return find_excluded(host) != nullptr; }
  // Whether a host that is remembered was excluded at some time.
  bool has_been_excluded() const;
  // What was found on all hosts: by host, newest first; at most so many.
  std::vector<Found> found(Instant now, std::size_t limit) const;
  // What was found on the host, newest first, one line each.
  std::string evidence(std::string_view host) const;

  // The nanoseconds since 1970 at Instant{}, by the clock of this host: the time between encode()
  // and decode() counts if both sides know it. 0: unknown.
  void set_epoch(std::int64_t epoch) { epoch_ = epoch; }

  // core::HostGate
  std::string why_excluded(std::string_view host) const override;
  void exclude(const std::string& host, const std::string& why, Instant now) override;
  bool expire(Instant now) override;
  Instant next_expiry() const override;
  std::string encode(Instant now) const override;
  bool decode(std::string_view bytes, Instant now) override;

 private:
  struct Note {
    std::string text;
    Instant at;
  };
  struct Host {
    std::vector<Note> notes;            // oldest first
    int times = 0;                      // that it was excluded
    std::string why;                    // it was excluded last
    Instant since;                      // the same: when
    std::optional<Instant> until = {};  // nullopt: it is not excluded
    Instant known_at;                   // the last that is known of it
  };
  using Hosts = std::map<std::string, Host, std::less<>>;
  struct Codec;

  void on(const Exclude& event, Instant now, std::vector<HostAction>* actions);
  void on(const Readmit& event, Instant now, std::vector<HostAction>* actions);
  void on(const Finding& event, Instant now, std::vector<HostAction>* actions);
  void on(const Expire& event, Instant now, std::vector<HostAction>* actions);
  const Host* find_excluded(std::string_view host) const;
  Host& remember(const std::string& host, const std::string& note, Instant now);
  void make_room(const std::string& added);

  Hosts hosts_;
  std::uint64_t version_ = 1;
  std::int64_t epoch_ = 0;
  std::vector<HostAction> pending_;
};

}  // namespace elastic::gate
