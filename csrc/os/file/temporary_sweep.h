#pragma once

// The temporary directories of processes that were killed. Also compiled into the guardian.

#include <string>

#include "os/base/fd.h"

namespace elastic::os {

// How the names of this host's temporary directories begin: "elastic-run_<host>_<boot>". A lock of
// flock(2) on a directory is visible to one kernel only, also where hosts share the file system.
std::string temporary_stem();

// $TMPDIR, or /tmp. Not std::filesystem::temp_directory_path(): its errors do not name the path.
std::string temporary_parent();

// Opens a directory and locks it by flock(2). Returns errno; EWOULDBLOCK: another process has
// locked it.
int lock_directory(const std::string& path, UniqueFd* lock);

// Removes a directory and its content; what cannot be removed is left for the next sweep.
void remove_tree(const std::string& path);

// Removes the unlocked directories of this user in `parent` whose names begin with
// temporary_stem(). A locked one belongs to a running process: the kernel unlocks it when that
// process ends.
void sweep_temporary(const std::string& parent);

}  // namespace elastic::os
