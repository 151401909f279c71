"""Settings: sections of values, each with a default, a unit and a one-line description.

section.py                          `Section` and `setting`, of which all sections are made
storage.py, ports.py, delivery.py, security.py, log.py   the sections
options.py                          `Options`: all sections; the list of settings
checks.py                           checks that a type cannot express
units.py                            `256MB`, `7d`
conversion.py                       one value becomes one of the setting's type
loading.py                          `load`: config file, environment and flags become `Options`
effective.py                        the settings in force, each with its source
source_lines.py                     the line of the config file that has a setting

options = load(Path("duolog.toml"), {"store.flush": "async"})    # raises ConfigError
options.store.flush_interval_ms                                  # 500
"""

from duolog.bridge.config.checks import level_delays_ms, name_servers
from duolog.bridge.config.delivery import ConvertOptions, DelayOptions, TxnOptions
from duolog.bridge.config.effective import Effective, SettingsInForce
from duolog.bridge.config.loading import Loaded, Source, errors_of, load, load_with_sources, parse_override
from duolog.bridge.config.log import LoggingOptions, TracingOptions, collector_headers, component_levels
from duolog.bridge.config.options import Options, Setting, settings, values
from duolog.bridge.config.ports import (
    HooksOptions,
    HttpOptions,
    KafkaOptions,
    LimitsOptions,
    RocketmqOptions,
    ServerOptions,
    TlsOptions,
)
from duolog.bridge.config.section import DAY_MS, HOUR_MS, KIB, SECOND_MS, ConfigError
from duolog.bridge.config.security import SecurityOptions
from duolog.bridge.config.storage import (
    GroupsOptions,
    LeasesOptions,
    RetentionOptions,
    StoreSection,
    TopicsOptions,
    store_options,
)

__all__ = [
    "DAY_MS",
    "HOUR_MS",
    "KIB",
    "SECOND_MS",
    "ConfigError",
    "ConvertOptions",
    "DelayOptions",
    "Effective",
    "GroupsOptions",
    "HooksOptions",
    "HttpOptions",
    "KafkaOptions",
    "LeasesOptions",
    "LimitsOptions",
    "Loaded",
    "LoggingOptions",
    "Options",
    "RetentionOptions",
    "RocketmqOptions",
    "SecurityOptions",
    "ServerOptions",
    "Setting",
    "SettingsInForce",
    "Source",
    "StoreSection",
    "TlsOptions",
    "TopicsOptions",
    "TracingOptions",
    "TxnOptions",
    "collector_headers",
    "component_levels",
    "errors_of",
    "level_delays_ms",
    "load",
    "load_with_sources",
    "name_servers",
    "parse_override",
    "settings",
    "store_options",
    "values",
]
