#pragma once

// What a node does with a message of the register, by its role: the table that the machine runs and
// that docs/register.md shows.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace elastic::reg {

enum class Role : std::uint8_t {
  kFollower,     // votes, if a record names it
  kAsking,       // a candidate that asks whether it would be elected
  kPreparing,    // a candidate that collects promises
  kReproposing,  // elected; the newest accepted record is not yet in force under its term
  kCoordinator,  // proposes records
};
inline constexpr std::size_t kRoles = 5;

enum class Response : std::uint8_t {
  kAnswer,   // reports whether it would promise; changes nothing
  kPromise,  // promises, if the rules allow it
  kAccept,   // accepts the record, unless it promised a later term
  kCount,    // counts the vote; a reply with a later term ends the attempt or the authority
  kLearn,    // the accepted record is in force
  kStand,    // asks for promises at once
  kSupply,   // sends the record that it has accepted, if that is the one
  kIgnore,
};

inline constexpr std::size_t kMessages = 10;

// A row for each role.
inline constexpr std::array<std::array<Response, kMessages>, kRoles> kResponses = [] {
  using enum Response;
  return std::array<std::array<Response, kMessages>, kRoles>{{
      // Ask    AskReply Prepare   Promise  Accept   Accepted InForce HandOver Fetch    Fetched
      {kAnswer, kIgnore, kPromise, kIgnore, kAccept, kIgnore, kLearn, kStand, kSupply, kIgnore},
      {kAnswer, kCount, kPromise, kIgnore, kAccept, kIgnore, kLearn, kStand, kSupply, kIgnore},
      {kAnswer, kIgnore, kPromise, kCount, kAccept, kIgnore, kLearn, kStand, kSupply, kCount},
      {kAnswer, kIgnore, kPromise, kIgnore, kAccept, kCount, kLearn, kIgnore, kSupply, kIgnore},
      {kAnswer, kIgnore, kPromise, kIgnore, kAccept, kCount, kIgnore, kIgnore, kSupply, kIgnore},
  }};
}();

constexpr Response response_to(Role role, std::size_t message) {
  return kResponses[static_cast<std::size_t>(role)][message];
}

inline constexpr std::array<std::string_view, kRoles> kRoleNames = {
    "follower", "asking", "preparing", "reproposing", "coordinator"};
inline constexpr std::array<std::string_view, kMessages> kMessageNames = {
    "Ask",      "AskReply", "Prepare",  "Promise", "Accept",
    "Accepted", "InForce",  "HandOver", "Fetch",   "Fetched"};
inline constexpr std::array<std::string_view, 8> kResponseNames = {
    "answer", "promise", "accept", "count", "learn", "stand", "supply", "ignore"};
static_assert(static_cast<std::size_t>(Role::kCoordinator) + 1 == kRoles);
static_assert(static_cast<std::size_t>(Response::kIgnore) + 1 == kResponseNames.size());

}  // namespace elastic::reg
