#pragma once

// Admission: what a process answers to the first message of a session. A node enters the job here
// or begins it, or is sent to another coordinator, or continues its search. Pure.
//
// How the job stands with this process and who calls give the reaction: kAdmissionTable is the
// whole decision, and docs/rendezvous.md shows it. What is known of a job that this process does
// not coordinate expires, so that the next job of its id can begin here: a coordinator that runs
// elsewhere announces itself every kAnnounceInterval, and a job that has ended does not.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/register/register_types.h"
#include "core/succession/meeting.h"
#include "core/succession/succession_types.h"
#include "elastic/time.h"

namespace elastic::succession {

// How a job stands with a process.
enum class Standing : std::uint8_t {
  kNew,         // nothing is known of it
  kStandby,     // nothing is known of it, and this process begins no job
  kAwaited,     // it was lost here, and its next coordinator has not announced itself
  kElsewhere,   // another process coordinates it
  kUnplaced,    // as kElsewhere, but its address is not known: the job of this process's agent
  kEmpty,       // it is coordinated here, and no node has joined it
  kRunning,     // it runs here, and no other process can be elected
  kReplicated,  // it runs here, and its succession machine decides who coordinates it
  kStored,      // it is coordinated here, and a store keeps its record
  kOver,        // it has ended here, and sends its result
};
inline constexpr std::size_t kStandings = 10;

// Who calls.
enum class Caller : std::uint8_t {
  kNewcomer,     // a node that is in no job with several voters
  kMember,       // a node of this job
  kStranger,     // a node of another job of the id: of another lineage
  kObserver,     // an observer
  kCoordinator,  // an elected coordinator, which announces itself
};
inline constexpr std::size_t kCallers = 5;

enum class Reaction : std::uint8_t {
  kEnter,    // the node's session with the job begins
  kBegin,    // the job begins, and so does the node's session with it
  kSend,     // the caller is sent to the job's coordinator
  kSearch,   // the node continues its search: only voters of its job name a coordinator
  kObserve,  // the observer's session with the job begins
  kUnknown,  // there is no such job here
  kNote,     // its nodes are sent there from now on; the reply: where they are sent
  kKeep,     // nothing changes; this and the next two: the reply is who coordinates the job here
  kMeet,     // the job's succession machine decides
  kGiveWay,  // the job here dissolves
  kCompare,  // kGiveWay or kKeep, by core/succession/meeting.h
};
inline constexpr std::size_t kReactions = 11;

struct AdmissionRow {
  Standing standing;
  Reaction newcomer, member, stranger, observer, coordinator;
};
inline constexpr std::array<AdmissionRow, kStandings> kAdmissionTable = [] {
  using enum Reaction;
  return std::array<AdmissionRow, kStandings>{{
      {.standing = Standing::kNew,
       .newcomer = kBegin,
       .member = kSearch,
       .stranger = kSearch,
       .observer = kUnknown,
       .coordinator = kNote},
      {.standing = Standing::kStandby,
       .newcomer = kSearch,
       .member = kSearch,
       .stranger = kSearch,
       .observer = kUnknown,
       .coordinator = kNote},
      // Held for as long as the next coordinator may need to announce itself.
      {.standing = Standing::kAwaited,
       .newcomer = kBegin,
       .member = kSearch,
       .stranger = kSearch,
       .observer = kUnknown,
       .coordinator = kNote},
      {.standing = Standing::kElsewhere,
       .newcomer = kSend,
       .member = kSend,
       .stranger = kSearch,
       .observer = kSend,
       .coordinator = kNote},
      {.standing = Standing::kUnplaced,
       .newcomer = kSearch,
       .member = kSearch,
       .stranger = kSearch,
       .observer = kUnknown,
       .coordinator = kNote},
      {.standing = Standing::kEmpty,
       .newcomer = kEnter,
       .member = kEnter,
       .stranger = kSearch,
       .observer = kObserve,
       .coordinator = kGiveWay},
      {.standing = Standing::kRunning,
       .newcomer = kEnter,
       .member = kEnter,
       .stranger = kSearch,
       .observer = kObserve,
       .coordinator = kCompare},
      {.standing = Standing::kReplicated,
       .newcomer = kEnter,
       .member = kEnter,
       .stranger = kSearch,
       .observer = kObserve,
       .coordinator = kMeet},
      // A store has one job of an id.
      {.standing = Standing::kStored,
       .newcomer = kEnter,
       .member = kEnter,
       .stranger = kSearch,
       .observer = kObserve,
       .coordinator = kKeep},
      {.standing = Standing::kOver,
       .newcomer = kEnter,
       .member = kEnter,
       .stranger = kSearch,
       .observer = kObserve,
       .coordinator = kNote},
  }};
}();

constexpr Reaction reaction_to(Standing standing, Caller caller) {
  const AdmissionRow& row = kAdmissionTable[static_cast<std::size_t>(standing)];
  const std::array<Reaction, kCallers> reactions = {row.newcomer, row.member, row.stranger,
                                                    row.observer, row.coordinator};
  return reactions[static_cast<std::size_t>(caller)];
}

class Admission {
 public:
  // `own`: the job of the agent in whose process this is; "": a separate program. The process ends
  // with that job, so what is known of it does not expire. is_standby: it begins no job.
  explicit Admission(std::string own = {}, bool is_standby = false)
      : own_(std::move(own)), is_standby_(is_standby) {}

  // ---- What this process learns of jobs that it does not coordinate.

  // A coordinator has announced itself. Returns the one to which nodes are sent from now on.
  // REQUIRES: this process does not coordinate the job
  const Incumbent& note(const std::string& job, const Incumbent& by, Instant now);
  // This process has lost the job. Without a known successor, one may announce itself soon.
  void lost(const std::string& job, const std::optional<Incumbent>& successor, Instant now);
  // The own job is coordinated elsewhere, or will be here: its nodes are sent to this coordinator.
  // Without an address they continue their search.
  void set_own(const Incumbent& incumbent) { own_incumbent_ = incumbent; }
  bool has_own() const { return own_incumbent_.has_value(); }
  // This process coordinates the job now.
  void began(const std::string& job);

  // ---- Who calls, and the answer.

  struct Call {
    std::string job;  // "": an observer that wants the only job
    enum class From : std::uint8_t { kNode, kObserver, kCoordinator } from = From::kNode;
    // A node's job with several voters; nullopt: it is in none.
    std::optional<reg::LineageId> lineage = {};
    Incumbent announced = {};  // of a coordinator
  };
  // The job as this process coordinates it.
  struct Here {
    Standing standing;  // from kEmpty on
    std::optional<Incumbent> incumbent = {};
  };
  struct Answer {
    Reaction reaction;  // not kCompare
    // kSend and kNote: where nodes are sent. kKeep, kMeet, kGiveWay: the coordinator here, if the
    // job has a record. Otherwise empty.
    Incumbent incumbent = {};
    // kBegin: how long the job completes no round below max_nodes, since a coordinator that this
    // process does not know may announce itself.
    Duration hold{};
  };
  // `here`: nullopt: this process does not coordinate the job. A coordinator that announces itself
  // is noted.
  Answer answer(const Call& call, const std::optional<Here>& here, Instant now);

 private:
  struct Entry {
    Incumbent incumbent;  // term 0: unknown
    Instant until;
  };
  // A job that is coordinated elsewhere, as far as that is known.
  struct Elsewhere {
    Standing standing;
    Incumbent incumbent = {};
    Duration hold{};
  };

  void expire(Instant now);
  Elsewhere find(const Call& call, Instant now) const;

  const std::string own_;
  const bool is_standby_;
  std::optional<Incumbent> own_incumbent_;
  std::map<std::string, Entry, std::less<>> all_;
};

}  // namespace elastic::succession
