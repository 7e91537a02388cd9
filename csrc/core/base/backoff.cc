#include "core/base/backoff.h"

#include <algorithm>

namespace elastic {

Duration Backoff::next() {
  const Duration bound = std::min(bound_, cap_);
  if (bound_ < cap_) bound_ *= 2;
  const double fraction = rng_->next_fraction();
  return Duration(static_cast<Duration::rep>(static_cast<double>(bound.count()) * fraction));
}

}  // namespace elastic
