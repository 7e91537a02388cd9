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
  kIgnore,
};

inline constexpr std::size_t kMessages = 8;

inline constexpr std::array<std::array<Response, kMessages>, kRoles> kResponses = [] {
  using enum Response;
  return std::array<std::array<Response, kMessages>, kRoles>{{
      // Ask    AskReply Prepare   Promise  Accept   Accepted InForce HandOver
      {kAnswer, kIgnore, kPromise, kIgnore, kAccept, kIgnore, kLearn, kStand},   // follower
      {kAnswer, kCount, kPromise, kIgnore, kAccept, kIgnore, kLearn, kStand},    // asking
      {kAnswer, kIgnore, kPromise, kCount, kAccept, kIgnore, kLearn, kStand},    // preparing
      {kAnswer, kIgnore, kPromise, kIgnore, kAccept, kCount, kLearn, kIgnore},   // reproposing
      {kAnswer, kIgnore, kPromise, kIgnore, kAccept, kCount, kIgnore, kIgnore},  // coordinator
  }};
}();

constexpr Response response_to(Role role, std::size_t message) {
  return kResponses[static_cast<std::size_t>(role)][message];
}

inline constexpr std::array<std::string_view, kRoles> kRoleNames = {
    "follower", "asking", "preparing", "reproposing", "coordinator"};
inline constexpr std::array<std::string_view, kMessages> kMessageNames = {
    "Ask", "AskReply", "Prepare", "Promise", "Accept", "Accepted", "InForce", "HandOver"};
inline constexpr std::array<std::string_view, 7> kResponseNames = {
    "answer", "promise", "accept", "count", "learn", "stand", "ignore"};
static_assert(static_cast<std::size_t>(Role::kCoordinator) + 1 == kRoles);
static_assert(static_cast<std::size_t>(Response::kIgnore) + 1 == kResponseNames.size());

}  // namespace elastic::reg
