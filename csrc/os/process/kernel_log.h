#pragma once

// The kernel log (/dev/kmsg), which usually only root may read.

#include <functional>
#include <string_view>

#include "elastic/time.h"

namespace elastic::os {

// Calls `sink` with the text of each line that the kernel wrote since `since`. Returns at the end
// of the log; does nothing if it cannot be read.
void read_kernel_log(Instant since, const std::function<void(std::string_view)>& sink);

}  // namespace elastic::os
