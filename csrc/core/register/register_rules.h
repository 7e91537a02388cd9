#pragma once

// The rules of the register that a test can delete, one by one, to show that its simulator notices.
//
// The machine takes the set of rules as a type. In the library that type is AllRules, whose answer
// is a constant: the compiler drops the question, and no setting, file or message can turn a rule
// off. The test program instantiates the same source with a type that leaves one rule out. A mask
// in the settings would have been shorter, and a switch in every production build.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace elastic::reg {

enum class Rule : std::uint8_t {
  kOneLineage,          // R1: messages of another lineage are ignored
  kDistinctHosts,       // R2: the voters are on different hosts
  kStrictMajority,      // R3: more than half, not half
  kOldMajority,         // R3: a majority of the voters of the replaced record accepts, too
  kNewMajority,         // R3: a majority of the new voters accepts
  kAcceptPromises,      // R3: accepting implies promising
  kTellInForce,         // a record that is not in force is not delivered
  kRefuseLowerTerm,     // R4: a promise binds
  kPromiseOnce,         // R4: one promise per term
  kBothSets,            // R4: promises of both sets unless the record is known to be in force
  kFollowNewer,         // R4: promises of the voters of a newer record that a promise reports
  kAdoptNewest,         // R4: the newest accepted record is proposed again, not the own one
  kTermBeforeSequence,  // R4: newness is the term, then the sequence
  kReproposeFirst,      // R4: a new coordinator proposes nothing before that record is in force
  kLostIncumbent,       // R4: promises only after the incumbent is lost
  kAskFirst,            // R4: asks before it prepares
  kStartApart,          // R4: candidates start apart
  kReplaceVoters,       // R5: unreachable voters are replaced
  kJudgeAcceptance,     // R5: a voter that accepts nothing is unreachable
  kExpire,              // R5: authority ends after store_grace without a majority
  kKeepEarlyPromise,    // R10: handing over is a promise
};
inline constexpr std::size_t kRules = 21;
static_assert(static_cast<std::size_t>(Rule::kKeepEarlyPromise) + 1 == kRules);
inline constexpr std::array<std::string_view, kRules> kRuleNames = {
    "OneLineage",      "DistinctHosts", "StrictMajority",     "OldMajority",     "NewMajority",
    "AcceptPromises",  "TellInForce",   "RefuseLowerTerm",    "PromiseOnce",     "BothSets",
    "FollowNewer",     "AdoptNewest",   "TermBeforeSequence", "ReproposeFirst",  "LostIncumbent",
    "AskFirst",        "StartApart",    "ReplaceVoters",      "JudgeAcceptance", "Expire",
    "KeepEarlyPromise"};

struct AllRules {
  static constexpr bool has(Rule) { return true; }
};

}  // namespace elastic::reg
