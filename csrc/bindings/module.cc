// elastic._C: the native core for Python. Shims only; every call that can block releases the GIL.
//
// It does not declare that it runs without the GIL: the pointer in Owner, and the members of option
// objects that Python can set, are protected by the GIL alone. So a free-threaded launcher runs
// with the GIL. Training scripts import elastic._worker, which needs none.

#include <pybind11/pybind11.h>

#include "bindings/convert.h"
#include "bindings/module.h"
#include "core/base/text.h"
#include "elastic/version.h"
#include "os/file/temporary_sweep.h"

PYBIND11_MODULE(_C, module) {
  module.doc() = "Native core of elastic: store server and client, worker group, agent.";
  module.attr("__version__") = ELASTIC_VERSION;
  module.def(
      "duration_text",
      [](elastic::Duration seconds) { return elastic::core::duration_text(seconds); },
      pybind11::arg("seconds"), "The duration as messages have it: 50 ms, 2.5 s, 1 h 5 min.");
  module.def("temporary_stem", &elastic::os::temporary_stem,
             "How the names of this host's temporary directories begin: if this process is killed, "
             "its guardian removes those that are not locked.");
  elastic::bindings::bind_errors(module);
  elastic::bindings::bind_store_server(module);
  elastic::bindings::bind_store_client(module);
  elastic::bindings::bind_worker_group(module);
  elastic::bindings::bind_rendezvous_backends(module);
  elastic::bindings::bind_rendezvous_values(module);
  elastic::bindings::bind_rendezvous_client(module);
  elastic::bindings::bind_agent(module);
  elastic::bindings::bind_observer(module);
  elastic::bindings::hide_arguments(module);
}
