"""The table of the scheduler's settings. Flags, variables, keys, help and docs/configuration.md follow it."""

from __future__ import annotations

from scheduler_service.profiles import DEFAULT_PROFILE
from service_shell.port_settings import LOGS, METRICS, TRACES, port_settings
from service_shell.setting import Setting, path, seconds, size, text, text_or_none, whole
from service_shell.setting_sources import Program

SCHEDULER = Program(
    name="metronome-scheduler",
    description="Plans LLM inference, iteration by iteration, for executors that ask over gRPC.",
    prefix="METRONOME_SCHEDULER_",
    settings=(
        *port_settings(50051),
        Setting("grace_s", "serving", seconds, "seconds that open streams have to end when stopped", default="5"),
        Setting("profile", "planning", text, "policy where a request names none", default=DEFAULT_PROFILE),
        Setting("profiles_directory", "planning", path, "directory of profiles (default: the built-in ones)"),
        Setting(
            "shadow_profile",
            "planning",
            text_or_none,
            "plan every state under this profile too, and log how the two differ",
        ),
        Setting(
            "report_interval_s",
            "planning",
            whole(1),
            "seconds between reports of recorder and shadow",
            default="60",
        ),
        Setting("record_dir", "recording", path, "record plans there; a directory for this process alone"),
        Setting("record_max_bytes", "recording", size, "size that ends a file", default="64MiB"),
        Setting("record_max_files", "recording", whole(1), "files to keep, the newest", default="16"),
        *METRICS,
        *TRACES,
        *LOGS,
    ),
)
