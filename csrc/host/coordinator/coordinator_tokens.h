#pragma once

#include <memory>

#include "elastic/coordinator.h"
#include "elastic/status.h"
#include "host/auth/token_source.h"

namespace elastic::host {

// The lines of a coordinator's log about clients that it refuses.
inline constexpr const char* kSessionRefused = "a session was refused: ";
inline constexpr const char* kStoreRefused =
    "a request to the store was refused: no session with a token was opened from this address";

// The tokens of a coordinator; null: its sessions need none.
inline Result<std::shared_ptr<TokenSource>> open_tokens(const CoordinatorOptions& options) {
  if (!options.token.is_set()) return std::shared_ptr<TokenSource>();
  return TokenSource::open(options.token, options.log);
}

}  // namespace elastic::host
