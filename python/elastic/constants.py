"""Constants that several modules share. The agent's exit codes are in ``elastic._C``."""

LOOPBACK = "127.0.0.1"
PORT_MAX = 65535

NOTICE = 25  # log level between INFO and WARNING: progress that the console always shows
LOG_LEVELS = {"CRITICAL": 50, "FATAL": 50, "ERROR": 40, "WARNING": 30, "WARN": 30,
              "NOTICE": NOTICE, "INFO": 20, "DEBUG": 10, "NOTSET": 0}  # fmt: skip

COORDINATOR_PORT = 29400  # of an endpoint without a port
STATIC_PORT = 29500  # the same with static ranks, as in torchrun

JOIN_TIMEOUT_S = 600.0  # default of join_timeout
NO_RUN_ID = "none"  # torchrun's, of a job without one

NODES_MAX = 100_000  # kNodesMax
WORKERS_MAX = 4096  # kLocalWorldSizeMax
TEXT_BYTES_MAX = 255  # kNodeTextBytesMax

# Rendezvous backends whose nodes connect to a coordinator at a known endpoint, and the stores that
# keep the job's record.
COORDINATED = ("static", "c10d")
KEEPERS = ("file", "tcpstore", "etcd", "etcd-v2")

DEFAULT_LINE_PREFIX = "[${role_name}${local_rank}]:"

# The modes of --numa-binding.
NUMA_MODES = ("node", "socket", "exclusive", "core-complex")
START_METHODS = ("spawn", "fork", "forkserver")  # of functions; all of them get a new process

# Variables that turn on checks of the workers (elastic.torch_compat.agents.watchdog).
TORCHELASTIC_ENABLE_FILE_TIMER = "TORCHELASTIC_ENABLE_FILE_TIMER"
TORCHELASTIC_HEALTH_CHECK_PORT = "TORCHELASTIC_HEALTH_CHECK_PORT"
TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"
TORCHELASTIC_TIMER_FILE = "TORCHELASTIC_TIMER_FILE"  # the path of the timers' pipe

ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"  # a worker's, and that of a launcher's parent
LOG_LEVEL_VARIABLE = "LOGLEVEL"
TOKEN_FILE_VARIABLE = "ELASTIC_TOKEN_FILE"
TOKEN_VARIABLE = "ELASTIC_TOKEN"
AUTO_PROGRESS_VARIABLE = "ELASTIC_AUTO_PROGRESS"  # 0: the workers start without the hook

# Defaults of options that programs can set too; the native ones are those of ``_C.AgentOptions``.
DEFAULT_ROLE = "default"
DEFAULT_START_TIMEOUT_S = 60.0
DEFAULT_NODE_CHECK_TIMEOUT_S = 60.0
DEFAULT_SHUTDOWN_TIMEOUT_S = 30.0
DEFAULT_DRAIN_TIMEOUT_S = 60.0  # to agree on a step and to reach it
DEFAULT_INPLACE_GRACE_S = 5.0  # to leave a round that is over
# A wrapper forwards a signal that its process group received as well; a terminal that closes, or
# systemd, sends two different ones. Within this time they are one request.
ECHO_S = 1.0
DEFAULT_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"  # that stop the workers
SIGNALS_VARIABLE = "TORCHELASTIC_SIGNALS_TO_HANDLE"  # others than these
SHUTDOWN_TIMEOUT_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
HANDLER_EXIT_BARRIER_S = 300  # of an agent with a rendezvous handler, as in torch
