#pragma once

// Reads torch's flight recorder: which collective operation this process waits in. Without headers
// of torch and without the interpreter's lock. Needs the C++ runtime, which torch brings.

#include <stddef.h>

#include "elastic/worker.h"

namespace elastic::worker {

// Condenses a reply of the recorder (JSON, of any version that has these keys) into one line for
// each process group:
//
//   name TAB description TAB last TAB open TAB created TAB operation TAB sizes NEWLINE
//
// `last`: the sequence number of the last operation that was entered; `open`: of the first one that
// is not over, 0: none is; `created`: when that was entered, in nanoseconds since 1970. All text is
// printable ASCII without tabs. Returns the bytes written; 0 if the reply has no operation, or
// cannot be read. Groups that do not fit are left out. `newest`: raised to `created` of every group
// with an open operation.
size_t condense(const char* json, size_t bytes, char* out, size_t size, int64_t* newest = nullptr);

// The length of the text, or of its lines that fit in `size` bytes with a zero behind them.
size_t whole_lines(const char* text, size_t size);

// As elastic_worker_watch_collectives(), for the page of this process. `announce`: called once the
// thread was started (elastic_worker_announce_watch).
bool watch_collectives(elastic_worker_page* page, const char* members, void (*announce)());

}  // namespace elastic::worker
