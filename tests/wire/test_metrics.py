"""The metrics of a running broker: the dashboard and the alerts name what it exports, promtool accepts the rules, and
each panel of the dashboard and each rule is evaluated by a real Prometheus that scrapes the broker. Where there is a
Grafana, it loads the dashboard, and gets data for each panel from this Prometheus.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.kit.broker import Broker, free_ports
from tests.kit.command import duolog
from tests.kit.eventually import eventually
from tests.kit.lacking import skip_or_fail
from tests.wire.clients.grafana import Grafana, grafana

TOPIC = "orders"
# Queries of dashboards and alerts for kafka_exporter, and of dashboards for the metrics of a RocketMQ 5 broker, with
# their metrics, labels to select by and labels to sum by. `duolog demo` and `use` leave data for each.
READY_QUERIES = (
    'sum(kafka_brokers{instance=~".+"})',
    'sum(rate(kafka_topic_partition_current_offset{topic=~"orders"}[10s])) by (topic)',
    'sum(delta(kafka_topic_partition_current_offset{topic=~"orders"}[10s])) by (topic, partition)',
    'sum(kafka_topic_partitions{topic!="__consumer_offsets"}) by (topic)',
    "sum(kafka_topic_partition_current_offset - kafka_topic_partition_oldest_offset) by (topic)",
    "min(kafka_topic_partition_in_sync_replica) by (topic) < 3",
    "sum(kafka_topic_partition_replicas - kafka_topic_partition_in_sync_replica) by (topic, partition)",
    "count(kafka_topic_partition_leader >= 0) by (topic)",
    "sum(kafka_topic_partition_under_replicated_partition) by (topic, partition)",
    'sum(rate(kafka_consumergroup_current_offset{consumergroup=~"billing"}[10s])) by (consumergroup, topic)',
    'sum(kafka_consumergroup_lag{topic=~"orders"}) by (consumergroup, topic)',
    'sum(kafka_consumergroup_lag{consumergroup!=""}) by (consumergroup, topic, partition) > 10',
    "max(kafka_consumergroup_lag_sum) by (consumergroup, topic)",
    "sum(kafka_consumergroup_members) by (consumergroup)",
    'sum(rate(rocketmq_messages_in_total{cluster="DefaultCluster"}[10s])) by (cluster, node_id)',
    'topk(10, sum(rate(rocketmq_messages_in_total{is_system="false"}[10s])) by (topic, message_type))',
    'sum(rate(rocketmq_throughput_in_total{topic="orders"}[10s])) by (cluster, node_id, topic)',
    'sum(rate(rocketmq_messages_out_total{is_retry="false"}[10s])) by (cluster, topic, consumer_group)',
    "sum(rate(rocketmq_throughput_out_total[10s])) by (consumer_group)",
    'sum(rocketmq_consumer_lag_messages{is_system="false"}) by (cluster, consumer_group, topic)',
    "sum(rocketmq_consumer_ready_messages) by (consumer_group, topic)",
    "max(rocketmq_consumer_lag_latency_milliseconds) by (consumer_group, topic)",
    "sum(rocketmq_consumer_inflight_messages) by (consumer_group, topic)",
    'sum(rocketmq_broker_permission{node_type="broker"}) by (cluster, node_id)',
    "sum(rocketmq_storage_size) by (node_id, storage_type, storage_medium)",
    "sum(rate(rocketmq_rpc_latency_milliseconds_bucket[10s])) by (le, request_code)",
    "sum(rocketmq_processor_watermark) by (node_id, processor)",
)
WITHIN_S = 60
CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [rules.yml]
scrape_configs: [{{job_name: duolog, static_configs: [{{targets: ["{target}"]}}]}}]
"""


@pytest.fixture(scope="module")
def broker(duolog_only: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("metrics") / "data") as running:
        yield running


def program(name: str) -> str:
    """Return the path of a program of Debian's package `prometheus`."""
    found = shutil.which(name)
    return found or skip_or_fail(f"no {name}; Debian's package prometheus has it")


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        body: bytes = answer.read()
    return body


def expressions() -> list[tuple[str, str]]:
    """Return (title of the panel, query), as Grafana sends it."""
    panels = json.loads(duolog("dashboard", "grafana"))["panels"]
    found = [(panel["title"], target["expr"]) for panel in panels for target in panel["targets"]]
    return [(title, expr.replace("$instance", ".*").replace("$__rate_interval", "10s")) for title, expr in found]


def use(broker: Broker) -> None:
    """Let a producer, a group that lags, a delayed message and a refused request leave their traces."""
    producer = Producer({"bootstrap.servers": broker.kafka})
    for number in range(20):
        producer.produce(TOPIC, f"{number}".encode(), partition=0)
    producer.flush(10)
    group = Consumer({"bootstrap.servers": broker.kafka, "group.id": "billing"})
    group.commit(offsets=[TopicPartition(TOPIC, 0, 5)], asynchronous=False)
    group.close()
    delayed = json.dumps({"topic": TOPIC, "value": "x", "delay_ms": 300}).encode()
    request = urllib.request.Request(
        f"http://{broker.http}/api/timers", delayed, {"Content-Type": "application/json"}, method="POST"
    )
    urllib.request.urlopen(request, timeout=10).close()
    with pytest.raises(urllib.error.HTTPError):
        get(f"http://{broker.http}/api/topics/no-such-topic")


def test_metrics_that_panels_and_rules_name_are_exported(broker: Broker) -> None:
    use(broker)
    exported = set(re.findall(r"^# TYPE (\w+) ", get(f"http://{broker.http}/metrics").decode(), re.MULTILINE))
    exported |= {f"{name}_bucket" for name in exported}
    text = "".join(expr for _, expr in expressions()) + duolog("dashboard", "alerts")
    named = set(re.findall(r"\b(?:duolog|kafka|rocketmq)_\w+", text))
    assert len(named) > 10
    assert named <= exported


def test_promtool_accepts_the_rules(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(duolog("dashboard", "alerts"))
    checked = subprocess.run(
        [program("promtool"), "check", "rules", "rules.yml"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (checked.returncode, "SUCCESS" in checked.stdout) == (0, True), checked.stdout + checked.stderr


def test_promtool_accepts_the_metrics(broker: Broker) -> None:
    """`promtool check metrics` also reports names that break conventions; RocketMQ's and kafka_exporter's names do."""
    use(broker)
    checked = subprocess.run(
        [program("promtool"), "check", "metrics"],
        input=get(f"http://{broker.http}/metrics"), capture_output=True, timeout=60,
    )  # fmt: skip
    wrong = [line for line in checked.stderr.decode().splitlines() if not line.startswith(("rocketmq_", "kafka_"))]
    assert not wrong


def test_prometheus_has_data_for_each_panel_and_evaluates_each_rule(broker: Broker, tmp_path: Path) -> None:
    with prometheus(broker, tmp_path) as api:
        for title, expr in expressions():
            eventually(f"data of {title}: {expr}", lambda expr=expr: fresh(broker, api, expr), bool, WITHIN_S)
        health = eventually(
            "rules were evaluated", lambda: states(api), lambda found: "unknown" not in found.values(), WITHIN_S
        )
        assert set(health.values()) == {"ok"}, health


def test_queries_of_ready_dashboards_have_data_with_their_labels(broker: Broker, tmp_path: Path) -> None:
    duolog("demo", "--http", broker.http)
    with prometheus(broker, tmp_path) as api:
        eventually("data of all", lambda: without_data(broker, api), lambda found: found == [], WITHIN_S)
        for expr in READY_QUERIES:
            wanted = {label for by in re.findall(r" by \(([^)]*)\)", expr) for label in by.split(", ")}
            assert all(row["metric"].keys() == wanted for row in values(api, expr)), expr


def without_data(broker: Broker, api: str) -> list[str]:
    use(broker)
    return [expr for expr in READY_QUERIES if not values(api, expr)]


def test_grafana_loads_the_dashboard_and_has_data_for_each_panel(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "grafana").mkdir()
    with grafana(tmp_path / "grafana") as server, prometheus(broker, tmp_path) as api:
        source = {"name": "metrics", "type": "prometheus", "access": "proxy", "url": api.removesuffix("/api/v1")}
        uid = server.post("/api/datasources", source)["datasource"]["uid"]
        made = json.loads(duolog("dashboard", "grafana"))
        server.post("/api/dashboards/db", {"dashboard": made, "overwrite": True})
        loaded = server.get(f"/api/dashboards/uid/{made['uid']}")["dashboard"]
        assert [shown(panel) for panel in loaded["panels"]] == [shown(panel) for panel in made["panels"]]
        assert not migration_of(server, made["uid"]).get("failed")
        proxy = f"{server.url}/api/datasources/proxy/uid/{uid}/api/v1"
        for title, expr in expressions():
            eventually(f"data of {title}: {expr}", lambda expr=expr: fresh(broker, proxy, expr), bool, WITHIN_S)


def shown(panel: dict[str, Any]) -> tuple[Any, ...]:
    """Return what must not change when a panel is loaded."""
    return panel["title"], panel["type"], panel["gridPos"], [target["expr"] for target in panel["targets"]]


def migration_of(server: Grafana, uid: str) -> dict[str, Any]:
    """Return what the server says about the conversion to its own schema version.

    Servers before Grafana 12 do not know the address: their web pages convert dashboards, and so report nothing here.
    """
    try:
        found = server.get(f"/apis/dashboard.grafana.app/v1beta1/namespaces/default/dashboards/{uid}")
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return {}
    conversion: dict[str, Any] = found.get("status", {}).get("conversion", {})
    return conversion


@contextmanager
def prometheus(broker: Broker, folder: Path) -> Iterator[str]:
    """Run a Prometheus that scrapes the broker every second; yields the URL of its API."""
    (folder / "rules.yml").write_text(duolog("dashboard", "alerts"))
    (folder / "prometheus.yml").write_text(CONFIG.format(target=broker.http))
    (port,) = free_ports(1)
    options = [f"--web.listen-address=127.0.0.1:{port}", "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program("prometheus"), *options], cwd=folder, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}/api/v1"
    finally:
        process.kill()
        process.wait()


def fresh(broker: Broker, api: str, expr: str) -> list[Any]:
    """Use the broker, and return the values of a query."""
    use(broker)
    return values(api, expr)


def values(api: str, expr: str) -> list[Any]:
    """Return the values of a query that are numbers; none while Prometheus is starting."""
    try:
        found = json.loads(get(f"{api}/query?{urlencode({'query': expr})}"))
    except OSError:
        return []
    return [row for row in found["data"]["result"] if not math.isnan(float(row["value"][1]))]


def states(api: str) -> dict[str, str]:
    """Return the health of each rule."""
    groups = json.loads(get(f"{api}/rules"))["data"]["groups"]
    return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}
