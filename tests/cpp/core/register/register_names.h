#pragma once

// The names of the register's table and of its rules, as docs/rendezvous.md has them.

#include <array>
#include <string_view>

#include "core/register/register_machine.h"

namespace elastic::reg {

inline constexpr std::array<std::string_view, kRules> kRuleNames = {
    "OneLineage",      "DistinctHosts", "StrictMajority",     "OldMajority",     "NewMajority",
    "AcceptPromises",  "TellInForce",   "RefuseLowerTerm",    "PromiseOnce",     "BothSets",
    "FollowNewer",     "AdoptNewest",   "TermBeforeSequence", "ReproposeFirst",  "LostIncumbent",
    "AskFirst",        "StartApart",    "ReplaceVoters",      "JudgeAcceptance", "Expire",
    "KeepEarlyPromise"};

inline constexpr std::array<std::string_view, kRoles> kRoleNames = {
    "follower", "asking", "preparing", "reproposing", "coordinator"};
inline constexpr std::array<std::string_view, kMessages> kMessageNames = {
    "Ask",      "AskReply", "Prepare",  "Promise", "Accept",
    "Accepted", "InForce",  "HandOver", "Fetch",   "Fetched"};
inline constexpr std::array<std::string_view, 8> kResponseNames = {
    "answer", "promise", "accept", "count", "learn", "stand", "supply", "ignore"};
static_assert(static_cast<std::size_t>(Response::kIgnore) + 1 == kResponseNames.size());

}  // namespace elastic::reg
