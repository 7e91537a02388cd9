#pragma once

// Conversion of errno to Status.

#include <string>
#include <string_view>

#include "elastic/status.h"

namespace elastic::os {

// "<context>: <text of error>", with a code chosen by what the caller can do about it.
Status posix_error(std::string_view context, int error);

// The text of an errno value ("No such file or directory"); thread-safe.
std::string error_text(int error);

}  // namespace elastic::os
